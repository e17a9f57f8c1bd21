"""From a name to a loaded target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from methods.assets import cache_dir
from methods.errors import UsageError
from methods.target.embedded import SMOLLM2, smollm2_directory
from methods.target.hashing import files_sha256, tokenizer_sha256
from methods.target.quiet import no_progress_bars
from methods.target.target import Target

HUB_NAMES = {"qwen3.5-4b": "Qwen/Qwen3.5-4B", "qwen3.5-9b": "Qwen/Qwen3.5-9B"}
"""Short names of targets on the Hugging Face hub."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_target(
    name: str, dtype: str = "float32", device: str = "auto", trust_remote_code: bool = False
) -> Target:
    """Load a target by short name, Hugging Face hub id or path of a model directory.

    ``device`` "auto" is the first GPU where there is one. Raises ``UsageError`` for an unknown
    dtype or device, a model that cannot be found or read, or a family that is not supported.
    """
    if dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}; allowed: {', '.join(DTYPES)}")
    place = _device(device)
    source: str | Path = smollm2_directory() if name == SMOLLM2 else HUB_NAMES.get(name, name)
    model, tokenizer, location = _read(source, name, DTYPES[dtype], trust_remote_code)
    return Target(model.to(place), tokenizer, name, _hashes(location, tokenizer))


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        place = None
    usable = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    if place is None or place.type not in usable:
        raise UsageError(f"device {device!r} is not available; allowed: auto, cpu" + _gpus())
    return place


def _gpus() -> str:
    return "".join(f", cuda:{index}" for index in range(torch.cuda.device_count()))


def _read(source: str | Path, name: str, dtype: torch.dtype, trust: bool) -> tuple[Any, Any, Path]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        location = _snapshot(source)  # a download keeps its bar: it can take minutes
        with no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                location, dtype=dtype, attn_implementation="sdpa", trust_remote_code=trust
            )
        tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=trust)
    except Exception as error:  # transformers, hub and file errors share no base class
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        known = ", ".join([SMOLLM2, *HUB_NAMES])
        raise UsageError(
            f"target {name!r} cannot be loaded: {reason} (allowed: {known}, a hub id, or a model directory)"
        ) from error
    return model, tokenizer, location


def _snapshot(source: str | Path) -> Path:
    """The local directory of a model: itself, or the hub's snapshot, fetched if need be."""
    if Path(source).is_dir():
        return Path(source)
    if str(source).startswith(("/", ".", "~")) or str(source).count("/") != 1:
        raise FileNotFoundError(f"there is no directory {source}")
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt"]
    return Path(snapshot_download(str(source), allow_patterns=patterns))


def _hashes(location: Path, tokenizer: Any) -> dict[str, str]:
    stored = location / "hashes.json"
    if stored.exists():
        return json.loads(stored.read_text())
    return {"sha256": _weights_sha256(location), "tokenizer_sha256": tokenizer_sha256(tokenizer)}


def _weights_sha256(location: Path) -> str:
    """sha256 of the weight files; remembered by size and time, since large ones take a minute."""
    files = sorted(location.glob("*.safetensors")) or sorted(location.glob("*.bin"))
    stamp = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    memory = cache_dir() / "weight-hashes.json"
    known = json.loads(memory.read_text()) if memory.exists() else {}
    key = json.dumps(stamp)
    if key not in known:
        known[key] = files_sha256(files)
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(json.dumps(known, indent=1))
    return known[key]
