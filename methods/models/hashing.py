"""Hashes that tie a record or a checkpoint to the exact weights it belongs to."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from methods.assets import cache_dir


def files_sha256(paths: Iterable[Path]) -> str:
    """One sha256 over the names and contents of ``paths``, in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
    return digest.hexdigest()


def remembered_sha256(paths: Iterable[Path]) -> str:
    """``files_sha256``, kept in the user's cache by size and time: large files take a minute."""
    files = sorted(paths)
    stamp = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    memory, key = cache_dir() / "weight-hashes.json", json.dumps(stamp)
    known = _read_memory(memory)
    if key not in known:
        known[key] = files_sha256(files)
        with suppress(OSError):  # without a cache only time is lost
            memory.parent.mkdir(parents=True, exist_ok=True)
            part = memory.with_suffix(f".{os.getpid()}")  # other processes may read and write it, too
            part.write_text(json.dumps(known, indent=1))
            os.replace(part, memory)
    return known[key]


def _read_memory(path: Path) -> dict[str, str]:
    try:
        known = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def module_sha256(module: nn.Module) -> str:
    """sha256 over all parameters and persistent buffers, by name, as stored bytes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def tokenizer_sha256(tokenizer: Any) -> str:
    """sha256 over the tokenizer's full definition; the empty string without a tokenizer."""
    if tokenizer is None:
        return ""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    text = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(text.encode()).hexdigest()
