"""Runs side by side: paired figures on common prompts, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import fake_world
import pytest

from harness import compare
from harness.compare import Run, main
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
    assert "tok/s / first" in out[0]
    return json.loads(out[-1])["comparison"]


def test_two_methods_on_common_prompts(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    slow = run(tmp_path / "ar", "--method autoregressive --benchmark gsm8k")
    fast = run(tmp_path / "draft", "--method fake-draft --benchmark gsm8k --prompts 3")
    first, second = lines(capsys, slow, fast)
    assert (first["prompts"], second["prompts"], second["same_output"]) == (3, 3, "3/3")
    assert first["S"]["value"] == 1 and "S_ratio" not in first
    assert second["S_ratio"]["value"] == pytest.approx(second["S"]["value"])
    # Three tokens per step, at the same pace per token in a block as AR's: see FakeMethod.
    assert second["tok_per_s_ratio"]["value"] == pytest.approx(3.0)
    assert second["tok_per_s_ratio"]["interval"] == pytest.approx((3.0, 3.0))
    assert second["lossless"] == "exact"


def test_seconds_of_other_machines_are_not_related(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    here = run(tmp_path / "ar", "--method autoregressive --benchmark gsm8k --prompts 2")
    there = run(tmp_path / "draft", "--method fake-draft --benchmark gsm8k --prompts 2")
    manifest = json.loads((there / "manifest.json").read_text())
    manifest["machine"]["cpu"] = "Another"
    (there / "manifest.json").write_text(json.dumps(manifest))
    second = lines(capsys, here, there)[1]
    assert "tok_per_s_ratio" not in second and second["S_ratio"]["value"] > 1
    assert main([str(here), str(there)]) == 0
    assert "tok/s / first: none between runs measured on different machines (" in capsys.readouterr().out


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
