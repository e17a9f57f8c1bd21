"""Draft-module checkpoints: build untrained, save, and load ours or the authors' files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

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
from methods.spd.aggregation import Aggregation
from methods.spd.authors_file import read_authors_file
from methods.spd.draft_module import DraftModule, DraftModuleConfig

_AGGREGATION_STD = 0.02
_ARCHITECTURE = {
    "n": int,
    "stage_layers": list[int],
    "anchors": list[int],
    "draft_layers": int,
    "layout": str,
}


def untrained(
    shape: TargetShape,
    aggregation: Aggregation,
    draft_layers: int,
    vocabulary: DraftVocabulary,
    target_head: Tensor,
    final_norm: Callable[[Tensor], Tensor],
    rotary: Rotary,
    *,
    seed: int = 0,
    window: int | None = None,
    layout: Layout | None = None,
    dtype: torch.dtype = torch.float32,
) -> DraftModule:
    """A draft module as training starts it: projections N(0, 0.02), layers PyTorch's default, the
    head copied from rows of ``target_head`` [vocab, hidden]."""
    if not 1 <= draft_layers <= shape.num_layers:
        raise UsageError(f"draft layers must be 1 to {shape.num_layers}, the target's; got {draft_layers}")
    layer = layer_config(shape, layout or default_layout(shape))
    config = DraftModuleConfig(layer, aggregation, draft_layers, window)

    def build() -> DraftModule:
        module = DraftModule(config, vocabulary, final_norm, rotary)
        for projection in module.aggr_projs:
            nn.init.normal_(projection.weight, std=_AGGREGATION_STD)  # type: ignore[arg-type]
        return module

    module = build_seeded(build, seed).to(dtype)
    set_head(module.lm_head, vocabulary, target_head)
    return module


def save(directory: Path, module: DraftModule, shape: TargetShape, training: Mapping[str, Any]) -> str:
    """Write ``module`` as a checkpoint for ``shape``; returns the tensor file's SHA-256."""
    aggregation = module.config.aggregation
    config = DraftConfig.for_target(
        shape,
        method="spd",
        layer=module.config.layer,
        draft_ids=None if module.vocabulary.is_full else module.vocabulary.ids.tolist(),
        training_span=module.config.window,
        architecture={
            "n": aggregation.n,
            "stage_layers": list(aggregation.stage_layers),
            "anchors": list(aggregation.anchors),
            "draft_layers": module.config.draft_layers,
            "layout": "B" if module.config.layer.gated else "A",
        },
        training=dict(training),
    )
    return checkpoint.save(directory, module, config)


def load(
    source: str | Path,
    shape: TargetShape,
    final_norm: Callable[[Tensor], Tensor],
    rotary: Rotary,
    *,
    n: int | None = None,
    stage_layers: Sequence[int] | None = None,
    draft_layers: int | None = None,
    schedule: str | None = None,
    target_head: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Loaded[DraftModule]:
    """Load a checkpoint directory of ours or an authors' ``.pt`` file, from a path or ``hf:``.

    ``n``, ``stage_layers``, ``draft_layers`` and ``schedule`` are what the run asks for, None for what
    the file says, if it does (of the schedule an authors' file says nothing); ``target_head`` [vocab,
    hidden] has the rows of a tied head. Raises ``UsageError`` for a file that does not fit the target
    or the run, that has missing or unexpected tensors, or that would run code.
    """
    path, text = resolve(source), str(source)
    if path.is_dir():
        config, tensors, digest = checkpoint.read(path, "spd", target_head)
        checkpoint.check_target(config, shape, text)
        _check_architecture(config, text)
    else:
        config, tensors, digest = read_authors_file(path, shape)
    found = config.architecture
    checkpoint.require(
        text,
        n=(found["n"], n),
        stage_layers=(found["stage_layers"], None if stage_layers is None else list(stage_layers)),
        draft_layers=(found["draft_layers"], draft_layers),
        schedule=(config.training.get("schedule"), schedule if "schedule" in config.training else None),
    )
    aggregation = Aggregation(tuple(found["stage_layers"]), tuple(found["anchors"]))
    module_config = DraftModuleConfig(config.layer, aggregation, found["draft_layers"], config.training_span)
    vocabulary = DraftVocabulary(shape.vocab, config.draft_ids)
    module = build_from(
        lambda: DraftModule(module_config, vocabulary, final_norm, rotary), tensors, dtype, text
    )
    return Loaded(module, config, digest, text)


def _check_architecture(config: DraftConfig, source: str) -> None:
    found = config.architecture
    checkpoint.check_architecture(config, _ARCHITECTURE, source)
    if found["layout"] not in get_args(Layout):
        raise UsageError(f"{source}: layout {found['layout']!r}; allowed: A, B")
    checkpoint.check_stages(config, source)
