"""From a name to a loaded target."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from methods.errors import UsageError
from methods.target.embedded import SMOLLM2
from methods.target.files import HUB_NAMES, hashes, locate
from methods.target.parts import DirectorySource
from methods.target.target import Target

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

log = logging.getLogger(__name__)


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
    model, tokenizer, location = _read(name, DTYPES[dtype], trust_remote_code)
    identity = hashes(location, tokenizer)
    source = DirectorySource(name, DTYPES[dtype], trust_remote_code, identity)
    return Target(model.to(place), tokenizer, name, identity, source)


def _device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError:
        place = None
    if (
        place is None
        or place.type not in ("cpu", "cuda")
        or (place.type == "cuda" and not torch.cuda.is_available())
    ):
        raise UsageError(f"device {device!r} is not available; allowed: auto, cpu" + _gpus())
    return place


def _gpus() -> str:
    return "".join(f", cuda:{index}" for index in range(torch.cuda.device_count()))


def _read(name: str, dtype: torch.dtype, trust: bool) -> tuple[Any, Any, Path]:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    try:
        location = locate(name)
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
