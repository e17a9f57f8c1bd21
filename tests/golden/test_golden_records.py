"""Lines of record files of every kind, as runs wrote them; new runs write the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from golden import HERE, check_json, check_text

from harness.run import main

sys.path.append(str(HERE.parent / "harness"))
from replay_world import install

COMMON = "--prompts 2 --max-new-tokens 12 --benchmark gsm8k --temperature 0 --temperature 1"
KINDS = {
    "decode": "--method ngram",
    "tree": "--method eagle3 --untrained --m 3 --width 1 4",
    "pipeline": "--method spd --untrained --n 4",
    "replay": "--method eagle3 --untrained --m 3 --proposal sampled --mode replay",
    "both-turns": "--method ngram --turns all --repeats 2 --no-baseline",
}
TIMED = ("prefill_s", "decode_s", "phases")
"""Seconds: their presence is held, their values are this machine's."""

OF_THE_BUILD = ("target", "code")
"""Parts of a run's configuration that hash weights and sources."""


def without_seconds(entry: dict[str, Any]) -> dict[str, Any]:
    clear = {name: None if entry.get(name) is None else "seconds" for name in TIMED if name in entry}
    return entry | clear


def timed(name: str) -> bool:
    return name.startswith(("tok_per_s", "ar_tok_per_s", "wallclock"))


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_writes_these_records_and_this_last_line(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, capsys
) -> None:
    assert main([*COMMON.split(), *KINDS[kind].split(), "--results", str(tmp_path / "run")]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    last["run"] = "RUN"
    for row in last["results"]:
        row.update({name: "measured" for name in row if timed(name) and row[name] is not None})
    check_json(request, f"runs/{kind}.json", last)
    for stem in ("records", "baseline"):
        path = tmp_path / "run" / f"{stem}.jsonl"
        if path.exists():
            lines = [without_seconds(json.loads(line)) for line in path.read_text().splitlines()]
            text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)
            check_text(request, f"runs/{kind}.{stem}.jsonl", text)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    config = {name: value for name, value in manifest["config"].items() if name not in OF_THE_BUILD}
    check_json(request, f"runs/{kind}.config.json", config)
