"""Tensor files in and out of modules: nothing unlisted, nothing missing, nothing executed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from methods.errors import UsageError

M = TypeVar("M", bound=nn.Module)


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file. Raises ``UsageError`` for anything else."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path} is not a readable safetensors file: {error}") from error


def read_pickle(path: Path) -> Any:
    """A ``torch.save`` file of tensors and plain values.

    A pickle that names anything else, and so could run code, is refused with ``UsageError`` before
    it is unpickled.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile or torn file fails in many ways
        found = re.search(r"GLOBAL (\S+)|(?:class|function) (\S+\.\S+)", str(error))
        reason = f"it names {found[1] or found[2]}" if found else "it is not a readable torch.save file"
        raise UsageError(
            f"{path} is refused: only tensors and plain values may be in it, and {reason}"
        ) from error


def build_from(build: Callable[[], M], tensors: Mapping[str, Tensor], dtype: torch.dtype, source: str) -> M:
    """``build()`` with exactly ``tensors`` as its parameters, in ``dtype``.

    The module is built without memory of its own. Raises ``UsageError`` listing every missing,
    unexpected and wrongly shaped tensor.
    """
    with torch.device("meta"):
        module = build()
    expected = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    faults = [f"missing {name}" for name in expected if name not in tensors]
    faults += [f"unexpected {name}" for name in tensors if name not in expected]
    faults += [
        f"{name} has shape {list(tensors[name].shape)}, not {list(shape)}"
        for name, shape in expected.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    if faults:
        raise UsageError(f"{source} does not fit: {'; '.join(faults)}")
    module.load_state_dict({name: value.to(dtype) for name, value in tensors.items()}, assign=True)
    return module


def sync(path: Path) -> None:
    """Have the content of ``path`` on the disk, before another file is replaced or deleted for it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
