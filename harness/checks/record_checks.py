"""Checks of runs and records: real runs of a tiny target, from the command line to the files."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.analysis import metrics
from harness.benchmarks import chat
from harness.checks.outcome import Measured, NotApplicable
from harness.checks.small_world import BOS, TEMPLATE, make_tokenizer, save_prompts, save_target
from harness.execution.arm import prompt_seed
from harness.records.files import read_baseline, read_file, read_records
from harness.records.record import BASELINE, RECORDS, Record, StepArrays
from harness.run import main as run
from methods.models.quiet import no_progress_bars

TOKENS = 8


@contextlib.contextmanager
def _world() -> Iterator[tuple[Path, list[str]]]:
    """A folder with a target and two dialogues, and the arguments of a run on them."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with no_progress_bars():
            target = save_target(folder / "target")
        data = save_prompts(folder / "data", "hello", "good day")
        arguments = ["--target", str(target), "--data-dir", str(data), "--benchmark", "mt_bench"]
        arguments += ["--method", "ngram", "--turns", "all", "--max-new-tokens", str(TOKENS), "--warmup", "0"]
        yield folder, arguments


def _run(arguments: Sequence[str], results: Path) -> tuple[int, str]:
    """Exit code and stderr of ``harness.run``."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = run([*arguments, "--results", str(results)])
    return code, errors.getvalue()


def prompt_tokens() -> Measured:
    """C22."""
    rendered = 0
    for adds_bos in (True, False):
        for written in ("", "{{ bos_token }}", "{{ bos_token }}{{ bos_token }}"):
            tokenizer = make_tokenizer(adds_bos=adds_bos, template=written + TEMPLATE)
            ids = chat.render(tokenizer, [{"role": "user", "content": "hi"}])
            rendered += 1
            if ids.count(tokenizer.bos_token_id) != int(adds_bos or bool(written)):
                return Measured("", "one BOS", f"{ids.count(tokenizer.bos_token_id)} BOS in a prompt")
    with _world() as (folder, arguments):
        code, errors = _run(arguments, folder / "run")
        if code != 0:
            return Measured("", "one BOS", f"the run ended with {code}: {errors}")
        records = read_records(folder / "run")
    tokenizer = make_tokenizer(adds_bos=True)
    first = {record.prompt_id: record for record in records if record.turn == 1}
    fault = None
    for record in records:
        text = tokenizer.decode(record.prompt_ids)
        if record.prompt_ids.count(tokenizer.bos_token_id) != 1 or not text.startswith(BOS):
            fault = "a recorded prompt has not exactly one BOS, at its start"
        elif record.turn == 2 and first[record.prompt_id].text not in text:
            fault = "a second turn lacks the first answer"
        elif record.template_hash != chat.template_hash(tokenizer) or record.thinking:
            fault = "the template's hash or the thinking flag is not in the record"
        elif record.seed != prompt_seed(0, record.benchmark, record.prompt_id, record.turn, record.repeat):
            fault = "the seed is not in the record"
    figure = f"{rendered} templates and {len(records)} records: one BOS, template hash, thinking flag, seed"
    return Measured(figure, "in each", fault)


def aggregation() -> Measured:
    """C24: two prompts of 6 tokens in 2 rounds and 1 token in 1 round, of 8 target layers and 4 draft
    layers each; a resample of two prompts is one of three, so the interval's ends are known."""
    records = [_by_hand("a", [4, 2]), _by_hand("b", [1])]
    expected = {
        "l_acc": (7 / 3, (3 + 1) / 2, (1.0, 3.0)),
        "s0": (7 / 3, (3 + 1) / 2, (1.0, 3.0)),
        "s": (7 * 8 / (3 * 12), (6 * 8 / 24 + 8 / 12) / 2, (8 / 12, 2.0)),
        "tok_per_s": (7 / 2, 7 / 2, (1.0, 6.0)),
    }
    worst = 0.0
    for name, (pooled, mean, interval) in expected.items():
        estimate = getattr(metrics, name)(records)
        found = (estimate.pooled, estimate.prompt_mean, *estimate.pooled_interval)
        worst = max(worst, *(abs(a - b) for a, b in zip(found, (pooled, mean, *interval), strict=True)))
    fault = None if worst < 1e-9 else "an aggregate is not the one computed by hand"
    return Measured(f"{4 * len(expected)} figures off by at most {worst:.1e}", "< 1e-9", fault)


