"""Runs side by side: paired figures on common prompts, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import fake_world
import pytest

from harness import compare
from harness.compare import Run, main
from harness.records.record import Record
from harness.run import main as run_main
from methods.errors import UsageError


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_world.install(monkeypatch.setattr)


def run(directory: Path, line: str) -> Path:
    run_main([*line.split(), "--max-new-tokens", "16", "--results", str(directory)])
    return directory


def lines(capsys: pytest.CaptureFixture, *runs: Path) -> list[dict]:
    capsys.readouterr()
    assert main([str(path) for path in runs]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "wall-clock / first" in out[0]
    return json.loads(out[-1])["comparison"]


def test_two_methods_on_common_prompts(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    slow = run(tmp_path / "ar", "--method autoregressive --benchmark gsm8k")
    fast = run(tmp_path / "draft", "--method fake-draft --benchmark gsm8k --prompts 3")
    first, second = lines(capsys, slow, fast)
    assert (first["prompts"], second["prompts"], second["same_output"]) == (3, 3, "3/3")
    assert first["S"]["value"] == 1 and "S_ratio" not in first
    assert second["S_ratio"]["value"] == pytest.approx(second["S"]["value"])
    # Three tokens per step, at the same pace per token in a block as AR's: see FakeMethod.
    assert first["wallclock_speedup"]["value"] == 1 and "wallclock_ratio" not in first
    assert second["wallclock_ratio"]["value"] == pytest.approx(3.0)
    assert second["wallclock_ratio"]["interval"] == pytest.approx((3.0, 3.0))
    assert second["ar_tok_per_s"]["value"] == pytest.approx(first["tok_per_s"]["value"]) == pytest.approx(100)
    assert second["lossless"] == "exact"


def slowed(run: Run, name: str, *factors: float) -> Run:
    """``run`` as on a machine that was busier: seconds of its i-th prompt, AR's too, times factor i."""

    def later(records: list[Record]) -> list[Record]:
        return [
            dataclasses.replace(record, decode_s=(record.decode_s or 0) * factors[i % len(factors)])
            for i, record in enumerate(records)
        ]

    return dataclasses.replace(run, name=name, records=later(run.records), baseline=later(run.baseline))


def test_a_busier_machine_is_no_faster_method(tmp_path: Path) -> None:
    """One method twice, once on a machine five times slower: seconds divided say 5.00."""
    quiet = Run.read(run(tmp_path / "a", "--method fake-draft --benchmark gsm8k"))
    for base, other in ((slowed(quiet, "busy", 5), quiet), (quiet, slowed(quiet, "busy", 5))):
        first, second = compare.compare([base, other])
        assert first["wallclock_speedup"]["value"] == second["wallclock_speedup"]["value"] == pytest.approx(3)
        assert second["seconds_not_compared"].endswith("the machine was not in the same state")
        assert "at 20.0 [20.0, 20.0] tok/s beside busy" in second["seconds_not_compared"]
        assert [name for name in second if name.endswith("_ratio")] == ["S_ratio"]


def test_states_within_the_intervals_cancel_out(tmp_path: Path) -> None:
    """Busier during every other prompt, one time more than the other: AR's intervals overlap, and the
    method's own speedup is the same."""
    calm = Run.read(run(tmp_path / "a", "--method fake-draft --benchmark gsm8k"))
    one, other = slowed(calm, "one", 1, 2), slowed(calm, "other", 2, 1, 1.5)
    second = compare.compare([one, other])[1]
    assert "seconds_not_compared" not in second
    assert second["wallclock_ratio"]["value"] == pytest.approx(1)
    faster = dataclasses.replace(
        other, records=[dataclasses.replace(r, decode_s=(r.decode_s or 0) / 2) for r in other.records]
    )
    assert compare.compare([one, faster])[1]["wallclock_ratio"]["value"] == pytest.approx(2)


