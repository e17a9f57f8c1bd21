"""Where a target's files lie on this machine, and what identifies them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from methods.assets import cache_dir
from methods.target.embedded import SMOLLM2, smollm2_directory
from methods.target.hashing import files_sha256, tokenizer_sha256

HUB_NAMES = {"qwen3.5-4b": "Qwen/Qwen3.5-4B", "qwen3.5-9b": "Qwen/Qwen3.5-9B"}
"""Short names of targets on the Hugging Face hub."""


def locate(name: str) -> Path:
    """The local directory of a target by short name, hub id or path, fetched if need be.

    Raises ``FileNotFoundError`` for a path that does not exist, and what the hub raises.
    """
    source: str | Path = smollm2_directory() if name == SMOLLM2 else HUB_NAMES.get(name, name)
    if Path(source).is_dir():
        return Path(source)
    if str(source).startswith(("/", ".", "~")) or str(source).count("/") != 1:
        raise FileNotFoundError(f"there is no directory {source}")
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors", "*.jinja", "*.txt"])
    )


def hashes(location: Path, tokenizer: Any) -> dict[str, str]:
    """sha256 of a model directory's weights and of its tokenizer."""
    return {
        "sha256": weights_sha256(location),
        "tokenizer_sha256": _stored(location).get("tokenizer_sha256") or tokenizer_sha256(tokenizer),
    }


def weights_sha256(location: Path) -> str:
    """sha256 of the weight files; remembered by size and time, since large ones take a minute."""
    if stored := _stored(location).get("sha256"):
        return stored
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


def _stored(location: Path) -> dict[str, str]:
    stored = location / "hashes.json"
    return json.loads(stored.read_text()) if stored.exists() else {}
