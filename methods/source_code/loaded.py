"""The functions that runs stand on, to see whether one of them was replaced."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

_PACKAGES = ("methods", "harness")
_FOREIGN = ("time", "torch", "torch.nn.functional")
_FOREIGN_CLASSES = (("torch", "Tensor"), ("torch.nn", "Module"))
_REGISTRY = "methods.registry"

Functions = Mapping[str, tuple[object, object]]
"""Functions and classes by dotted name, each with the code it runs."""


def functions() -> Functions:
    """What is loaded of this project, with the methods registered; and what of torch and time it calls."""
    found: dict[str, tuple[object, object]] = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.split(".")[0] in _PACKAGES:
            found.update(_functions_of(name, module))
            for key, value in list(vars(module).items()):
                if isinstance(value, type):
                    found[f"{name}.{key}"] = value, None
                    found.update(_methods_of(value) if value.__module__ == name else ())
    for name in _FOREIGN:
        found.update(_functions_of(name, sys.modules[name]) if name in sys.modules else ())
    for name, key in _FOREIGN_CLASSES:
        found.update(_methods_of(getattr(sys.modules[name], key)) if name in sys.modules else ())
    if _REGISTRY in sys.modules:
        registered = sys.modules[_REGISTRY]._methods
        found.update({f"method {name}": (cls, None) for name, cls in registered.items()})
    return found


def replaced(before: Functions) -> str | None:
    """The first name whose function is not the one that it was ``before``; None if there is none."""
    now = functions() if before else {}
    for name, (function, code) in before.items():
        found = now.get(name, (None, None))
        if found[0] is not function or found[1] is not code:
            return name
    return None


def _functions_of(name: str, module: ModuleType) -> Iterator[tuple[str, tuple[object, object]]]:
    for key, value in list(vars(module).items()):
        if callable(value) and not isinstance(value, type):
            yield f"{name}.{key}", (value, _code(value))


def _methods_of(cls: type) -> Iterator[tuple[str, tuple[object, object]]]:
    for key, value in list(vars(cls).items()):
        if callable(value) or hasattr(value, "__get__"):  # class methods and properties, too
            yield f"{cls.__module__}.{cls.__qualname__}.{key}", (value, _code(value))


def _code(value: Any) -> object:
    for inner in ("fget", "__func__"):
        value = getattr(value, inner, value)
    while hasattr(value, "__wrapped__"):  # as torch.no_grad() leaves it
        value = value.__wrapped__
    return getattr(value, "__code__", None)
