"""Names to decoding methods: built in, from installed packages, or from a module the user names."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, TypeVar

import methods.clock  # noqa: F401  # before any plugin
from methods.errors import UsageError, describe
from methods.interface import DecodingMethod
from methods.source_code.code import Code, code_of

ENTRY_POINT_GROUP = "spd_bench.methods"
"""A package offers methods by an entry point in this group that names a module to import."""

BUILTIN_MODULES: Mapping[str, str] = {
    "autoregressive": "methods.decoding.autoregressive",
    "ngram": "methods.decoding.prompt_lookup",
    "eagle3": "methods.eagle3.method",
    "spd": "methods.spd.method",
    "ppsd": "methods.ppsd.method",
}
"""Names and modules of this package's own methods. A module loads torch, so it is imported when its method
is asked for: a name that nothing has is answered at once."""

_methods: dict[str, type[DecodingMethod]] = {}
_registered_in: dict[str, str] = {}
"""The module that registered a name; its class may come from another."""
_broken: list[str] = []
"""What is wrong with installed packages that could not be loaded."""
_discovered = False

M = TypeVar("M", bound=type[DecodingMethod])


def register(name: str) -> Callable[[M], M]:
    """Class decorator that makes a method known as ``name``. A taken name is an error."""
    caller = sys._getframe(1).f_globals.get("__name__", "")

    def add(cls: M) -> M:
        if not (isinstance(cls, type) and issubclass(cls, DecodingMethod)):
            raise UsageError(f"method {name!r} must be a subclass of methods.interface.DecodingMethod")
        if not dataclasses.is_dataclass(cls.Options):
            raise UsageError(f"method {name!r}: its Options must be a dataclass")
        known = _methods.get(name)
        place = BUILTIN_MODULES.get(name, caller)
        if place not in (caller, cls.__module__):
            raise UsageError(f"method name {name!r} is already taken by {place}")
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise UsageError(
                f"method name {name!r} is already taken by {known.__module__}.{known.__qualname__}"
            )
        cls.name = name
        _methods[name] = cls
        _registered_in[name] = caller
        return cls

    return add


def load_plugin(module: str) -> None:
    """Import ``module`` so that the methods it registers become known."""
    try:
        importlib.import_module(module)
    except UsageError as error:
        raise UsageError(f"plugin module {module!r}: {error}") from error
    except (Exception, SystemExit) as error:  # a module runs whatever its author wrote
        raise UsageError(f"plugin module {module!r} cannot be imported: {describe(error, module)}") from error


def names() -> list[str]:
    """All known method names, sorted."""
    _discover()
    return sorted({*BUILTIN_MODULES, *_methods})


def check_name(name: str) -> None:
    """``UsageError``, listing what exists, for a name that no method has. Imports no built-in method."""
    if name in BUILTIN_MODULES or name in _methods:
        return
    known = names()  # looks into installed packages
    if name not in known:
        broken = "".join(f"; {error}" for error in _broken)
        raise UsageError(f"unknown method {name!r}; known: {', '.join(known)}{broken}")


def get(name: str) -> type[DecodingMethod]:
    """The class registered as ``name``; ``UsageError`` lists what exists."""
    check_name(name)
    if name not in _methods:
        importlib.import_module(BUILTIN_MODULES[name])
    return _methods[name]


def is_builtin(name: str) -> bool:
    """Whether the method is this package's own."""
    return get(name).__module__ in BUILTIN_MODULES.values()


def code(name: str, *others: str) -> Code:
    """The code of the method, of the target that it decodes from and of the modules ``others``."""
    return code_of([*modules(get(name)), *others])


def modules(method: type[DecodingMethod]) -> list[str]:
    """The modules whose code, with all that they import, makes the method what it is."""
    own = [base.__module__ for base in method.__mro__ if issubclass(base, DecodingMethod)]
    place = _registered_in.get(getattr(method, "name", ""))
    return list(dict.fromkeys([*own, *([place] if place else []), "methods.models"]))


def option_names(name: str) -> list[str]:
    """The options the method accepts."""
    return [field.name for field in dataclasses.fields(get(name).Options)]


def create(name: str, target: Any, options: Mapping[str, Any] | None = None) -> DecodingMethod:
    """Build a method for ``target``. Options the method does not have are refused by name."""
    cls = get(name)
    given = dict(options or {})
    check_options(name, given)
    return cls(target, cls.Options(**given))


def check_options(name: str, given: Iterable[str]) -> None:
    """``UsageError`` for options the method does not have, with those it has."""
    allowed = option_names(name)
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise UsageError(
            f"method {name!r} has no option {', '.join(map(repr, unknown))}; "
            f"allowed: {', '.join(allowed) or 'none'}"
        )


def _discover() -> None:
    global _discovered
    if _discovered:
        return
    _discovered = True
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            load_plugin(point.value)
        except UsageError as error:  # an installed package must not take the other methods with it
            _broken.append(str(error))
            print(f"warning: {error}", file=sys.stderr)
