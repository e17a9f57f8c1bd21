"""The bench: arms take turns, ratios are of neighbours, the last line is JSON with every repeat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from conftest import random_ids, tiny

from harness import bench, speed
from harness.speed import autoregressive, timing
from harness.speed.result import Ratio, Result, Settings


def test_arms_take_turns_after_one_unrecorded_call() -> None:
    called: list[str] = []

    def arm(name: str, seconds: float) -> timing.Timed:
        def run() -> float:
            called.append(name)
            return seconds

        return run

    times = timing.interleaved({"a": arm("a", 1.0), "b": arm("b", 2.0), "c": arm("c", 3.0)}, 4)
    assert "".join(called) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert times == {"a": [1.0] * 4, "b": [2.0] * 4, "c": [3.0] * 4}


def result() -> Result:
    # The machine is ten times slower in the second repeat; the ratio of neighbours does not see it.
    seconds = {"old": [2.0, 20.0, 3.0], "new": [1.0, 10.0, 1.0]}
    return Result("subject", "a case", "token", seconds, (Ratio("gain", "old", "new", 1.5),))


def test_ratio_is_the_median_of_neighbours() -> None:
    assert result().values(result().ratios[0]) == [2.0, 2.0, 3.0]
    assert result().as_json() == {
        "subject": "subject",
        "case": "a case",
        "unit": "token",
        "median_s": {"old": 3.0, "new": 1.0},
        "ratios": {"gain": {"median": 2.0, "aim": 1.5}},
        "raw_s": {"old": [2.0, 20.0, 3.0], "new": [1.0, 10.0, 1.0]},
    }


def test_entry_prints_a_table_and_a_json_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    asked: list[Settings] = []

    def measure(settings: Settings) -> Iterator[Result]:
        asked.append(settings)
        yield result()

    monkeypatch.setattr(speed, "import_module", lambda name: SimpleNamespace(measure=measure))
    assert bench.main(["autoregressive", "--dtype", "float32", "--repeats", "3", "--tokens", "5"]) == 0
    out = capsys.readouterr().out
    assert asked == [Settings(dtypes=("float32",), tokens=5, repeats=3)]
    assert "subject, a case" in out and "2.000" in out and ">= 1.5" in out
    last = json.loads(out.splitlines()[-1])
    assert last["results"] == [result().as_json()]
    assert {"cpu", "cores", "torch_threads", "versions", "code"} <= set(last["machine"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sorting", "unknown measurement 'sorting'; known: autoregressive"),
        ("--tokens 1", "tokens must be >= 2"),
        ("--repeats 0", "repeats must be >= 1, got 0"),
        ("--dtype float8", "argument --dtype: invalid choice: 'float8'"),
        ("--preset gpt-9", "unknown preset 'gpt-9'; known:"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(capsys, line: str, message: str) -> None:
    assert bench.main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


@pytest.mark.parametrize("subject", speed.SUBJECTS)
def test_every_subject_has_a_measurement(subject: str) -> None:
    assert callable(speed.get(subject))


def test_arms_of_autoregressive_do_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny("qwen3")
    monkeypatch.setattr(autoregressive, "load_target", lambda name, dtype: target)
    monkeypatch.setattr(autoregressive, "benchmark_prompt", lambda target: random_ids(9))
    (found,) = autoregressive.measure(Settings(dtypes=("float32",), tokens=6, repeats=2))
    assert set(found.seconds) == {"AR", "generate", "floor"}
    assert all(len(times) == 2 and min(times) > 0 for times in found.seconds.values())
    assert [ratio.aim for ratio in found.ratios] == [1.05, 0.85]


@pytest.mark.parametrize("family", ["llama", "qwen3", "hybrid"])
def test_floor_reads_every_weight_once(family: str) -> None:
    """All parameters but the norms, the embedding (one row is read) and the small recurrent ones."""
    target = tiny(family)
    matrices = autoregressive.weight_matrices(target)
    places = {(m.untyped_storage().data_ptr(), m.storage_offset()) for m in matrices}
    assert len(places) == len(matrices)
    every = [module.weight.numel() for module in target.hf.modules() if isinstance(module, torch.nn.Linear)]
    assert sum(matrix.numel() for matrix in matrices) == sum(every)
