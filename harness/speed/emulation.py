"""What the distributed runtime itself costs: emulated devices with the SPD paper's stage times.

A process per stage and one for the drafter, however few cores there are; the processes wait instead
of computing, so a cycle that takes longer than its slowest stage is the runtime's own doing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from harness.config.profiles import Profile, load_profile
from harness.devices.emulation import Emulated, emulate
from harness.devices.projection import Devices, devices_of, project
from harness.speed.result import Ratio, Result, Settings
from methods.pipeline.distributed.ranks import close

PROFILE = "qwen3.5-4b"
CYCLE_LIMITS = {4: (1.05, 1.10), 8: (1.10, 1.20)}
"""n -> median and mean of a steady-state cycle over the slowest stage, at most."""
ACCEPTANCE, STAGES, SPEEDUP = 0.81, 8, 2.53
"""Step acceptance, n, and the wall-clock speedup that the paper reports at it."""
WITHIN = 0.10
"""The projection's error, at most."""
_TOKENS = 400
"""At least, so that a run is mostly steady state."""


def measure(settings: Settings) -> Iterator[Result]:
    """Steady-state cycles without a rejection for each n; then seconds per token at an acceptance.

    Neither target nor dtype matters: nothing is computed.
    """
    profile, tokens = load_profile(PROFILE), max(settings.tokens, _TOKENS)
    try:
        for n, limits in CYCLE_LIMITS.items():
            yield _cycles(profile, n, limits, tokens, settings.repeats)
        yield _speedup(profile, tokens, settings.repeats)
    finally:
        close()


def _cycles(profile: Profile, n: int, limits: tuple[float, float], tokens: int, repeats: int) -> Result:
    on = devices_of(profile, profile.pipeline(n))
    seconds: dict[str, list[float]] = {"median cycle": [], "mean cycle": [], "slowest stage": []}
    for run in _runs(profile, on, [True], tokens, repeats):
        assert run.steady is not None
        seconds["median cycle"].append(run.steady.median)
        seconds["mean cycle"].append(run.steady.mean)
        seconds["slowest stage"].append(on.bottleneck_s)
    ratios = tuple(
        Ratio(f"{kind} cycle / slowest stage", f"{kind} cycle", "slowest stage", at_most=limit)
        for kind, limit in zip(("median", "mean"), limits, strict=True)
    )
    case = f"{PROFILE}, n = {n}, {n + 1} processes, steady state"
    return Result("emulation", case, "cycle", seconds, ratios)


def _speedup(profile: Profile, tokens: int, repeats: int) -> Result:
    """A projection knows no runtime. Two of them: without any, and with what a message between ranks
    took on this machine just before, by the steady-state cycles of a run without a rejection."""
    on, chance = devices_of(profile, profile.pipeline(STAGES)), random.Random(0)
    accepted = [chance.random() < ACCEPTANCE for _ in range(tokens)]
    seconds: dict[str, list[float]] = {
        "AR": [profile.ar_s] * repeats,
        "emulated": [],
        "projected": [project(accepted, tokens, on).token_s] * repeats,
        "projected with its messages": [],
    }
    for undisturbed in _runs(profile, on, [True], tokens, repeats):
        assert undisturbed.steady is not None
        message_s = max(0.0, undisturbed.steady.mean - on.bottleneck_s)
        run = emulate(profile, on, accepted, tokens)
        seconds["emulated"].append(run.result.decode_s / run.tokens)
        slower = replace(on, hop_s=on.hop_s + message_s)
        seconds["projected with its messages"].append(project(accepted, tokens, slower).token_s)
    ratios = (
        Ratio("emulated speedup", "AR", "emulated", SPEEDUP),
        Ratio("projected / emulated", "projected", "emulated"),
        Ratio(
            "projected with its messages / emulated",
            "projected with its messages",
            "emulated",
            1 - WITHIN,
            1 + WITHIN,
        ),
    )
    case = f"{PROFILE}, n = {STAGES}, step acceptance {sum(accepted) / len(accepted):.2f}"
    return Result("emulation", case, "token", seconds, ratios)


def _runs(
    profile: Profile, on: Devices, accepted: list[bool], tokens: int, repeats: int
) -> Iterator[Emulated]:
    """``repeats`` runs after one that is not counted."""
    for number in range(repeats + 1):
        run = emulate(profile, on, accepted, tokens)
        if number:
            yield run
