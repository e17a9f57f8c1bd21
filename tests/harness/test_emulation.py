"""The real runtime with timed waits: the schedule of the trace, and clocks that add up."""

import json

import pytest

from harness import project as command
from harness.config.profiles import load_profile
from harness.devices.emulation import emulate
from harness.devices.projection import Devices, project
from harness.execution.timing import by_fill, chrome_trace, cycle_times, steady
from methods.core import Step
from methods.pipeline.distributed.progress import PHASES, Span
from methods.pipeline.distributed.ranks import Ranks
from methods.pipeline.layout import Layout

TRACE = [True, True, False, True, True, True, False]


@pytest.fixture(scope="module")
def run():
    devices = Devices((0.02, 0.02), 0.01)
    run = emulate(load_profile("qwen3.5-4b"), devices, TRACE, 24, timings=True)
    yield run, devices
    Ranks.of(Layout(2, True)).close()


@pytest.mark.slow
def test_an_emulated_run_follows_the_trace(run):
    emulated, devices = run
    projected = project(TRACE, 24, devices)
    steps = emulated.result.steps
    assert (emulated.tokens, len(steps)) == (24, projected.cycles)
    assert [step.accepted > 0 for step in steps if step.drafted] == (TRACE * 4)[
        : sum(s.drafted for s in steps)
    ]


@pytest.mark.slow
def test_an_emulated_run_cannot_beat_its_devices(run):
    emulated, devices = run
    assert emulated.result.decode_s > 0.98 * project(TRACE, 24, devices).seconds
    assert emulated.speedup(0.04) < project(TRACE, 24, devices).speedup(0.04) * 1.02


@pytest.mark.slow
def test_phases_account_for_the_whole_run(run):
    emulated, _ = run
    steps = emulated.result.steps
    assert sum(sum(step.phases.values()) for step in steps) == pytest.approx(
        emulated.result.decode_s, rel=0.05
    )
    working = [step.phases["compute"] for step in steps if step.nodes[0]]
    assert min(working) >= 0.0199


@pytest.mark.slow
def test_the_trace_shows_every_rank(run):
    emulated, _ = run
    trace = chrome_trace(Layout(2, True), [report.spans for report in emulated.reports])
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert names == {"rank 0 (stage 1)", "rank 1 (stage 2)", "rank 2 (drafter)"}
    drafts = [e for e in trace["traceEvents"] if e["name"] == "draft"]
    assert drafts and {e["pid"] for e in drafts} == {2}
    assert all(event["dur"] >= 9900 for event in drafts if event["dur"] > 1000)


def step(nodes, wait) -> Step:
    phases = dict.fromkeys(PHASES, 0.0) | {"wait": wait, "compute": 1.0}
    return Step(drafted=0, accepted=0, emitted=0, target_layers=1, draft_layers=0, nodes=nodes, phases=phases)


def test_cycles_are_grouped_by_fill_level():
    steps = [step((1, 0), 1.0), step((1, 1), 2.0), step((1, 1), 4.0), step((1, 0), 3.0)]
    fills = by_fill(steps)
    assert {fill: times.cycles for fill, times in fills.items()} == {1: 2, 2: 2}
    assert (fills[1].mean, fills[2].median) == (3.0, 4.0)
    assert fills[2].phases["wait"] == 3.0
    assert steady(steps) == [steps[2]]
    assert cycle_times([]) is None


def test_a_span_keeps_its_cycle_and_unit():
    (name, event) = chrome_trace(Layout(1, False), [[Span(3, "send", 2.0, 0.5)]])["traceEvents"]
    assert name["args"]["name"] == "rank 0 (stage 1 and drafter)"
    assert (event["ts"], event["dur"], event["args"]) == (2e6, 5e5, {"cycle": 3})


def test_the_command_projects_without_starting_anything(capsys):
    assert command.main(["--acceptance", "0.81", "--n", "8", "--tokens", "200"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["rows"][0]["kind"] == "projected"
    assert 2.4 < line["rows"][0]["speedup"] < 3.0


def test_a_projection_is_drawn(tmp_path, capsys):
    picture = tmp_path / "speedups.svg"
    argv = ["--acceptance", "0.8", "--tokens", "60", "--plot", str(picture)]
    assert command.main(argv) == 0
    capsys.readouterr()
    text = picture.read_text()
    assert text.startswith("<?xml") and text.count('id="line2d') > 4
    assert command.main([*argv[:-1], str(tmp_path / "missing" / "x.svg")]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "give either --records DIR or --acceptance A"),
        (["--acceptance", "2"], "--acceptance must be in [0, 1], got 2"),
        (["--acceptance", "1", "--stage-layers", "5;9", "--n", "4"], "names 2 stages, but n = 4"),
        (["--acceptance", "1", "--stage-layers", "a;b", "--n", "4"], "expects numbers"),
        (["--acceptance", "1", "--layout", "x"], "unknown layout 'x'; allowed: n+1, n"),
        (["--acceptance", "1", "--emulate", "--draft-ms", "9000"], "works 9 s at a time cannot be emulated"),
        (
            ["--acceptance", "1", "--plot", "x.doc"],
            "x.doc: unknown kind of picture; allowed endings: ",
        ),
        (["--acceptance", "1", "--timings", "x"], "--timings is of emulated runs: give --emulate"),
        (
            ["--acceptance", "1", "--tokens", "1" + "0" * 400],
            "argument --tokens: must be a whole number >= 1",
        ),
        (["--n", "four"], "argument --n: must be a whole number >= 1, got four"),
    ],
)
def test_bad_input_ends_with_one_line_and_code_2(argv, message, capsys):
    assert command.main(argv) == 2
    assert message in capsys.readouterr().err
