"""What is fixed about a target: one TOML file each, read into a frozen ``Preset``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal, get_args

from harness.config import shipped
from methods.errors import UsageError

Dtype = Literal["float32", "bfloat16"]
StopIds = Literal["generation_config"] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Preset:
    """A target and how it is run.

    ``target`` is a hub id, or the name of a target ``methods.models`` carries itself; ``stop_ids``
    are token ids, or "generation_config" for those the target's own generation configuration
    lists; ``num_layers`` is L, checked against the loaded model; ``thinking`` is what the chat
    template is asked for; ``chat_template`` names a FastChat conversation template for a target
    without its own; ``checkpoints`` maps a method's name to its default drafter checkpoint, with
    options' names in braces: "shipped:my-target/spd-n{n}-l{draft_layers}".
    """

    name: str
    target: str
    dtype: Dtype
    num_layers: int
    stop_ids: StopIds
    thinking: bool
    chat_template: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def preset_names() -> list[str]:
    """All shipped presets, sorted."""
    return shipped.names(__name__)


def load_preset(name: str) -> Preset:
    """The shipped preset ``name``; ``UsageError`` lists what exists or names the faulty key."""
    if name not in preset_names():
        raise UsageError(f"unknown preset {name!r}; known: {', '.join(preset_names())}")
    return parse_preset(name, shipped.content(__name__, name).decode())


def parse_preset(name: str, text: str) -> Preset:
    """A preset from TOML text. Unknown key, missing key, wrong type: ``UsageError`` naming the key."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"preset {name!r} is not valid TOML: {error}") from None
    allowed = [entry for entry in fields(Preset) if entry.name != "name"]
    _check_keys(name, values, allowed)
    return Preset(name=name, **{key: _checked(name, key, value) for key, value in values.items()})


def _check_keys(name: str, values: Mapping[str, Any], allowed: list[Any]) -> None:
    keys = [entry.name for entry in allowed]
    for key in values:
        if key not in keys:
            raise UsageError(f"preset {name!r}: unknown key {key!r}; known: {', '.join(keys)}")
    for entry in allowed:
        required = entry.default is MISSING and entry.default_factory is MISSING
        if required and entry.name not in values:
            raise UsageError(f"preset {name!r}: key {entry.name!r} is missing")


def _checked(name: str, key: str, value: Any) -> Any:
    """``value`` in its final form, or a ``UsageError`` that says what the key takes."""
    good, wanted = _RULES[key](value)
    if not good:
        raise UsageError(f"preset {name!r}: key {key!r} must be {wanted}, got {value!r}")
    if isinstance(value, list):
        return tuple(value)
    return MappingProxyType(value) if isinstance(value, dict) else value


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_whole(each, 0) for each in value)


def _texts_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(_text(each) for each in value.values())


_RULES: Mapping[str, Any] = {
    "target": lambda v: (_text(v), "non-empty text"),
    "dtype": lambda v: (v in get_args(Dtype), f"one of {', '.join(get_args(Dtype))}"),
    "num_layers": lambda v: (_whole(v, 1), "a whole number >= 1"),
    "stop_ids": lambda v: (v == "generation_config" or _ids(v), '"generation_config" or a list of token ids'),
    "thinking": lambda v: (isinstance(v, bool), "true or false"),
    "chat_template": lambda v: (_text(v), "non-empty text"),
    "checkpoints": lambda v: (_texts_by_name(v), "a table of method name = checkpoint"),
}
