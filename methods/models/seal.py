"""What a target is, taken down before a method gets hold of it and compared afterwards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from methods.models.rotary import Rotary
from methods.source_code.loaded import Functions, functions, replaced

_CHUNK = 1 << 26
"""Bytes that are copied at once from a GPU."""
_ROTARY_ROWS = 8192
"""Positions whose angles are compared, at most: the table of them grows with the prompts."""
_SCALARS = (int, float, str, bool, type(None), torch.dtype)
_GROWING = {Rotary: ("_cos", "_sin")}
_APART = ("config", "hf", "source", "tokenizer")
"""Attributes of a target that are looked at in their own way, or do not bear on its output."""

Facts = dict[str, Any]


class Seal:
    """A target with its tokenizer and configuration as they are now, and the code they run on.

    Objects and functions are held by identity, numbers by value, tensors (parameters, buffers and what
    the target derives from them) by place, shape and content. ``code`` is that of several targets, if
    another one's seal holds it.
    """

    def __init__(self, target: Any, code: Functions | None = None) -> None:
        self._target = target
        self._functions = functions() if code is None else code
        self._facts: Facts = dict(_facts(target))
        self._hashes = {name: content() for name, content in _contents(target, self._facts)}
        self._to_hash: list[str] = []

    def difference(self, seconds: float = math.inf) -> str | None:
        """What is not as it was, in words; None where nothing was found.

        All contents are hashed; or, given ``seconds``, as many as they allow from where the last call
        stopped: see ``whole``.
        """
        facts = dict(_facts(self._target))
        if (fault := _first_difference(self._facts, facts)) is not None:
            return fault
        if (name := replaced(self._functions)) is not None:
            return f"{name} was replaced"
        contents = dict(_contents(self._target, facts))
        if not self._to_hash or seconds == math.inf:
            self._to_hash = list(self._hashes)
        started = time.monotonic()
        while self._to_hash:
            name = self._to_hash[0]
            if contents[name]() != self._hashes[name]:
                return f"{name} was changed"
            del self._to_hash[0]
            if time.monotonic() - started > seconds:
                break
        return None

    @property
    def whole(self) -> bool:
        """Whether the last call of ``difference`` came to the last content, so that the next one begins with
        the first."""
        return not self._to_hash


@dataclass(frozen=True)
class _Layout:
    """Where a tensor lies and how; the tensor itself for its content."""

    place: tuple[Any, ...]
    tensor: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Layout) and self.place == other.place

    @classmethod
    def of(cls, tensor: Tensor) -> _Layout:
        place = tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
        return cls(place, tensor)


@dataclass(frozen=True)
class _Identity:
    """An object that has to stay the same one; ``overrides``: it takes the place of something."""

    value: Any
    overrides: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value


def _first_difference(before: Facts, now: Facts) -> str | None:
    for name, fact in before.items():
        if name not in now:
            return f"{name} was removed"
        if type(fact) is not type(now[name]) or fact != now[name]:
            known = isinstance(fact, _SCALARS)
            return f"{name} was {fact!r} and is {now[name]!r}" if known else f"{name} was replaced"
    for name, fact in now.items():
        if name not in before and isinstance(fact, _Identity) and fact.overrides:
            return f"{name} was added"
    return None


def _facts(target: Any) -> Iterator[tuple[str, Any]]:
    """Everything but contents. The transformers model comes first: its names are the ones known."""
    seen: set[int] = set()
    hf, tokenizer = getattr(target, "hf", None), getattr(target, "tokenizer", None)
    if isinstance(hf, nn.Module):
        yield from _of_object("", hf, seen)
    yield from _of_object("target", target, seen)
    for name in ("config", "generation_config"):
        if hasattr(getattr(hf, name, None), "to_dict"):
            values = getattr(hf, name).to_dict()
            yield from ((f"{name}.{key}", repr(value)) for key, value in values.items())
    yield "tokenizer", _Identity(tokenizer)
    yield "tokenizer.chat_template", repr(getattr(tokenizer, "chat_template", None))
    for key in ("apply_chat_template", "decode"):
        yield f"{type(tokenizer).__qualname__}.{key}", _Identity(getattr(type(tokenizer), key, None))
    for key, inner in getattr(tokenizer, "__dict__", {}).items():
        if callable(inner) and hasattr(type(tokenizer), key):
            yield f"tokenizer.{key}", _Identity(inner, overrides=True)
    for name, value in vars(nn.modules.module).items():
        if name.endswith("_hooks"):
            yield from _walk(f"torch.nn.modules.module.{name}", value, seen, True)
    yield "torch's default dtype", torch.get_default_dtype()
    yield "torch's float32 matmul precision", torch.get_float32_matmul_precision()
    yield "torch's deterministic algorithms", torch.are_deterministic_algorithms_enabled()


def _walk(name: str, value: Any, seen: set[int], overrides: bool = False) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor):
        yield name, _Layout.of(value)
    elif isinstance(value, _SCALARS):
        yield name, value
    elif isinstance(value, list | tuple):
        yield f"length of {name}", len(value)
        for index, inner in enumerate(value):
            yield from _walk(f"{name}[{index}]", inner, seen, overrides)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _walk(f"{name}[{key!r}]", inner, seen, overrides)
    elif isinstance(value, nn.Module) or _is_own(value):
        yield name, _Identity(value)
        yield from _of_object(name, value, seen)
    elif callable(value):
        yield name, _Identity(value, overrides)


def _is_own(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "methods" and hasattr(value, "__dict__")


def _of_object(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, nn.Module):
        yield f"{type(value).__module__}.{type(value).__qualname__}.forward", _Identity(type(value).forward)
    skipped = (*_APART, *_GROWING.get(type(value), ()))
    for key, inner in vars(value).items():
        if isinstance(value, nn.Module) and key in ("_parameters", "_buffers", "_modules"):
            for part, content in inner.items():
                yield from _walk(_join(name, part), content, seen)
        elif key not in skipped:
            overrides = key.endswith("_hooks") or hasattr(type(value), key)
            yield from _walk(_join(name, key), inner, seen, overrides)


def _join(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _contents(target: Any, facts: Facts) -> Iterator[tuple[str, Callable[[], str]]]:
    """By name what hashes a content. Tensors that share their memory with an earlier one are left out."""
    hashed: dict[int, int] = {}
    for name, fact in facts.items():
        if not isinstance(fact, _Layout) or fact.tensor.is_meta:
            continue
        memory = fact.tensor.untyped_storage()
        done = hashed.get(memory.data_ptr(), 0)
        if done < memory.nbytes():  # the parts of a fused matrix fill it together
            hashed[memory.data_ptr()] = done + fact.tensor.nbytes
            yield name, partial(_hash, [fact.tensor])
    rotary, tokenizer = getattr(target, "rotary", None), getattr(target, "tokenizer", None)
    if isinstance(rotary, Rotary):
        rows = min(target.context, _ROTARY_ROWS)
        yield "target.rotary", lambda: _hash(rotary.rows(0, rows))
    if tokenizer is not None:
        yield "tokenizer", lambda: _hash_of_tokenizer(tokenizer)


def _hash(tensors: Iterable[Tensor]) -> str:
    digest = xxhash.xxh3_128()
    for tensor in tensors:
        for part in tensor.detach().reshape(-1).view(torch.uint8).split(_CHUNK):
            digest.update(part.cpu().numpy())
    return digest.hexdigest()


def _hash_of_tokenizer(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        vocabulary: dict[str, int] = getattr(tokenizer, "get_vocab", dict)()
        definition = repr(sorted(vocabulary.items()))
    else:  # what comes before the added tokens, truncation and padding, every call may set anew
        definition = backend.to_str().partition('"added_tokens"')[2]
    return xxhash.xxh3_128_hexdigest(definition.encode())
