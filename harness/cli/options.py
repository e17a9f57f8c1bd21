"""Method options as typed on the command line, turned into the types the method declares."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from methods import registry
from methods.errors import UsageError

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


def parse_pairs(pairs: Iterable[str]) -> dict[str, str]:
    """``KEY=VALUE`` strings as a dictionary; dashes in a key count as underscores."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.replace("-", "_")
        if not equals or not key:
            raise UsageError(f"--option expects KEY=VALUE, got {pair!r}")
        if key in values:
            raise UsageError(f"option {key} is given twice")
        values[key] = value
    return values


def typed(method: str, texts: Mapping[str, str]) -> dict[str, Any]:
    """``texts`` by the annotations of the method's ``Options``.

    ``UsageError`` for an option the method does not have, listing those it has, and for a text
    that is not of the option's type.
    """
    registry.check_options(method, texts)
    hints = get_type_hints(registry.get(method).Options)
    return {name: convert(name, text, hints[name]) for name, text in texts.items()}


def default_of(method: str, option: str) -> Any:
    """The declared default of an option, None if it has none or the method lacks the option."""
    for field in dataclasses.fields(registry.get(method).Options):
        if field.name == option and field.default is not dataclasses.MISSING:
            return field.default
    return None


def convert(name: str, text: str, kind: Any) -> Any:
    """``text`` as ``kind``: a scalar, a Literal, an optional or union, or a comma-separated tuple or list."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _first_that_fits(name, text, arguments)
    if origin is Literal:
        by_text = {str(choice): choice for choice in arguments}
        if text not in by_text:
            raise UsageError(f"option {name} is {text!r}; allowed: {', '.join(by_text)}")
        return by_text[text]
    if origin in (tuple, list):
        return origin(convert(name, part.strip(), arguments[0]) for part in text.split(",") if part.strip())
    if kind is bool:
        return _boolean(name, text)
    if kind is str or kind is Any:
        return text
    try:
        return kind(text)
    except (TypeError, ValueError) as error:
        raise UsageError(f"option {name} expects {getattr(kind, '__name__', kind)}, got {text!r}") from error


def _first_that_fits(name: str, text: str, kinds: tuple[Any, ...]) -> Any:
    if type(None) in kinds and text.lower() == "none":
        return None
    candidates = [kind for kind in kinds if kind is not type(None)]
    # str takes every text, so it comes last.
    for kind in sorted(candidates, key=lambda kind: kind is str):
        try:
            return convert(name, text, kind)
        except UsageError as error:
            failure = error
    raise failure


def _boolean(name: str, text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise UsageError(f"option {name} expects true or false, got {text!r}")
