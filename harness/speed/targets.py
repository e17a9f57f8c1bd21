"""The targets of a speed measurement, each the same one from its first call to its last."""

from __future__ import annotations

from collections.abc import Iterator

from harness.benchmarks.first_turns import first_turns
from harness.config.presets import load_preset
from harness.speed.result import Settings
from methods.errors import TargetChanged
from methods.models import Target, load_target
from methods.models.seal import Seal


def targets(settings: Settings) -> Iterator[tuple[str, Target, list[int]]]:
    """For each dtype its name, the preset's target and the prompt that is decoded on it.

    Raises ``TargetChanged`` after the last measurement on a target that is not what it was before.
    """
    preset = load_preset(settings.preset)
    for dtype in settings.dtypes:
        target = load_target(preset.target, dtype)
        seal = Seal(target)
        (prompt,) = first_turns(target, preset)
        yield dtype, target, prompt
        if (difference := seal.difference()) is not None:
            raise TargetChanged(
                f"a method changed the target {settings.preset} {dtype}, so nothing measured on it counts: "
                f"{difference}"
            )