def test_no_ratio_without_ar_beside_both_runs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with_ar = run(tmp_path / "a", "--method fake-draft --benchmark gsm8k")
    alone = run(tmp_path / "alone", "--method fake-draft --benchmark gsm8k --no-baseline")
    second = lines(capsys, with_ar, alone)[1]
    assert second["seconds_not_compared"] == "no times of AR beside alone" and "wallclock_ratio" not in second
    assert main([str(with_ar), str(alone)]) == 0
    said = "wall-clock / first: none for alone at T = 0: no times of AR beside alone\n"
    assert said in capsys.readouterr().out


def test_seconds_of_other_machines_are_not_related(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    here = run(tmp_path / "ar", "--method autoregressive --benchmark gsm8k --prompts 2")
    there = run(tmp_path / "draft", "--method fake-draft --benchmark gsm8k --prompts 2")
    manifest = json.loads((there / "manifest.json").read_text())
    manifest["machine"]["cpu"] = "Another"
    (there / "manifest.json").write_text(json.dumps(manifest))
    second = lines(capsys, here, there)[1]
    assert "wallclock_ratio" not in second and second["S_ratio"]["value"] > 1
    assert main([str(here), str(there)]) == 0
    said = "wall-clock / first: none for draft at T = 0: measured on different machines ("
    assert said in capsys.readouterr().out


def test_outputs_of_other_seeds_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    drawn = "--method autoregressive --benchmark gsm8k --prompts 2 --temperature 1 --seed"
    one, two = (run(tmp_path / str(seed), f"{drawn} {seed}") for seed in (1, 2))
    assert "same_output" not in lines(capsys, one, two)[1]


def test_an_output_that_differs_is_seen(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    good = run(tmp_path / "ar", "--method autoregressive --benchmark gsm8k --prompts 2")
    wrong = run(tmp_path / "wrong", "--method fake-wrong --benchmark gsm8k --prompts 2")
    assert lines(capsys, good, wrong)[1]["same_output"] == "0/2"


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ("--turns all", "turns"),
        ("--max-new-tokens 8", "max_new_tokens"),
        ("--dtype bfloat16", "dtype"),
        ("--top-k 3 --temperature 1", "top_k"),
    ],
)
def test_runs_that_mean_different_things_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture, other: str, field: str
) -> None:
    base = run(tmp_path / "a", "--method autoregressive --benchmark gsm8k --prompts 2")
    argv = [
        *["--method", "autoregressive", "--benchmark", "gsm8k", "--prompts", "2", "--max-new-tokens", "16"]
    ]
    run_main([*argv, *other.split(), "--results", str(tmp_path / "b")])
    capsys.readouterr()
    assert main([str(base), str(tmp_path / "b")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"cannot be compared: {field} is" in error


def test_another_target_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Run.read(run(tmp_path / "a", "--method autoregressive --benchmark gsm8k --prompts 2"))
    monkeypatch.setattr(fake_world.FakeTarget, "fingerprint", lambda self: {"name": "other"})
    other = Run.read(run(tmp_path / "b", "--method autoregressive --benchmark gsm8k --prompts 2"))
    with pytest.raises(UsageError, match="target is"):
        compare.compare([base, other])


def test_other_prompts_under_the_same_names_are_refused(tmp_path: Path) -> None:
    base = Run.read(run(tmp_path / "a", "--method autoregressive --benchmark gsm8k --prompts 2"))
    other = dataclasses.replace(
        base, name="b", records=[dataclasses.replace(r, prompt_ids=[*r.prompt_ids, 1]) for r in base.records]
    )
    with pytest.raises(UsageError, match="is another prompt in b than in a"):
        compare.compare([base, other])


def test_nothing_in_common_one_run_or_no_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    one = run(tmp_path / "a", "--method autoregressive --benchmark gsm8k --prompts 1")
    two = run(tmp_path / "b", "--method autoregressive --benchmark humaneval --prompts 1")
    for argv, message in (
        ([one, two], "no completed prompt in common"),
        ([one], "at least two runs"),
        ([one, tmp_path / "none"], "cannot read"),
    ):
        capsys.readouterr()
        assert main([str(path) for path in argv]) == 2
        assert message in capsys.readouterr().err
