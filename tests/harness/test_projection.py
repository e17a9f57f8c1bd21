"""The projection against schedules small enough to time by hand, and the paper's own figures."""

import csv
from pathlib import Path

import pytest
from test_metrics import record

from harness.config.profiles import load_profile, parse_profile, profile_names
from harness.devices.projection import Devices, project, recorded_verdicts, verdicts
from harness.records.record import StepArrays
from methods.errors import UsageError

PUBLISHED = Path(__file__).parents[2] / "paper_tables/published/w1_theory_and_wallclock.csv"
ALWAYS, NEVER = [True], [False]


def seconds(accepted, tokens, **devices) -> float:
    return project(accepted, tokens, Devices(**devices)).seconds


def test_without_rejections_one_token_leaves_every_stage_time():
    # fill: n cycles to the first verdict, then one token a cycle
    found = project(ALWAYS, 10, Devices((2.0, 2.0, 2.0), 1.0))
    assert (found.cycles, found.seconds) == (12, 24.0)
    assert found.speedup(ar_s=6.0) == pytest.approx(60 / 24)


def test_every_rejection_costs_a_fill():
    assert seconds(NEVER, 4, stage_s=(2.0, 2.0, 2.0), draft_s=1.0) == 4 * 3 * 2.0


def test_the_slowest_device_sets_the_pace():
    # 20 tokens behind the fill of 1 + 3 + 1, then 3 a token
    assert seconds(ALWAYS, 20, stage_s=(1.0, 3.0, 1.0), draft_s=0.5) == pytest.approx(5 + 19 * 3)
    slow_drafter = seconds(ALWAYS, 100, stage_s=(1.0, 1.0), draft_s=4.0)
    assert slow_drafter == pytest.approx(4.0 * 100, rel=0.05)


def test_a_hop_is_paid_once_a_cycle():
    plain = seconds(ALWAYS, 200, stage_s=(1.0,) * 4, draft_s=0.5)
    hops = seconds(ALWAYS, 200, stage_s=(1.0,) * 4, draft_s=0.5, hop_s=0.1)
    assert hops / plain == pytest.approx(1.1, rel=0.01)


def test_verification_waits_for_the_last_stage_only():
    # a lighter last stage hides norm and head
    assert seconds(ALWAYS, 50, stage_s=(2.0, 1.0), draft_s=0.0, verify_s=1.0) == pytest.approx(4 + 49 * 2)


def test_a_drafter_in_series_or_beside_stage_1_adds_to_the_cycle():
    series = seconds(ALWAYS, 100, stage_s=(1.0, 1.0), draft_s=0.5, series=True)
    beside = seconds(ALWAYS, 100, stage_s=(1.0, 1.0), draft_s=0.5, beside_first=True)
    assert series == pytest.approx(150, rel=0.03)
    assert beside == pytest.approx(150, rel=0.03)


@pytest.mark.parametrize(("n", "draft_layers"), [(4, 4), (8, 3)])
def test_the_papers_wallclock_follows_from_its_stage_times_and_acceptance(n, draft_layers):
    profile = load_profile("qwen3.5-4b")
    wanted = {
        "model": profile.target, "training_mix": "default", "temperature": "0", "method": "spd",
        "n": str(n), "draft_layers": str(draft_layers), "benchmark": "overall",
    }  # fmt: skip
    with PUBLISHED.open() as file:
        rows = [row for row in csv.DictReader(file) if wanted.items() <= row.items()]
    (row,) = rows
    s, wallclock = float(row["S"]), float(row["wallclock_speedup"])
    acceptance = 1 - (n / s - 1) / (n - 1)  # S = n / (1 + (n - 1)(1 - a))
    accepted = [int((i + 1) * acceptance) > int(i * acceptance) for i in range(2000)]
    times = profile.pipeline(n)
    found = project(accepted, 2000, Devices((times.stage_s,) * n, times.draft_s))
    assert found.tokens * n / found.cycles == pytest.approx(s, rel=0.02)
    assert found.speedup(profile.ar_s) == pytest.approx(wallclock, rel=0.15)


def test_verdicts_of_a_trace():
    drafted, accepted = [0, 1, 1, 0, 1], [0, 1, 0, 0, 1]
    layers, none, nodes = [1.0] * 5, [0.0] * 5, [3] * 5
    steps = StepArrays(drafted, accepted, [0, 1, 1, 0, 1], layers, none, drafted, nodes)
    assert verdicts(steps) == [True, False, True]
    with pytest.raises(UsageError, match="no verification"):
        recorded_verdicts([])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([{"stages": 1, "method": "eagle3"}], "runs of a pipeline; these records are of 'eagle3'"),
        ([{"width": 4}], "runs of width 1"),
        ([{}, {"temperature": 1.0}], "runs at one temperature"),
    ],
)
def test_records_that_no_pipeline_of_chains_made(changes, message):
    records = [record("p", [0, 1], accepted=[0, 1], **{"stages": 3, **change}) for change in changes]
    with pytest.raises(UsageError, match=message):
        recorded_verdicts(records)


def test_impossible_projections_are_refused():
    with pytest.raises(UsageError, match="at least one token"):
        project(ALWAYS, 0, Devices((1.0,), 1.0))
    with pytest.raises(UsageError, match="no negative time"):
        Devices((1.0,), -1.0)


def test_every_shipped_profile_loads():
    for name in profile_names():
        assert load_profile(name).pipelines


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("ar_s = 0.0284", ""), "key ar_s is missing"),
        (("jitter = 0.0", "jitter = 0.0\nspeed = 1"), "key speed is unknown"),
        (("hop_s = 0.0", 'hop_s = "fast"'), "key hop_s is 'fast'; expected float"),
        (("n = 8", "n = -8"), "key n is -8; expected int"),
        (("[[pipeline]]", "[[pipes]]"), "pipeline must be a list"),
    ],
)
def test_a_faulty_profile_is_refused_by_its_key(change, message):
    text = (Path(__file__).parents[2] / "harness/config/profiles/qwen3.5-4b.toml").read_text()
    with pytest.raises(UsageError, match=message):
        parse_profile("mine", text.replace(*change).encode())


def test_unknown_profiles_and_depths_name_what_there_is():
    with pytest.raises(UsageError, match=r"unknown profile 'h100'; allowed: qwen3\.5-4b"):
        load_profile("h100")
    with pytest.raises(UsageError, match="n = 16; allowed: n = 4 with Ls = 4, n = 8 with Ls = 3"):
        load_profile("qwen3.5-4b").pipeline(16)
    with pytest.raises(UsageError, match="no figures for n = 8 with Ls = 4; allowed"):
        load_profile("qwen3.5-4b").pipeline(8, draft_layers=4)
