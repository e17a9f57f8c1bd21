"""EAGLE-3 checkpoints: build untrained, save, and load ours or published heads."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from methods.drafters import checkpoint
from methods.drafters.checkpoint import HEAD, DraftConfig, Loaded
from methods.drafters.initialise import build_seeded, set_head
from methods.drafters.layouts import layer_config
from methods.drafters.source import resolve
from methods.drafters.tensors import build_from
from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3.head import Eagle3Config, Eagle3Head, default_taps, rotary_for
from methods.eagle3.published import read_published
from methods.errors import UsageError
from methods.models.shape import TargetShape

_FLAGS = ("fc_bias", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "own_embedding")
_ARCHITECTURE = {"taps": list[int], "rope": dict} | dict.fromkeys(_FLAGS, bool)


def untrained(
    shape: TargetShape,
    vocabulary: DraftVocabulary,
    embed: Callable[[Tensor], Tensor],
    *,
    rope_theta: float = 10_000.0,
    target_head: Tensor | None = None,
    seed: int = 0,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Eagle3Head:
    """A head as training starts it, of the target's own sizes.

    ``target_head`` [vocab, hidden] gives the head's rows; without it they are random, as published.
    """
    layer = layer_config(shape, streams=2, qk_norm=False)
    rope = {"rope_type": "default", "rope_theta": rope_theta}
    config = Eagle3Config(layer, shape.hidden, default_taps(shape.num_layers), rope, window)
    rotary = rotary_for(config, dtype)
    head = build_seeded(lambda: Eagle3Head(config, vocabulary, embed, rotary), seed).to(dtype)
    if target_head is not None:
        set_head(head.lm_head, vocabulary, target_head)
    return head


def save(directory: Path, head: Eagle3Head, shape: TargetShape, training: Mapping[str, Any]) -> str:
    """Write ``head`` as a checkpoint for ``shape``; returns the tensor file's SHA-256.

    A tied head's rows are left out.
    """
    flags = {name: getattr(head.config, name) for name in _FLAGS}
    config = DraftConfig.for_target(
        shape,
        method="eagle3",
        layer=head.config.layer,
        draft_ids=None if head.vocabulary.is_full else head.vocabulary.ids.tolist(),
        training_span=head.config.window,
        architecture=flags | {"taps": list(head.config.taps), "rope": dict(head.config.rope)},
        tied_head=head.config.tied_head,
        training=dict(training),
    )
    tensors = head.state_dict()
    if config.tied_head:
        del tensors[HEAD]
    return checkpoint.write(directory, tensors, config)


def load(
    source: str | Path,
    shape: TargetShape,
    embed: Callable[[Tensor], Tensor],
    *,
    draft_rope_theta: float | None = None,
    taps: Sequence[int] | None = None,
    norm_output: bool | None = None,
    target_head: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Loaded[Eagle3Head]:
    """Load a checkpoint directory of ours or a published head, from a path or ``hf:``.

    ``draft_rope_theta``, ``taps`` (residual-stream indices) and ``norm_output`` (feed the normed
    output back) override what the file says or implies; ``target_head`` [vocab, hidden] has the rows
    of a tied head, and of a published one that comes without: they stay the target's (not copied, not
    trained). Raises ``UsageError`` for a head that does not fit the target, or with missing or
    unexpected tensors.
    """
    path, text = resolve(source), str(source)
    if (path / "draft.json").exists():
        config, tensors, digest = checkpoint.read(path, "eagle3", target_head)
        checkpoint.check_target(config, shape, text)
        checkpoint.check_architecture(config, _ARCHITECTURE, text)
        if taps is not None or draft_rope_theta is not None:
            raise UsageError(
                f"{text}: taps and draft_rope_theta belong to a published head, this one is trained"
            )
    else:
        config, tensors, digest = read_published(path, shape, taps, target_head)
    found = dict(config.architecture)
    if draft_rope_theta is not None:
        found["rope"] = dict(found["rope"]) | {"rope_theta": draft_rope_theta}
    if norm_output is not None:
        found["norm_output"] = norm_output
    found["taps"] = _check_taps(taps or found["taps"], shape, text)
    config = dataclasses.replace(config, architecture=found | {"taps": list(found["taps"])})
    head_config = Eagle3Config(
        layer=config.layer,
        target_hidden=config.hidden,
        window=config.training_span,
        tied_head=config.tied_head,
        **found,
    )
    vocabulary = DraftVocabulary(shape.vocab, config.draft_ids)
    try:
        rotary = rotary_for(head_config, dtype)
    except Exception as error:  # transformers checks its parameters in many ways
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"{text}: rope {dict(head_config.rope)} cannot be used ({reason})") from error
    head = build_from(lambda: Eagle3Head(head_config, vocabulary, embed, rotary), tensors, dtype, text)
    head.lm_head.requires_grad_(not config.tied_head)
    return Loaded(head, config, digest, text)


def _check_taps(taps: Sequence[int], shape: TargetShape, source: str) -> tuple[int, int, int]:
    if len(taps) != 3 or not all(0 <= tap <= shape.num_layers for tap in taps):
        raise UsageError(f"{source}: taps {list(taps)}; allowed: three indices from 0 to {shape.num_layers}")
    low, middle, high = taps
    return low, middle, high
