"""A method that changes the target fails its run, and what it wrote is used by nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import replay_world

from harness.compare import Run
from harness.execution import plan, target_watch
from harness.execution.target_watch import TargetWatch
from harness.records.files import read_baseline, read_records
from harness.records.manifest import read_manifest
from harness.records.record import BASELINE, RECORDS
from harness.run import main
from methods import registry
from methods.decoding.prompt_lookup import Ngram
from methods.errors import TargetChanged
from methods.models.target import Target
from methods.testing.tiny import tiny_target
from paper_tables.plan import SPECS, Row, Size
from paper_tables.runs import Sheet, fill

LINE = "--benchmark gsm8k --prompts 3 --max-new-tokens 8 --warmup 0"
WEIGHT = "model.layers.3.mlp.down_proj.weight was changed"


def spoil(target: Target) -> None:
    """One element of one tensor."""
    target.hf.model.layers[3].mlp.down_proj.weight.data[5, 7] += 0.5


class Mutating(Ngram):
    """Prompt lookup that changes the target when ``moment`` says so."""

    name = "mutating"
    moment: Callable[[str, int], bool]
    change: Callable[[Target], object]

    def __init__(self, target: Any, options: Any) -> None:
        super().__init__(target, options)
        self.calls = 0
        self._maybe("build")

    def _maybe(self, where: str) -> None:
        if type(self).moment(where, self.calls):
            type(self).change(self.target)

    def decode(self, *given: Any, **named: Any) -> Any:
        self.calls += 1
        self._maybe("decode")
        return super().decode(*given, **named)

    def replay(self, known: Any) -> Any:
        self.calls += 1
        self._maybe("replay")
        return super().replay(known)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    """The target that every run gets until a test replaces it."""
    replay_world.install(monkeypatch)
    shared = tiny_target("llama")
    fresh = plan.load_target("", "")
    monkeypatch.setattr(shared, "_hashes", fresh.hashes)
    shared.tokenizer = fresh.tokenizer
    monkeypatch.setattr(plan, "load_target", lambda name, dtype: shared)
    monkeypatch.setitem(registry._methods, "mutating", Mutating)
    monkeypatch.setattr(Mutating, "change", staticmethod(spoil), raising=False)
    looks_take_at_least(monkeypatch, 60.0)
    return shared


def looks_take_at_least(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """60: every look is at all of the target; 0: at one tensor."""
    monkeypatch.setattr(target_watch, "_LEAST_S", seconds)
    monkeypatch.setattr(target_watch, "_SHARE", 0.0)


def at(monkeypatch: pytest.MonkeyPatch, where: str, call: int) -> None:
    monkeypatch.setattr(Mutating, "moment", staticmethod(lambda *now: now == (where, call)), raising=False)


def run(results: Path, line: str = "", method: str = "mutating") -> int:
    return main([*LINE.split(), "--method", method, *line.split(), "--results", str(results)])


def told_by(call: Callable[[], object]) -> str:
    with pytest.raises(TargetChanged) as caught:
        call()
    (line,) = str(caught.value.code).splitlines()
    assert line.startswith("method 'mutating' changed the target, so nothing that ran on it counts: ")
    return line


@pytest.mark.parametrize("mode", ["decode", "replay"])
def test_in_its_constructor_before_anything_is_written(target, monkeypatch, tmp_path, mode: str) -> None:
    at(monkeypatch, "build", 0)
    assert told_by(lambda: run(tmp_path / "r", f"--mode {mode}")).endswith(WEIGHT)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", [1, 2, 3])
def test_while_decoding_the_prompt_is_not_stored(target, monkeypatch, tmp_path, call: int) -> None:
    at(monkeypatch, "decode", call)
    assert WEIGHT in told_by(lambda: run(tmp_path))
    kept = read_records(tmp_path)
    assert len(kept) == len(read_baseline(tmp_path)) == call - 1
    assert {record.lossless for record in kept} <= {"exact"}


def test_a_rerun_with_the_method_mended_is_an_undisturbed_run(target, monkeypatch, tmp_path) -> None:
    at(monkeypatch, "decode", 2)
    told_by(lambda: run(tmp_path / "r"))
    clean = tiny_target("llama")
    clean._hashes, clean.tokenizer = target._hashes, target.tokenizer
    monkeypatch.setattr(plan, "load_target", lambda name, dtype: clean)
    at(monkeypatch, "never", 0)
    assert run(tmp_path / "r") == 0
    assert run(tmp_path / "other") == 0
    for stem in (RECORDS, BASELINE):
        found, expected = (
            [r.output_ids for r in read_records(tmp_path / name, stem)] for name in ("r", "other")
        )
        assert found == expected
    assert len(Run.read(tmp_path / "r").records) == 3


def test_what_was_stored_since_the_last_whole_look_is_set_aside(
    target, monkeypatch, tmp_path, capsys
) -> None:
    """Of a target too large to be looked at whole after every prompt."""
    looks_take_at_least(monkeypatch, 0.0)
    at(monkeypatch, "decode", 2)
    line = told_by(lambda: run(tmp_path))
    assert WEIGHT in line and "; 6 records since it was last seen unchanged are set aside" in line
    for stem in (RECORDS, BASELINE):
        assert (tmp_path / f"{stem}.jsonl").read_bytes() == b""
        note, *lines = (tmp_path / f"{stem}.jsonl.set-aside").read_text().splitlines()
        assert WEIGHT in json.loads(note)["set_aside"] and len(lines) == 3
        assert read_records(tmp_path, stem) == []
    assert not (tmp_path / "summary.json").exists()
    assert read_manifest(tmp_path)["config"]["method"] == "mutating"


def test_records_of_earlier_starts_are_kept(target, monkeypatch, tmp_path) -> None:
    at(monkeypatch, "never", 0)
    assert run(tmp_path, "--repeats 2") == 0
    files = [tmp_path / f"{stem}.jsonl" for stem in (RECORDS, BASELINE)]
    whole = [file.read_bytes().splitlines(keepends=True) for file in files]
    for file, lines in zip(files, whole, strict=True):
        file.write_bytes(b"".join(lines[:2]))
    at(monkeypatch, "decode", 3)
    looks_take_at_least(monkeypatch, 0.0)
    told_by(lambda: run(tmp_path, "--repeats 2"))
    assert [file.read_bytes() for file in files] == [b"".join(lines[:2]) for lines in whole]


def test_replayed_ar_outputs_are_clean_and_kept(target, monkeypatch, tmp_path) -> None:
    at(monkeypatch, "replay", 2)
    told_by(lambda: run(tmp_path / "r", "--mode replay"))
    (beside,) = [path for path in tmp_path.iterdir() if "autoregressive" in path.name]
    clean = tiny_target("llama")
    clean._hashes, clean.tokenizer = target._hashes, target.tokenizer
    monkeypatch.setattr(plan, "load_target", lambda name, dtype: clean)
    assert main([*LINE.split(), "--results", str(tmp_path / "ar")]) == 0
    outputs = [[r.output_ids for r in read_records(path)] for path in (beside, tmp_path / "ar")]
    assert outputs[0] == outputs[1]
    assert len(read_records(tmp_path / "r")) == 1


def test_an_interrupt_looks_once_more(target, monkeypatch, tmp_path) -> None:
    def change(target: Target) -> None:
        spoil(target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Mutating, "change", staticmethod(change))
    at(monkeypatch, "decode", 2)
    assert WEIGHT in told_by(lambda: run(tmp_path))


def test_a_tokenizer_that_is_replaced_is_told(target, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(Mutating, "change", staticmethod(lambda target: setattr(target, "tokenizer", None)))
    at(monkeypatch, "build", 0)
    assert told_by(lambda: run(tmp_path)).endswith(": tokenizer was replaced")


def test_a_watch_that_finds_nothing_leaves_the_files_alone(target, tmp_path) -> None:
    from harness.records.journal import Journal
    from methods.models.seal import Seal

    with Journal(tmp_path / "records.jsonl") as journal, TargetWatch(Seal(target), ["x"], [journal]) as watch:
        watch.look()
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]


def test_a_table_stores_nothing_of_a_method_that_changes_the_target(
    target: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Mutating, "moment", staticmethod(lambda where, calls: calls == 2), raising=False)
    size = Size(prompts={0.0: 2}, max_new_tokens=8)
    sheet = Sheet(SPECS["1"], "quick", size, "smollm2-135m", tmp_path / "table", tmp_path / "runs")
    with pytest.raises(TargetChanged, match="method 'mutating' changed the target"):
        fill(sheet, [Row.of("mutating", "mutating")])
    assert not list((tmp_path / "table").rglob("*.jsonl"))


def test_a_plugin_cannot_replace_the_harness_clock(tmp_path, monkeypatch):
    """In a process where nothing has bound the clock yet."""
    (tmp_path / "slows.py").write_text("import time\ntime.perf_counter = lambda: 0.0\n")
    program = (
        "from methods.registry import load_plugin\nload_plugin('slows')\n"
        "from harness.execution import witness\nfrom methods.models import passes\n"
        "print(witness.perf_counter() > 0, passes.perf_counter() > 0)"
    )
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), str(tmp_path)])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.stdout.split() == ["True", "True"], done.stderr
