"""A recorded run on the devices of a profile: same trace, other seconds, records like any other."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from replay_world import install

from harness import project as project_command
from harness.analysis.summary import rows
from harness.cli.arguments import parse
from harness.config import profiles
from harness.config.profiles import load_profile
from harness.devices import device_runs
from harness.devices.projection import project, verdicts
from harness.execution import run_directory, runner
from harness.execution.plan import make_plan
from harness.execution.replay import run as replay
from harness.records.files import read_baseline, read_records
from harness.records.manifest import read_manifest
from harness.report import __main__ as report
from harness.run import main
from methods.pipeline.distributed import ranks as ranks_module

LINE = "--prompts 2 --max-new-tokens 24 --benchmark gsm8k --temperature 0 --temperature 1 --mode replay"
SPD = "--method spd --untrained --n 4 --draft-layers 4"
PROFILE = "qwen3.5-4b"


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def recorded(directory: Path, method: str = SPD):
    plan = make_plan(parse([*LINE.split(), *method.split(), "--results", str(directory / "recorded")]))
    return plan, replay([plan], [])[0].records


def test_projected_records_have_the_trace_and_the_devices_seconds(tmp_path: Path) -> None:
    plan, traces = recorded(tmp_path)
    job = device_runs.device_run(plan, "project", PROFILE)
    outcome = device_runs.run(job, traces, [])
    assert job.plan.directory.parent == tmp_path and "project" in job.plan.directory.name
    assert outcome.records == read_records(job.plan.directory)
    assert outcome.baseline == read_baseline(job.plan.directory)
    profile = load_profile(PROFILE)
    for trace, found, ar in zip(traces, outcome.records, outcome.baseline, strict=True):
        assert (found.key, found.steps, found.lossless) == (trace.key, trace.steps, trace.lossless)
        assert (found.mode, found.prefill_s, found.expected) == ("project", None, None)
        expected = project(verdicts(trace.steps), trace.decoded, job.devices)
        assert found.decode_s == expected.seconds and expected.cycles == len(trace.steps)
        assert ar.decode_s == pytest.approx(trace.decoded * profile.ar_s)
    line = rows(outcome.records, outcome.baseline)[0]
    tokens, seconds = line["tokens"], sum(r.decode_s for r in outcome.records if r.temperature == 0)
    assert line["wallclock_speedup"] == pytest.approx(tokens * profile.ar_s / seconds)


def test_a_report_of_emulated_seconds_calls_them_so(tmp_path: Path, capsys) -> None:
    page = tmp_path / "report.html"
    plan, records = recorded(tmp_path)
    job = device_runs.device_run(plan, "project", PROFILE)
    device_runs.run(job, records, [])
    assert report.main([str(job.plan.directory), "--output", str(page), "--texts", "0"]) == 0
    text = page.read_text(encoding="utf-8")
    assert "<th>projected wall-clock</th>" in text and "S0, S and projected wall-clock" in text
    assert "measured wall-clock" not in text


def test_a_projection_uses_the_recorded_drafters_layers_and_layout(tmp_path: Path, capsys) -> None:
    line = LINE.replace("--temperature 1 ", "") + " --method ppsd --untrained --n 4 --option layout=n"
    plan = make_plan(parse([*line.split(), "--results", str(tmp_path)]))
    replay([plan], [])
    argv = ["--records", str(tmp_path), "--n", "4"]
    assert project_command.main(argv) == 2
    assert "no figures for n = 4 with Ls = 1" in capsys.readouterr().err
    for stages in (argv, argv[:2]):  # n, too, is the records' unless it is given
        assert project_command.main([*stages, "--draft-ms", "1"]) == 0
        (row,) = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
        assert row["layout"] == "n" and row["n"] == 4


def test_what_is_stored_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, traces = recorded(tmp_path)
    job = device_runs.device_run(plan, "project", PROFILE)
    part = device_runs.run(job, traces[:1], [])
    assert len(part.records) == 1
    whole = device_runs.run(job, traces, [])
    assert len(whole.records) == len(traces)
    monkeypatch.setattr(device_runs, "_projected", None)
    assert device_runs.run(job, traces, []) == whole


def test_a_failed_prompt_stays_failed(tmp_path: Path) -> None:
    plan, (first, *_) = recorded(tmp_path)
    broken = dataclasses.replace(first, error="no luck")
    outcome = device_runs.run(device_runs.device_run(plan, "project", PROFILE), [broken], [])
    assert outcome.records[0].error == "the recorded run failed: no luck"


def test_another_profile_is_another_run(tmp_path: Path) -> None:
    plan, _ = recorded(tmp_path)
    text = Path(profiles.__file__).with_name(f"{PROFILE}.toml").read_text()
    (tmp_path / "mine.toml").write_text(text.replace("hop_s = 0.0", "hop_s = 0.001"))
    directories = {
        device_runs.device_run(plan, "project", name).plan.directory
        for name in (PROFILE, str(tmp_path / "mine.toml"))
    }
    assert len(directories) == 2


def test_uneven_stages_and_the_drafters_place_become_devices(tmp_path: Path) -> None:
    plan, _ = recorded(tmp_path, f"{SPD} --layout n --option stage_layers=1;3;2;2")
    devices = device_runs.devices_of_plan(plan, load_profile(PROFILE))
    stage_s = load_profile(PROFILE).pipeline(4).stage_s
    assert devices.stage_s == pytest.approx([stage_s * 4 * layers / 8 for layers in (1, 3, 2, 2)])
    assert devices.beside_first and not devices.series
    plan, _ = recorded(tmp_path / "post", f"{SPD} --schedule post-step")
    devices = device_runs.devices_of_plan(plan, load_profile(PROFILE))
    assert devices.series and not devices.beside_first and set(devices.stage_s) == {stage_s}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{SPD} --emulate h100", "unknown profile 'h100'; allowed: qwen3.5-4b, or a .toml file"),
        ("--method ngram --emulate qwen3.5-4b", "run chains (width 1) of a pipeline method: ppsd, spd"),
        (
            "--method spd --untrained --n 8 --emulate qwen3.5-4b --draft-layers 2",
            "n = 8 with Ls = 2; allowed",
        ),
        (f"{SPD} --width 1 4 --emulate qwen3.5-4b --mode decode", "got 'spd' with widths [1, 4]"),
        (f"{SPD} --timings", "--timings needs a process per stage: --runtime distributed, or --emulate"),
        ("--method ngram --timings", "--timings needs a process per stage"),
        (f"{SPD} --runtime distributed --timings", "--timings needs a process per stage"),
    ],
)
def test_what_cannot_be_emulated_is_refused_before_anything_runs(
    line: str, message: str, tmp_path: Path, capsys
) -> None:
    argv = [*LINE.split(), *line.split(), "--results", str(tmp_path / "r")]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_emulated_run_follows_its_traces_and_keeps_its_timings(tmp_path: Path, capsys) -> None:
    results = tmp_path / "emulated"
    argv = [*LINE.split(), *SPD.split(), "--emulate", PROFILE, "--timings", "--results", str(results)]
    try:
        assert main(argv) == 0
    finally:
        ranks_module.close()
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["run"] == str(results)
    (source,) = [path for path in tmp_path.iterdir() if "spd" in path.name]
    traces, found = read_records(source), read_records(results)
    assert [record.steps for record in found] == [record.steps for record in traces]
    profile = load_profile(PROFILE)
    stage_s = profile.pipeline(4).stage_s
    for record in found:
        # every cycle runs a stage on its own or beside others, and no cycle is shorter than one
        assert record.decode_s > 0.98 * stage_s * len(record.steps)
        assert sum(record.phases.values()) == pytest.approx(record.decode_s, rel=0.1)
    timings = json.loads((results / "timings.json").read_text())
    assert set(timings) == {
        "rank 0 (stage 1)",
        *(f"rank {r} (stage {r + 1})" for r in (1, 2, 3)),
        "rank 4 (drafter)",
    }
    cycles = sum(len(record.steps) for record in found)
    for levels in timings.values():
        assert sum(times["cycles"] for level, times in levels.items() if level != "steady") == cycles
        assert all(
            set(t["phases"]) >= {"wait", "compute", "send", "verify", "control"} for t in levels.values() if t
        )
    assert timings["rank 0 (stage 1)"]["1"]["phases"]["compute"] > 0  # a fill begins on stage 1
    trace = json.loads((results / "trace.json").read_text())
    assert {event["pid"] for event in trace["traceEvents"]} == set(range(5))
    assert main(argv) == 0, "a second start has nothing to do and needs no process"
    assert (results / "timings.jsonl").read_bytes().count(b"\n") == len(found)
    assert run_directory.record_files(results, "records") == [results / "records.jsonl"]


@pytest.mark.slow
def test_a_measured_run_with_a_process_per_stage_keeps_its_timings(tmp_path: Path) -> None:
    line = "--method spd --untrained --n 2 --layout n --runtime distributed --timings --benchmark gsm8k"
    argv = [*line.split(), "--prompts", "2", "--max-new-tokens", "10", "--results", str(tmp_path)]
    try:
        assert main(argv) == 0
    finally:
        ranks_module.close()
    records = read_records(tmp_path)
    assert [(record.mode, record.lossless) for record in records] == [("decode", "exact")] * 2
    timings = json.loads((tmp_path / "timings.json").read_text())
    assert set(timings) == {"rank 0 (stage 1 and drafter)", "rank 1 (stage 2)"}
    assert timings["rank 1 (stage 2)"]["1"]["phases"]["draft"] == 0
    assert max(
        times["phases"]["draft"] for times in timings["rank 0 (stage 1 and drafter)"].values() if times
    )
    assert (tmp_path / "trace.json").exists() and read_manifest(tmp_path)["config"]["timings"]


def test_ar_beside_a_process_per_stage_has_the_threads_of_a_rank() -> None:
    def threads(**facts: int) -> int:
        plan = SimpleNamespace(config={"widths": {"1": {"facts": facts}}})
        with runner._as_many_threads_as_a_rank(plan):
            return torch.get_num_threads()

    torch.set_num_threads(2)
    try:
        assert threads(ranks=9, threads=1) == 1 and torch.get_num_threads() == 2
        assert threads() == 2
    finally:
        torch.set_num_threads(1)
