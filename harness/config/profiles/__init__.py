"""What devices take for a target's stages and drafter: one TOML file each, read into a ``Profile``."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from harness.config import shipped
from methods.errors import UsageError


@dataclass(frozen=True, slots=True)
class PipelineTimes:
    """Seconds of one stage of ``n``, of a drafter of ``draft_layers``, and of a whole steady-state
    cycle where the figures were published."""

    n: int
    draft_layers: int
    stage_s: float
    draft_s: float
    cycle_s: float


@dataclass(frozen=True, slots=True)
class Profile:
    """``ar_s``: seconds per token of AR on one device. ``hidden`` and ``anchors`` give the messages'
    sizes. ``verify_s``: norm, head and choice on the last stage. ``hop_s``: between two devices, on
    top of what a real message takes. ``jitter``: relative standard deviation of a stage's time."""

    target: str
    ar_s: float
    num_layers: int
    hidden: int
    anchors: tuple[int, ...]
    verify_s: float
    hop_s: float
    jitter: float
    pipelines: tuple[PipelineTimes, ...]

    def pipeline(self, n: int, draft_layers: int | None = None) -> PipelineTimes:
        """The times for ``n`` stages and, unless None, ``draft_layers`` Ls; ``UsageError`` lists what
        there is."""
        for times in self.pipelines:
            if times.n == n and draft_layers in (None, times.draft_layers):
                return times
        asked = f"n = {n}" if draft_layers is None else f"n = {n} with Ls = {draft_layers}"
        known = ", ".join(f"n = {times.n} with Ls = {times.draft_layers}" for times in self.pipelines)
        raise UsageError(f"profile of {self.target} has no figures for {asked}; allowed: {known}")


def profile_facts(name: str, profile: Profile) -> dict[str, Any]:
    """What records on a profile's devices say of it."""
    return {"name": name, **asdict(profile)}


def profile_names() -> list[str]:
    """All shipped profiles, sorted."""
    return shipped.names(__name__)


def load_profile(name: str) -> Profile:
    """A shipped profile by name, or a TOML file by path. ``UsageError`` names the faulty key."""
    if name in profile_names():
        return parse_profile(name, shipped.content(__name__, name))
    if not name.endswith(shipped.SUFFIX) or not Path(name).is_file():
        raise UsageError(f"unknown profile {name!r}; allowed: {', '.join(profile_names())}, or a .toml file")
    return parse_profile(name, Path(name).read_bytes())


def parse_profile(name: str, content: bytes) -> Profile:
    """A profile from TOML text in UTF-8."""
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except ValueError as error:  # of either
        raise UsageError(f"profile {name}: {error}") from error
    pipelines = table.pop("pipeline", [])
    if not isinstance(pipelines, list) or not all(isinstance(row, dict) for row in pipelines or [None]):
        raise UsageError(f"profile {name}: pipeline must be a list of tables")
    rows = tuple(PipelineTimes(**_checked(name, PipelineTimes, row)) for row in pipelines)
    values = _checked(name, Profile, table, leave_out="pipelines")
    return Profile(**values, pipelines=rows)


def _checked(name: str, kind: type, table: Mapping[str, Any], leave_out: str = "") -> dict[str, Any]:
    wanted = {field.name: str(field.type) for field in fields(kind) if field.name != leave_out}
    for key in [*table, *wanted]:
        if key not in wanted or key not in table:
            state = "missing" if key in wanted else "unknown"
            raise UsageError(f"profile {name}: key {key} is {state}; allowed: {', '.join(wanted)}")
    return {key: _value(name, key, table[key], kind) for key, kind in wanted.items()}


def _value(name: str, key: str, value: Any, kind: str) -> Any:
    if kind == "str" and isinstance(value, str):
        return value
    if kind == "int" and type(value) is int and value > 0:
        return value
    if kind == "float" and type(value) in (int, float) and 0 <= value < math.inf:
        return float(value)
    if kind.startswith("tuple") and isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    raise UsageError(f"profile {name}: key {key} is {value!r}; expected {kind}, not negative")