def _by_hand(prompt_id: str, emitted: list[int]) -> Record:
    count = len(emitted)
    steps = StepArrays(
        [0] * count, [0] * count, emitted, [8.0] * count, [4.0] * count, [0] * count, [1] * count
    )
    return Record(
        "gsm8k", prompt_id, 1, 0.0, 1, 0, [1], [0] * (sum(emitted) + 1), "length", 100.0, 1.0, steps,
        "exact", None, num_layers=8,
    )  # fmt: skip


def resume() -> Measured:
    """C25: a run whose files are cut off anywhere, and continued, is the whole run."""
    with _world() as (folder, arguments):
        whole = folder / "whole"
        _run(arguments, whole)
        expected = [_content(read_records(whole)), _content(read_baseline(whole))]
        cuts = 0
        for stem in (RECORDS, BASELINE):
            length = (whole / f"{stem}.jsonl").stat().st_size
            lines = (whole / f"{stem}.jsonl").read_bytes().splitlines(keepends=True)
            ends = [sum(map(len, lines[:count])) for count in range(len(lines))]
            for size in sorted({*ends, *(end + 40 for end in ends), length - 1}):
                copy = Path(shutil.copytree(whole, folder / f"{stem}-{size}"))
                _cut(copy / f"{stem}.jsonl", size)
                if stem == BASELINE:  # AR is stored first: no method record outlives its own
                    others = (copy / f"{RECORDS}.jsonl").read_bytes().splitlines(keepends=True)
                    kept = (copy / f"{BASELINE}.jsonl").read_bytes().count(b"\n")
                    _cut(copy / f"{RECORDS}.jsonl", sum(map(len, others[:kept])))
                code, errors = _run(arguments, copy)
                # AR decodes the cut prompt again beside the method; its earlier line is superseded.
                found = [_content(read_file(copy / f"{RECORDS}.jsonl")), _content(read_baseline(copy))]
                cuts += 1
                if code != 0 or found != expected:
                    fault = f"{stem} cut at byte {size}: exit code {code} {errors}".strip()
                    return Measured(f"{cuts} cuts", "the same records", fault)
                shutil.rmtree(copy)
    return Measured(f"{cuts} cuts between and within lines, 0 differ", "each key once, the same content")


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def _content(records: list[Record]) -> dict[Any, Any]:
    """By key, without clocks; a key that comes twice shows in the count."""
    found: dict[Any, Any] = {
        record.key: dataclasses.replace(record, prefill_s=0.0, decode_s=0.0, phases={}) for record in records
    }
    return {**found, "count": len(records)}


def one_configuration() -> Measured:
    """C26."""
    changes = {
        "--seed": "1",
        "--max-new-tokens": "9",
        "--temperature": "1",
        "--top-k": "3",
        "--dtype": "bfloat16",
        "--option": "m=2",
        "--prompts": "1",
    }
    with _world() as (folder, arguments):
        _run(arguments, folder / "run")
        before = _files(folder / "run")
        for flag, value in changes.items():
            given = [*arguments, flag, value]
            if flag == "--max-new-tokens":
                given = [value if part == str(TOKENS) else part for part in arguments]
            code, errors = _run(given, folder / "run")
            if code != 2 or _files(folder / "run") != before:
                fault = (
                    f"{flag} {value}: exit code {code}, files {'kept' if code == 2 else 'touched'} {errors}"
                )
                return Measured("", "refused", fault)
    return Measured(f"{len(changes)} changed fields refused, files untouched", "refused")


def _files(directory: Path) -> dict[str, bytes]:
    names = (f"{RECORDS}.jsonl", f"{BASELINE}.jsonl", "manifest.json")
    return {name: (directory / name).read_bytes() for name in names}


def tables(results: Path = Path("results")) -> Measured:
    """C29, for the tables that are kept under ``results``."""
    kept = sorted(results.glob("*/table[1-5]*.md"))
    if not kept:
        raise NotApplicable(f"no tables under {results}/ in this directory")
    for path in kept:
        number, _, size = path.stem.removeprefix("table").partition("-")
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / path.parent.name
            place.mkdir()
            (place / "records").symlink_to((path.parent / "records").resolve())
            command = [sys.executable, "-m", "paper_tables", number, "--preset", path.parent.name]
            command += ["--size", size or "quick", "--stored-only", "--results", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            rebuilt = place / path.name
            if done.returncode != 0 or rebuilt.read_text() != path.read_text():
                return Measured("", "no diff", f"{path} is not what its records give {done.stderr}")
    return Measured(f"{len(kept)} tables rebuilt, no diff", "no diff")
