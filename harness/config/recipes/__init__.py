"""How drafters are trained: one TOML per recipe, read into a frozen ``Recipe``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch

from harness.config import shipped
from methods.errors import UsageError
from methods.training.optimizer import OptimizerConfig

Compute = Literal["float32", "bfloat16"]
_NATIVE_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")
"""Names of ``torch.cpu.get_capabilities`` that mean a bfloat16 matrix product in hardware."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything about a training run but target, heads and data.

    ``max_length`` tokens of a conversation, also the attention span of the trained drafter;
    ``vocabulary`` rows of the draft heads; ``tokens`` the default budget in supervised positions
    (0: one epoch); ``sequences`` per optimiser step over all processes; ``micro_tokens`` at most in
    memory at once; ``eval_every`` in supervised positions; ``compute`` of the passes, in the
    file also "auto" (``native_compute``); ``optimizer`` for all heads, with ``overrides`` by method name.
    """

    name: str
    max_length: int
    vocabulary: int
    tokens: int
    sequences: int
    micro_tokens: int
    held_out: int
    eval_every: int
    compute: Compute
    optimizer: OptimizerConfig
    overrides: Mapping[str, OptimizerConfig]

    def optimizer_for(self, method: str) -> OptimizerConfig:
        return self.overrides.get(method, self.optimizer)


def native_compute() -> Compute:
    """bfloat16 where the device multiplies it natively; emulated it is several times slower than float32."""
    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    able = torch.cpu.get_capabilities()
    return "bfloat16" if any(able.get(name) for name in _NATIVE_BFLOAT16) else "float32"


def recipe_names() -> list[str]:
    """All shipped recipes, sorted."""
    return shipped.names(__name__)


def load_recipe(name: str) -> Recipe:
    """The shipped recipe ``name``; ``UsageError`` lists what exists or names the faulty key."""
    if name not in recipe_names():
        raise UsageError(f"unknown recipe {name!r}; known: {', '.join(recipe_names())}")
    return parse_recipe(name, shipped.content(__name__, name).decode())


def parse_recipe(name: str, text: str) -> Recipe:
    """A recipe from TOML text. Unknown key, missing key, wrong type: ``UsageError`` naming the key."""
    try:
        values: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"recipe {name!r} is not valid TOML: {error}") from None
    if values.get("compute") == "auto":
        values["compute"] = native_compute()
    shared = values.pop("optimizer", None)
    if not isinstance(shared, dict):
        raise UsageError(f"recipe {name!r}: table 'optimizer' is missing")
    special = {key: shared.pop(key) for key in list(shared) if isinstance(shared[key], dict)}
    where = f"recipe {name!r}: optimizer"
    optimizer = _built(OptimizerConfig, shared, where)
    overrides = {
        method: _built(OptimizerConfig, shared | given, f"{where}.{method}")
        for method, given in special.items()
    }
    values |= {"name": name, "optimizer": optimizer, "overrides": overrides}
    return _built(Recipe, values, f"recipe {name!r}")


def _built(kind: Any, values: Mapping[str, Any], where: str) -> Any:
    hints = get_type_hints(kind)
    for key in values:
        if key not in hints:
            raise UsageError(f"{where}: unknown key {key!r}; known: {', '.join(hints)}")
    for entry in fields(kind):
        if entry.name not in values and entry.default is entry.default_factory:
            raise UsageError(f"{where}: key {entry.name!r} is missing")
    made = {key: _checked(value, hints[key], f"{where}: key {key!r}") for key, value in values.items()}
    return kind(**made)


def _checked(value: Any, kind: Any, where: str) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UsageError(f"{where} must be one of {', '.join(get_args(kind))}, got {value!r}")
    elif kind in (int, float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or value < 0 or (kind is int and not isinstance(value, int)):
            raise UsageError(f"{where} must be a {'whole ' if kind is int else ''}number >= 0, got {value!r}")
        return kind(value)
    elif get_origin(kind) is tuple:
        return tuple(value)
    return value
