"""Which runs may stand side by side, and whose seconds may be divided by whose."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.analysis import metrics
from harness.analysis.estimate import Interval
from harness.records.record import Record
from methods.errors import UsageError

MUST_AGREE = ("target", "turns", "dtype", "template", "top_k", "top_p", "max_new_tokens", "stop_ids")
"""Fields of a run's configuration without whose agreement a comparison means nothing."""

KINDS = {"decode": "measured", "replay": "replayed", "emulate": "emulated", "project": "projected"}


def check(runs: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Raise ``UsageError`` unless the runs (name, configuration) agree in ``MUST_AGREE`` and their
    times are of one kind; replays have none. Two runs can have one name."""
    first, *others = runs
    for name, config in others:
        for field in MUST_AGREE:
            mine, theirs = first[1].get(field), config.get(field)
            if mine != theirs:
                raise UsageError(
                    f"runs {first[0]} and {name} cannot be compared: {field} is {json.dumps(mine)} in the "
                    f"first and {json.dumps(theirs)} in the second"
                )
    timed = [(name, config) for name, config in (first, *others) if config.get("mode") != "replay"]
    if len({(time_of(config), json.dumps(config.get("profile"))) for _, config in timed}) > 1:
        what = ", ".join(f"{name} is {time_of(config)}" for name, config in timed)
        raise UsageError(f"these runs' times cannot be shown side by side: {what}")


def check_prompts(runs: Iterable[tuple[str, Sequence[Record]]]) -> None:
    """Raise ``UsageError`` if one id names two prompts. Later turns quote answers, which may differ; a
    first turn is the same or another prompt."""
    known: dict[tuple[str, str], tuple[str, Sequence[int]]] = {}
    for name, records in runs:
        for record in records:
            if record.turn == 1 and record.error is None:
                place = record.benchmark, record.prompt_id
                first, ids = known.setdefault(place, (name, record.prompt_ids))
                if ids != record.prompt_ids:
                    raise UsageError(f"{' '.join(place)} is another prompt in {name} than in {first}")


def time_of(config: Mapping[str, Any]) -> str:
    """Whose time the seconds of a run's records are: "measured" (with how many processes at a time),
    "replayed" (none), or "emulated" or "projected on" a profile."""
    kind = KINDS[config.get("mode", "decode")]
    if "profile" in config:
        return f"{kind} on {config['profile']['name']}"
    return f"{kind} with {config['processes']} processes at a time" if "processes" in config else kind


def machines(manifest: Mapping[str, Any]) -> list[str]:
    """The machines a run was made on, in words: one, or several if it was continued elsewhere."""
    starts = [manifest, *manifest["resumed"]]
    names = [machine(each.get("machine", {}), each.get("versions", {}).get("torch")) for each in starts]
    return list(dict.fromkeys(names))


def machine(about: Mapping[str, Any], torch: str | None) -> str:
    """A manifest's machine in words; threads where they are not as many as cores."""
    gpus = about.get("gpus", [])
    parts = [f"{gpus.count(name)} x {name}" for name in dict.fromkeys(gpus)] + [str(about.get("cpu"))]
    cores, threads = about.get("cores"), about.get("torch_threads")
    parts += [_count(cores, "core")] + ([_count(threads, "thread")] if threads not in (None, cores) else [])
    return ", ".join([*parts, f"torch {torch}"])


def unlike_seconds(manifests: Iterable[Mapping[str, Any]]) -> str | None:
    """Why seconds of these runs say nothing of each other: other machines, or stages that take turns
    beside a process per stage. None where they do, or where there are no seconds."""
    timed = [each for each in manifests if each["config"].get("mode", "decode") == "decode"]
    places = list(dict.fromkeys(place for each in timed for place in machines(each)))
    if len(places) > 1:
        return f"measured on different machines ({'; '.join(places)})"
    if len({_spread(each["config"]) for each in timed}) > 1:
        return "measured in one process and in a process per stage"
    return None


def unlike_baselines(runs: Iterable[tuple[str, Sequence[Record]]]) -> str | None:
    """Why the times of runs (name, AR's records on the same prompts) say little of each other although
    the machine is the same: AR, the same work in all, was faster in one by more than the 95 % intervals.
    None where it was not, or where fewer than two runs have AR's times."""
    found = [(name, metrics.tok_per_s(records)) for name, records in runs]
    timed = [(name, speed) for name, speed in found if speed is not None]
    if not apart([(speed.pooled, speed.pooled_interval) for _, speed in timed]):
        return None
    *most, last = (f"at {speed.shown(1)} tok/s beside {name}" for name, speed in timed)
    speeds = f"{', '.join(most)} and {last}"
    single = " (one prompt has no interval)" if any(each.pooled_interval is None for _, each in timed) else ""
    return f"AR ran {speeds}{single}: the machine was not in the same state"


def apart(figures: Sequence[tuple[float, Interval | None]]) -> bool:
    """Whether any two of the figures differ by more than their intervals; one without is a point."""
    ends = [interval or (value, value) for value, interval in figures]
    # Seconds of a profile's devices are sums of one constant, which differ in the last bit.
    return bool(ends) and max(low for low, _ in ends) > (1 + 1e-6) * min(high for _, high in ends)


def _spread(config: Mapping[str, Any]) -> bool:
    widths = config.get("widths", {}).values()
    return any("ranks" in width.get("facts", {}) for width in widths)


def _count(number: object, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"
