"""Two stages on two cores, the drafter beside the first, against AR on one core of the same machine.

The drafter is told what to say, right with probability ``RIGHT``, so that no checkpoint is needed.
The layers are split so that either core has as many weights to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from harness.devices.projection import Devices, project, verdicts
from harness.execution.timing import phases_by_cycle, steady
from harness.records.record import StepArrays
from harness.speed.autoregressive import ar_arm
from harness.speed.result import Ratio, Result, Settings
from harness.speed.targets import targets
from harness.speed.timing import Timed, interleaved
from harness.speed.told import ToldOptions, ToldSpd
from methods import registry
from methods.core import DecodeResult, SamplingParams
from methods.models import Target
from methods.pipeline.distributed.rank import Report
from methods.pipeline.distributed.ranks import THREADS, close

STAGES, DRAFT_LAYERS, RIGHT = 2, 1, 0.8
OF_S, WITHIN = 0.85, 0.10
"""Wall-clock / S of the same run, at least; the projection's error, at most."""
AR, RANKS, LAYERS, PROJECTED = "AR, one core", "n = 2, a core each", "AR / S", "projected"


def measure(settings: Settings) -> Iterator[Result]:
    """Seconds per token for each dtype: of both, what S would make of AR's, and the projection from the
    ranks' own clocks."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        for dtype, target, prompt in targets(settings):
            yield _measured(target, prompt, settings, f"{settings.preset} {dtype}")
    finally:
        torch.set_num_threads(threads)
        close()


def _measured(target: Target, prompt: list[int], settings: Settings, case: str) -> Result:
    output = registry.create("autoregressive", target).decode(prompt, SamplingParams(), settings.tokens)
    method = told(target, output.tokens)
    arms = {AR: ar_arm(target, prompt, settings.tokens), RANKS: ranks_arm(method, prompt, settings.tokens)}
    seconds = interleaved(arms, settings.repeats)
    method.distributed.timings = True
    traced = method.decode(prompt, SamplingParams(), settings.tokens)
    projected = projected_token_s(traced, method.distributed.reports)
    s = layers_speedup(traced, target.num_layers)
    seconds |= {LAYERS: [value / s for value in seconds[AR]], PROJECTED: [projected] * settings.repeats}
    ratios = (
        Ratio("wall-clock speedup", AR, RANKS),
        Ratio("S", AR, LAYERS),
        Ratio("wall-clock speedup / S", LAYERS, RANKS, OF_S),
        Ratio("projected / measured", PROJECTED, RANKS, 1 - WITHIN, 1 + WITHIN),
    )
    split = ";".join(map(str, method.stage_layers))
    return Result("distributed", f"{case}, stages of {split} layers", "token", seconds, ratios)


def told(target: Target, output: Sequence[int]) -> ToldSpd:
    """The method on two ranks."""
    options = ToldOptions(n=STAGES, draft_layers=DRAFT_LAYERS, untrained=True, right=RIGHT)
    module = ToldSpd(target, options).module
    first = balanced(target, sum(weight.numel() for weight in module.parameters()))
    split = f"{first};{target.num_layers - first}"
    return ToldSpd(
        target,
        replace(options, output=tuple(output), stage_layers=split, runtime="distributed", layout="n"),
    )


def balanced(target: Target, draft_weights: int) -> int:
    """Layers of stage 1, so that with the drafter it reads what stage 2 reads with the head."""
    layer = sum(matrix.numel() for layer in target.layers for matrix in layer.matrices()) / target.num_layers
    first = (target.num_layers * layer + target.head_weight.numel() - draft_weights) / (2 * layer)
    return min(max(1, round(first)), target.num_layers - 1)


def ranks_arm(method: ToldSpd, prompt: list[int], tokens: int) -> Timed:
    def run() -> float:
        result = method.decode(prompt, SamplingParams(), tokens)
        return result.decode_s / (len(result.tokens) - 1)

    return run


def layers_speedup(result: DecodeResult, layers: int) -> float:
    """S of one run: see ``harness.analysis.metrics.s``."""
    critical = sum(step.target_layers + step.draft_layers for step in result.steps)
    return (len(result.tokens) - 1) * layers / critical


def projected_token_s(result: DecodeResult, reports: Sequence[Report]) -> float:
    """Seconds per token from the mean times of the ranks' parts in full cycles, and the run's trace."""
    full = {id(step) for step in steady(result.steps)}
    kept = [index for index, step in enumerate(result.steps) if id(step) in full]
    kept = kept or list(range(len(result.steps)))
    means = []
    for report in reports[:STAGES]:
        cycles = phases_by_cycle(len(result.steps), report.spans)
        means.append({name: sum(cycles[i][name] for i in kept) / len(kept) for name in cycles[0]})
    first, last = means
    devices = Devices(
        stage_s=(first["compute"], last["compute"]),
        draft_s=first["draft"],
        verify_s=last["verify"],
        beside_first=True,
    )
    return project(verdicts(StepArrays.of(result.steps)), len(result.tokens) - 1, devices).token_s
