"""Exit-head checkpoints: build untrained, save, load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from methods.drafters import checkpoint
from methods.drafters.checkpoint import DraftConfig, Loaded
from methods.drafters.initialise import build_seeded, set_head
from methods.drafters.layouts import Layout, default_layout, layer_config
from methods.drafters.rotary import Rotary
from methods.drafters.source import resolve
from methods.drafters.tensors import build_from
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.models.shape import TargetShape
from methods.ppsd.exit_head import ExitHead, ExitHeadConfig, HeadClass

_ARCHITECTURE = {"n": int, "stage_layers": list[int], "head_class": str}


def untrained(
    shape: TargetShape,
    exit_layers: int,
    vocabulary: DraftVocabulary,
    target_head: Tensor,
    rotary: Rotary,
    *,
    head_class: HeadClass = "layer",
    final_norm_weight: Tensor | None = None,
    seed: int = 0,
    window: int | None = None,
    layout: Layout | None = None,
    dtype: torch.dtype = torch.float32,
) -> ExitHead:
    """An exit head as training starts it: PyTorch's default layer, the head copied from rows of
    ``target_head`` [vocab, hidden], the norm from ``final_norm_weight`` [hidden] if given (in the
    layout's own convention)."""
    layer = layer_config(shape, layout or default_layout(shape))
    config = ExitHeadConfig(layer, exit_layers, head_class, window)
    head = build_seeded(lambda: ExitHead(config, vocabulary, rotary), seed).to(dtype)
    set_head(head.lm_head, vocabulary, target_head)
    if final_norm_weight is not None:
        with torch.no_grad():
            head.norm.weight.copy_(final_norm_weight)
    return head


def save(
    directory: Path,
    head: ExitHead,
    shape: TargetShape,
    stage_layers: Sequence[int],
    training: Mapping[str, Any],
) -> str:
    """Write ``head`` as a checkpoint for ``shape``; returns the tensor file's SHA-256."""
    if stage_layers[0] != head.config.exit_layers:
        raise ValueError(f"stage 1 has {stage_layers[0]} layers, the head exits at {head.config.exit_layers}")
    config = DraftConfig.for_target(
        shape,
        method="ppsd",
        layer=head.config.layer,
        draft_ids=None if head.vocabulary.is_full else head.vocabulary.ids.tolist(),
        training_span=head.config.window,
        architecture={
            "n": len(stage_layers),
            "stage_layers": list(stage_layers),
            "head_class": head.config.head_class,
        },
        training=dict(training),
    )
    return checkpoint.save(directory, head, config)


def load(
    source: str | Path,
    shape: TargetShape,
    rotary: Rotary,
    *,
    n: int | None = None,
    stage_layers: Sequence[int] | None = None,
    head_class: str | None = None,
    target_head: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Loaded[ExitHead]:
    """Load a checkpoint directory from a path or ``hf:``; None asks for what the file says.
    ``target_head`` [vocab, hidden] has the rows of a tied head.

    Raises ``UsageError`` for a checkpoint that does not fit the target or the run, or that has
    missing or unexpected tensors.
    """
    path, text = resolve(source), str(source)
    if not path.is_dir():
        raise UsageError(f"{text} is a file; an exit head's checkpoint is a directory")
    config, tensors, digest = checkpoint.read(path, "ppsd", target_head)
    checkpoint.check_target(config, shape, text)
    found = config.architecture
    checkpoint.check_architecture(config, _ARCHITECTURE, text)
    checkpoint.check_stages(config, text)
    checkpoint.require(
        text,
        n=(found["n"], n),
        stage_layers=(found["stage_layers"], None if stage_layers is None else list(stage_layers)),
        head_class=(found["head_class"], head_class),
    )
    head_config = ExitHeadConfig(
        config.layer, found["stage_layers"][0], found["head_class"], config.training_span
    )
    vocabulary = DraftVocabulary(shape.vocab, config.draft_ids)
    head = build_from(lambda: ExitHead(head_config, vocabulary, rotary), tensors, dtype, text)
    return Loaded(head, config, digest, text)
