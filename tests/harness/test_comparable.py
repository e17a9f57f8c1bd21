"""Runs that may not stand side by side are refused, and seconds of two machines are not divided."""

from __future__ import annotations

from typing import Any

import pytest
from test_metrics import record

from harness.analysis.comparable import (
    apart,
    check,
    machine,
    machines,
    time_of,
    unlike_baselines,
    unlike_seconds,
)
from methods.errors import UsageError

MACHINE = {"cpu": "A", "cores": 2, "torch_threads": 2, "gpus": []}


def test_times_of_different_kinds_do_not_meet() -> None:
    measured, replayed = {"mode": "decode"}, {"mode": "replay"}
    emulated, projected = ({"mode": mode, "profile": {"name": "p"}} for mode in ("emulate", "project"))
    assert [time_of(c) for c in (measured, projected)] == ["measured", "projected on p"]
    check([("a", measured), ("b", replayed), ("c", {})])
    check([("a", emulated), ("b", emulated)])
    shared = {"mode": "decode", "processes": 2}
    assert time_of(shared) == "measured with 2 processes at a time"
    for other in (measured, projected, shared, {"mode": "emulate", "profile": {"name": "q"}}):
        with pytest.raises(UsageError, match="side by side: a is emulated on p, b is "):
            check([("a", emulated), ("b", other)])
        with pytest.raises(UsageError, match="side by side: run is emulated on p, run is "):
            check([("run", emulated), ("run", other)])


def test_profiles_of_one_name_and_other_times_do_not_meet() -> None:
    mine, other = ({"mode": "emulate", "profile": {"name": "p", "ar_s": ar_s}} for ar_s in (1.0, 2.0))
    with pytest.raises(UsageError, match="side by side"):
        check([("a", mine), ("b", other)])


def manifest(about: dict[str, Any], *resumed: dict[str, Any], runtime: str = "lockstep") -> dict[str, Any]:
    first, *later = ({"machine": each, "versions": {"torch": "2"}} for each in (about, *resumed))
    return {
        "config": {"widths": {"1": {"facts": {"ranks": 9} if runtime == "distributed" else {}}}},
        **first,
        "resumed": later,
    }


def test_a_machine_in_words() -> None:
    assert machine(MACHINE, "2") == "A, 2 cores, torch 2"
    assert machine({**MACHINE, "torch_threads": 1}, "2") == "A, 2 cores, 1 thread, torch 2"
    assert machine({**MACHINE, "gpus": ["G", "G"]}, "2") == "2 x G, A, 2 cores, torch 2"


def test_every_start_of_a_run_counts() -> None:
    other = {**MACHINE, "cpu": "B"}
    assert machines(manifest(MACHINE, MACHINE)) == ["A, 2 cores, torch 2"]
    assert machines(manifest(MACHINE, other)) == ["A, 2 cores, torch 2", "B, 2 cores, torch 2"]


def test_seconds_compare_on_one_machine_and_one_runtime() -> None:
    here, there = manifest(MACHINE), manifest({**MACHINE, "torch_threads": 1})
    assert unlike_seconds([here, here]) is None
    assert "different machines" in (unlike_seconds([here, there]) or "")
    assert "different machines" in (unlike_seconds([manifest(MACHINE, there["machine"])]) or "")
    spread = manifest(MACHINE, runtime="distributed")
    assert unlike_seconds([here, spread]) == "measured in one process and in a process per stage"
    there["config"]["mode"] = "replay"
    assert unlike_seconds([here, there]) is None


def test_ar_tells_whether_the_machine_was_in_one_state() -> None:
    def beside(*seconds: float) -> list:
        return [record(str(i), [1] * 10, decode_s=each) for i, each in enumerate(seconds)]

    calm, busy, between = beside(1, 1.1), beside(5, 4), beside(1.05, 1.3)
    assert unlike_baselines([("a", calm), ("b", calm), ("c", between)]) is None
    assert unlike_baselines([("a", calm), ("untimed", [])]) is None
    said = unlike_baselines([("a", calm), ("b", busy)])
    speeds = "at 9.5 [9.1, 10.0] tok/s beside a and at 2.2 [2.0, 2.5] tok/s beside b"
    assert said == f"AR ran {speeds}: the machine was not in the same state"
    single = unlike_baselines([("a", beside(1)), ("b", beside(1.01))])
    assert single is not None and "(one prompt has no interval)" in single


def test_figures_apart() -> None:
    assert not apart([]) and not apart([(1.0, None)]) and not apart([(1.0, None), (1.0 + 1e-12, None)])
    assert apart([(1.0, (0.9, 1.1)), (1.0, (0.8, 1.2)), (1.3, (1.15, 1.5))])
    assert not apart([(1.0, (0.9, 1.1)), (1.3, (1.05, 1.5))])
