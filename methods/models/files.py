"""Where a target's files lie on this machine, and what identifies them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from methods.models.embedded import SMOLLM2, embedded_directory, smollm2_directory, stored_hashes
from methods.models.hashing import remembered_sha256, tokenizer_sha256

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
    if location == embedded_directory():
        stored = stored_hashes(location)
        return {name: stored[name] for name in ("sha256", "tokenizer_sha256")}
    return {"sha256": weights_sha256(location), "tokenizer_sha256": tokenizer_sha256(tokenizer)}


def weights_sha256(location: Path) -> str:
    """sha256 of a model directory's weight files."""
    if location == embedded_directory():
        return stored_hashes(location)["sha256"]
    return remembered_sha256(list(location.glob("*.safetensors")) or location.glob("*.bin"))
