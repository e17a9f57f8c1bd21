"""The drafters that come with the repository measure what their JSON says, far more than random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.arguments import parse
from harness.config.drafters import preset_checkpoint
from harness.config.presets import load_preset
from harness.execution import replay, runner
from harness.execution.plan import make_plan
from harness.training.publish import measure, run_options
from methods.drafters import checkpoint
from methods.drafters.source import resolve, shipped

PRESET = "smollm2-135m"
SOURCES = shipped(f"shipped:{PRESET}/*")
LIMIT_MB = 130
COMPARED = (("spd", {"n": "8", "draft_layers": "3"}), ("eagle3", {}), ("ppsd", {"n": "8"}))
OTHERS = (
    ("spd", {"n": "4", "draft_layers": "4"}),
    ("spd", {"n": "8", "draft_layers": "1"}),
    ("spd", {"n": "8", "draft_layers": "2"}),
    ("spd", {"n": "8", "draft_layers": "3", "schedule": "post-step"}),
    ("spd", {"n": "16", "draft_layers": "1"}),
    ("ppsd", {"n": "4"}),
    ("ppsd", {"n": "16"}),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One place for the runs, so that AR's outputs are computed once."""
    return tmp_path_factory.mktemp("runs")


def test_the_drafters_are_there_and_small_enough() -> None:
    assert {_chosen(shape) for shape in (*COMPARED, *OTHERS)} == set(SOURCES)
    files = [file for source in SOURCES for file in resolve(source).iterdir()]
    assert sum(file.stat().st_size for file in files) <= LIMIT_MB * 1e6


@pytest.mark.parametrize("shapes", [COMPARED, OTHERS])
def test_one_run_trained_them_on_the_same_data(shapes: Sequence[tuple[str, dict[str, str]]]) -> None:
    trained = [_config(_chosen(shape)).training for shape in shapes]
    for equal in ("tokens_seen", "data", "draft_vocabulary", "recipe", "seed", "trained_together"):
        assert all(each[equal] == trained[0][equal] for each in trained), equal


def test_the_two_runs_differ_in_the_answers_and_the_arithmetic_only() -> None:
    first, second = (_config(_chosen(shapes[0])) for shapes in (COMPARED, OTHERS))
    assert first.draft_ids == second.draft_ids
    for equal in ("token_budget", "seed"):
        assert first.training[equal] == second.training[equal], equal
    recipes = [{**each.training["recipe"], "compute": None} for each in (first, second)]
    assert recipes[0] == recipes[1]
    answers, others = zip(*(each.training["data"]["sources"] for each in (first, second)), strict=True)
    assert others[0] == others[1]
    for equal in ("generated_from", "temperatures", "seed", "exclusion"):
        assert answers[0][equal] == answers[1][equal], equal


@pytest.mark.parametrize("source", SOURCES)
def test_a_run_without_a_checkpoint_takes_it(source: str) -> None:
    config = _config(source)
    options = {name: str(value) for name, value in run_options(config).items()}
    assert preset_checkpoint(load_preset(PRESET), config.method, options) == source


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_its_figures_are_reproduced(source: str, runs: Path) -> None:
    config = _config(source)
    stated = config.training["measured"]
    found = measure(source, config, PRESET, runs)
    for name in ("step_acceptance", "S0"):
        for benchmark, figures in stated["by_benchmark"].items():
            assert found["by_benchmark"][benchmark][name] == pytest.approx(figures[name], abs=0.02), benchmark
    overall = stated["by_benchmark"]["overall"]["step_acceptance"]
    assert overall >= stated["untrained"]["step_acceptance"] + 0.2


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_replay_equals_decoding(source: str, runs: Path) -> None:
    config = _config(source)
    options = [f"--option={name}={value}" for name, value in run_options(config).items()]
    argv = [
        "--method",
        config.method,
        *options,
        "--preset",
        PRESET,
        "--prompts",
        "2",
        "--max-new-tokens",
        "16",
    ]
    plans = {
        mode: replace(plan, directory=runs / mode / plan.directory.name)
        for mode in ("decode", "replay")
        for plan in [make_plan(parse([*argv, "--mode", mode, *(["--no-baseline"] * (mode == "decode"))]))]
    }
    decoded = runner.run(plans["decode"], argv).records
    (replayed,) = replay.run([plans["replay"]], argv)
    assert len(decoded) == 6
    for ours, theirs in zip(replayed.records, decoded, strict=True):
        assert (ours.prompt_id, ours.output_ids, ours.steps) == (
            theirs.prompt_id,
            theirs.output_ids,
            theirs.steps,
        )


def _chosen(shape: tuple[str, dict[str, str]]) -> str:
    chosen = preset_checkpoint(load_preset(PRESET), *shape)
    assert chosen is not None
    return chosen


def _config(source: str) -> checkpoint.DraftConfig:
    directory = resolve(source)
    return checkpoint.read(directory, checkpoint.method_of(directory))[0]
