"""From a name to a loaded target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from methods.errors import UsageError
from methods.models.embedded import SMOLLM2
from methods.models.files import HUB_NAMES, hashes, locate
from methods.models.parts import DirectorySource
from methods.models.quiet import no_progress_bars
from methods.models.target import Target

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
    model, tokenizer, location = _read(name, DTYPES[dtype], trust_remote_code)
    identity = hashes(location, tokenizer)
    source = DirectorySource(name, DTYPES[dtype], trust_remote_code, identity)
    return Target(model.to(place), tokenizer, name, identity, source)


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a target alone; names and errors as for ``load_target``."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(locate(name))
    except UsageError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise UsageError(f"the tokenizer of target {name!r} cannot be loaded: {reason}") from error


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


def _read(name: str, dtype: torch.dtype, trust: bool) -> tuple[Any, Any, Path]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        location = locate(name)  # a download keeps its bar: it can take minutes
        with no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                location, dtype=dtype, attn_implementation="sdpa", trust_remote_code=trust
            )
        tokenizer = AutoTokenizer.from_pretrained(location, trust_remote_code=trust)
    except UsageError:
        raise
    except Exception as error:  # transformers, hub and file errors share no base class
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        known = ", ".join([SMOLLM2, *HUB_NAMES])
        raise UsageError(
            f"target {name!r} cannot be loaded: {reason} (allowed: {known}, a hub id, or a model directory)"
        ) from error
    return model, tokenizer, location
