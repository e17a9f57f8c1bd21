"""A filled pipeline in one process: what a cycle costs beside an AR step and the drafter's own pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

import torch
from torch import Tensor

from harness.speed.autoregressive import ar_arm
from harness.speed.result import Ratio, Result, Settings
from harness.speed.targets import targets
from harness.speed.timing import Timed, interleaved, seconds
from harness.speed.told import ToldDrafter
from methods import registry
from methods.core import SamplingParams
from methods.models import Target
from methods.pipeline.lockstep import Lockstep
from methods.spd.draft_module import DraftModule
from methods.spd.method import Spd
from methods.testing.scripted import ScriptedDrafter, always, knows_output

STAGES = 8
AIM = 1 / 1.25
"""An AR step and a draft pass, timed alone, over a cycle with all stages filled."""


def measure(settings: Settings) -> Iterator[Result]:
    """Seconds per cycle of SPD, n = 8, one draft layer; the drafter runs, a script decides."""
    tokens = max(settings.tokens, 3 * STAGES)
    for dtype, target, prompt in targets(settings):
        options = {"n": STAGES, "draft_layers": 1, "untrained": True}
        method = registry.create("spd", target, options)
        assert isinstance(method, Spd)
        arms = {
            "cycle": cycle_arm(method, target, prompt, tokens),
            "AR step + draft": both(
                ar_arm(target, prompt, tokens), draft_arm(method.module, target, len(prompt))
            ),
        }
        yield Result(
            subject="pipeline",
            case=f"{settings.preset} {dtype}, n = {STAGES}",
            unit="cycle",
            seconds=interleaved(arms, settings.repeats),
            ratios=(Ratio("AR step + draft / cycle", "AR step + draft", "cycle", AIM),),
        )


def both(first: Timed, second: Timed) -> Timed:
    """The two arms' seconds added up."""
    return lambda: first() + second()


def cycle_arm(method: Spd, target: Target, prompt: Sequence[int], tokens: int) -> Timed:
    """Seconds per cycle once the pipeline is full; no draft is rejected, so it stays full."""
    ar = registry.create("autoregressive", target)
    output = ar.decode(prompt, SamplingParams(), tokens).tokens
    script = ScriptedDrafter(
        knows_output(output, target.vocab_size, always), method.module.vocabulary, layers=1
    )

    def run() -> float:
        drafter = ToldDrafter(method.drafter(), script)
        lockstep = Lockstep(target, method.stage_layers, drafter, SamplingParams(), "point-mass")
        pipeline = lockstep.begin(prompt, tokens, ())
        for _ in range(STAGES):
            lockstep.cycle(pipeline)
        full = pipeline.cycles
        started = perf_counter()
        while not pipeline.finished:
            lockstep.cycle(pipeline)
        return (perf_counter() - started) / (pipeline.cycles - full)

    return run


def draft_arm(module: DraftModule, target: Target, prefix: int, repeats: int = 20) -> Timed:
    """Seconds of one draft pass behind ``prefix`` tokens: a completed row and n in flight."""
    anchors = len(module.config.aggregation.anchors)
    session = module.session()

    def rows(count: int) -> Tensor:
        shape = (count, anchors, target.hidden_size)
        return torch.zeros(shape, dtype=target.dtype, device=target.device)

    session.step(rows(prefix))
    depths = list(range(STAGES - 1, -1, -1))

    def passes() -> None:
        for _ in range(repeats):
            session.step(rows(1), rows(STAGES), depths).argmax(-1).item()
            session.rollback(prefix)

    return lambda: seconds(passes) / repeats
