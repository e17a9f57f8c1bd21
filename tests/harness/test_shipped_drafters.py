"""The drafters that come with the repository measure what their JSON says, far more than random ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness import replay, runner
from harness.cli import parse
from harness.drafters import preset_checkpoint
from harness.plan import make_plan
from harness.presets import load_preset
from harness.training.publish import measure, run_options
from methods.drafting import checkpoint
from methods.drafting.source import resolve, shipped

PRESET = "smollm2-135m"
SOURCES = shipped(f"shipped:{PRESET}/*")
LIMIT_MB = 130


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One place for the runs, so that AR's outputs are computed once."""
    return tmp_path_factory.mktemp("runs")


def test_the_compared_three_are_there_and_small_enough() -> None:
    preset = load_preset(PRESET)
    asked = {"spd": {"n": "8", "draft_layers": "3"}, "eagle3": {}, "ppsd": {"n": "8"}}
    assert {preset_checkpoint(preset, *pair) for pair in asked.items()} <= set(SOURCES)
    files = [file for source in SOURCES for file in resolve(source).iterdir()]
    assert sum(file.stat().st_size for file in files) <= LIMIT_MB * 1e6


def test_all_saw_the_same_data() -> None:
    configs = [_config(source) for source in SOURCES]
    for equal in ("tokens_seen", "data", "draft_vocabulary", "recipe", "seed"):
        values = [config.training[equal] for config in configs]
        assert all(value == values[0] for value in values), equal
    assert all(config.draft_ids == configs[0].draft_ids for config in configs)


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


def _config(source: str) -> checkpoint.DraftConfig:
    directory = resolve(source)
    return checkpoint.read(directory, checkpoint.method_of(directory))[0]
