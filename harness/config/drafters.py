"""Which checkpoint a preset gives a method that was named without one."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping
from string import Formatter

from harness.cli.options import default_of
from harness.config.presets import Preset
from methods.drafters.source import SHIPPED, shipped
from methods.errors import UsageError


def preset_checkpoint(preset: Preset, method: str, options: Mapping[str, str]) -> str | None:
    """The preset's checkpoint for ``method`` with ``options``; None if the preset has none for it, or
    the options name a drafter themselves.

    The preset's entry is a text with option names in braces. An option without a value takes the
    value of the last shipped checkpoint that fits. Raises ``UsageError``, listing what is shipped,
    if none fits, and for such an option in a place that cannot be listed.
    """
    entry = preset.checkpoints.get(method)
    if entry is None or {"checkpoint", "untrained"} & options.keys():
        return None
    values = {name: _value(method, name, options) for _, name, _, _ in Formatter().parse(entry) if name}
    if not entry.startswith(SHIPPED):
        return entry.format_map(_all_given(preset, method, values))
    fitting = shipped(entry.format_map({name: _pattern(value) for name, value in values.items()}))
    if not fitting:
        every = shipped(entry.format_map(dict.fromkeys(values, "*")))
        names = ", ".join(text.rpartition("/")[2] for text in every) or "none"
        asked = ", ".join(f"{name} = {value}" for name, value in values.items() if value is not None)
        raise UsageError(
            f"no trained {method} drafter for {preset.name} with {asked} is shipped (shipped: {names}); give "
            "--checkpoint, train one with python -m harness.train, or take --untrained for a random one"
        )
    return max(fitting, key=lambda text: [int(number) for number in re.findall(r"\d+", text)])


def _pattern(value: str | None) -> str:
    return "*" if value is None else glob.escape(value)


def _value(method: str, name: str, options: Mapping[str, str]) -> str | None:
    default = default_of(method, name)
    return options.get(name, None if default is None else str(default))


def _all_given(preset: Preset, method: str, values: Mapping[str, str | None]) -> Mapping[str, str]:
    for name, value in values.items():
        if value is None:
            raise UsageError(
                f"preset {preset.name}: {method} needs --option {name}=... to choose a checkpoint"
            )
    return {name: value for name, value in values.items() if value is not None}
