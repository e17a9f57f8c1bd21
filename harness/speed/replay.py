"""Replay against the decode loop: Table 1's drafting rows for one prompt, once AR's output exists.

The rows are those that the preset has a trained drafter for; they share the pass of the target over
the known output, as the tables' rows do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harness.config.drafters import preset_checkpoint
from harness.config.paper_rows import PAPER_ROWS
from harness.config.presets import Preset, load_preset
from harness.speed.result import Ratio, Result, Settings
from harness.speed.targets import targets
from harness.speed.timing import interleaved, seconds
from methods import registry
from methods.core import SamplingParams
from methods.decoding.replay import KnownOutput
from methods.errors import UsageError
from methods.interface import DecodingMethod
from methods.models import Target

FASTER = 20.0
"""Seconds of the decode loops of all rows / of their replays, at least."""

GREEDY = SamplingParams()


def measure(settings: Settings) -> Iterator[Result]:
    """Seconds per output token of all rows together, for each dtype."""
    preset = load_preset(settings.preset)
    for dtype, target, prompt in targets(settings):
        yield compared(target, rows(target, preset), prompt, settings, f"{settings.preset} {dtype}")


def rows(target: Target, preset: Preset) -> list[DecodingMethod]:
    """The paper's rows that have a trained drafter, and the n-gram drafter, which needs none."""
    found = []
    for name, options in (*PAPER_ROWS, ("ngram", {})):
        try:
            checkpoint = preset_checkpoint(preset, name, {key: str(value) for key, value in options.items()})
        except UsageError:  # none is shipped
            continue
        given = options if checkpoint is None else {**options, "checkpoint": checkpoint}
        found.append(registry.create(name, target, given))
    return found


def compared(
    target: Target, methods: Sequence[DecodingMethod], prompt: list[int], settings: Settings, case: str
) -> Result:
    """Both ways along AR's own output of ``settings.tokens`` tokens."""
    ar = registry.create("autoregressive", target)
    output = ar.decode(prompt, GREEDY, settings.tokens, target.stop_ids).tokens

    def decode() -> None:
        for method in methods:
            method.decode(prompt, GREEDY, settings.tokens, target.stop_ids)

    def replay() -> None:
        known = KnownOutput(target, prompt, output, GREEDY, settings.tokens)
        for method in methods:
            method.replay(known)

    def per_token(call: Callable[[], None]) -> Callable[[], float]:
        return lambda: seconds(call) / len(output)

    return Result(
        subject="replay",
        case=f"{case}, {len(methods)} rows",
        unit="token",
        seconds=interleaved({"decode": per_token(decode), "replay": per_token(replay)}, settings.repeats),
        ratios=(Ratio("decode / replay", "decode", "replay", FASTER),),
    )
