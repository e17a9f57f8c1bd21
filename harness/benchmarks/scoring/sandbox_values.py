"""Values between a checked program and its tests, as JSON: what arrives is data, whatever sent it.

An instance of a program's own subclass of a builtin arrives as the builtin, with its content and
without its methods; any other object as one that equals nothing. Used by ``sandbox_worker.py`` only.
"""

import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

MOST_ITEMS = 10_000
"""Of an iterator or another collection that is not a builtin one."""
_NUMPY_KINDS = "biufcSUmM"


class Opaque:
    """An object that is no plain value: its class's name, its truth, and its items if it has any."""

    def __init__(self, name: str, truth: bool, items: list[Any] | None) -> None:
        self._name, self._truth, self._items = name, truth, items

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return self._truth

    def __iter__(self) -> Iterator[Any]:
        if self._items is None:
            raise TypeError(f"{self._name!r} object is not iterable, or does not end")
        return iter(self._items)

    def __repr__(self) -> str:
        return f"<{self._name} object>"


def encode(value: Any) -> Any:
    """``value`` in terms of JSON. Raises what its own iteration or truth raises."""
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if issubclass(kind, str):
        return str.__add__(value, "")
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, int):
        return ["i", format(int.__int__(value), "x")]
    if issubclass(kind, complex):
        exact = complex.__add__(value, 0j)
        return ["c", exact.real, exact.imag]
    for tag, (sequence, items) in _COLLECTIONS.items():
        if issubclass(kind, sequence):
            return [tag, [encode(item) for item in items(value)]]
    if issubclass(kind, dict):
        return ["dict", [[encode(key), encode(item)] for key, item in dict.items(value)]]
    if issubclass(kind, bytes | bytearray):
        return ["bytes" if issubclass(kind, bytes) else "bytearray", bytes(memoryview(value)).hex()]
    if kind is Decimal or kind is Fraction:
        return [kind.__name__, str(value)]
    return _numpy(value) or _opaque(value)


def decode(data: Any) -> Any:
    """The inverse of ``encode``; any exception means that ``data`` is not its work."""
    if not isinstance(data, list):
        return data
    tag, *parts = data
    if tag == "i":
        return int(parts[0], 16)
    if tag == "c":
        return complex(*parts)
    if tag in _COLLECTIONS:
        return _COLLECTIONS[tag][0](map(decode, parts[0]))
    if tag == "dict":
        return {decode(key): decode(item) for key, item in parts[0]}
    if tag in ("bytes", "bytearray"):
        return bytes.fromhex(parts[0]) if tag == "bytes" else bytearray.fromhex(parts[0])
    if tag in ("Decimal", "Fraction"):
        return {"Decimal": Decimal, "Fraction": Fraction}[tag](parts[0])
    if tag == "numpy":
        return _from_numpy(*parts)
    name, truth, items = parts
    return Opaque(str(name), bool(truth), None if items is None else [decode(item) for item in items])


_COLLECTIONS: dict[str, tuple[Any, Any]] = {
    "list": (list, list.__iter__),
    "tuple": (tuple, tuple.__iter__),
    "set": (set, set.__iter__),
    "frozenset": (frozenset, frozenset.__iter__),
}


def _numpy(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic | numpy.ndarray):
        return None
    if value.dtype.kind not in _NUMPY_KINDS:
        return None
    array = numpy.asarray(value)
    scalar = isinstance(value, numpy.generic)
    return ["numpy", array.dtype.str, None if scalar else list(array.shape), array.tobytes().hex()]


def _from_numpy(kind: str, shape: list[int] | None, content: str) -> Any:
    numpy = sys.modules["numpy"]
    array = numpy.frombuffer(bytes.fromhex(content), numpy.dtype(kind))
    return array[0] if shape is None else array.reshape(shape)


def _opaque(value: Any) -> Any:
    truth, items = bool(value), None
    if isinstance(value, Iterable):
        first = list(islice(iter(value), MOST_ITEMS + 1))
        items = [encode(item) for item in first] if len(first) <= MOST_ITEMS else None
    return ["opaque", type(value).__name__, truth, items]
