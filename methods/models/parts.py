"""Loading no more of a target than one process runs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from methods.errors import UsageError
from methods.models.files import locate, weights_sha256
from methods.models.part import Part
from methods.models.target import Target


@dataclass(frozen=True)
class DirectorySource:
    """A target in safetensors files; ``hashes`` are those of ``Target.hashes``."""

    name: str
    dtype: torch.dtype
    trust_remote_code: bool
    hashes: dict[str, str]

    def load(self, part: Part, device: torch.device) -> Target:
        location = locate(self.name)
        found, expected = weights_sha256(location), self.hashes["sha256"]
        if found != expected:
            raise UsageError(
                f"target {self.name!r} has weights {found[:12]} here; the run's are {expected[:12]} (sha256)"
            )
        files = sorted(location.glob("*.safetensors"))
        if not files:
            raise UsageError(f"target {self.name!r} has no safetensors files, from which parts are loaded")
        model = _read(_skeleton(location, self), files, part, device, self.dtype)
        return Target(model, None, self.name, self.hashes, self)


def _skeleton(location: Path, source: DirectorySource) -> Any:
    """The model without memory for weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(location, trust_remote_code=source.trust_remote_code)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            config,
            dtype=source.dtype,
            attn_implementation="sdpa",
            trust_remote_code=source.trust_remote_code,
        )


def _read(model: Any, files: list[Path], part: Part, device: torch.device, dtype: torch.dtype) -> Any:
    """Fill ``part`` of ``model`` from slices of ``files``, renamed and merged as transformers does."""
    from safetensors import safe_open
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    tied = bool(model.config.get_text_config().tie_word_embeddings)
    mapping: list[Any] = get_model_conversion_mapping(model)
    config = LoadStateDictConfig(
        device_map={"": device},
        dtype=dtype,
        dtype_plan=model._get_dtype_plan(dtype),
        weight_mapping=mapping,
    )
    with ExitStack() as stack:
        slices = {}
        for file in files:
            opened = stack.enter_context(safe_open(file, framework="pt"))
            slices.update({key: opened.get_slice(key) for key in opened.keys() if part.holds(key, tied)})  # noqa: SIM118
        convert_and_load_state_dict_in_model(model, slices, config)
    model.tie_weights()
    rotary = model.model.rotary_emb  # its table is no part of the files
    model.model.rotary_emb = type(rotary)(config=rotary.config).to(device)
    missing = [name for name, value in model.named_parameters() if value.is_meta and part.holds(name, tied)]
    if missing:
        raise UsageError(f"the target's files lack {len(missing)} tensors, among them {missing[0]}")
    return model
