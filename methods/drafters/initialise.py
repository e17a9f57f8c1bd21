"""Fresh weights for drafters: seeded, and from the target where that is the convention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from methods.drafters.vocabulary import DraftVocabulary

M = TypeVar("M", bound=nn.Module)


def build_seeded(build: Callable[[], M], seed: int) -> M:
    """``build()`` with PyTorch's default initialisation drawn from ``seed``.

    The global generator is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


@torch.no_grad()
def set_head(head: nn.Linear, vocabulary: DraftVocabulary, target_head: Tensor) -> None:
    """Copy the target's head rows ([vocab, hidden]) of the draft vocabulary into ``head``."""
    head.weight.copy_(vocabulary.rows(target_head))


@torch.no_grad()
def copy_layers(layers: Sequence[nn.Module], sources: Sequence[nn.Module]) -> list[str]:
    """Copy into each layer the source's tensors of the same name and shape.

    Returns the names copied ("0.mlp.up_proj.weight" ...). A linear-attention source gives its MLP
    and its norms only.
    """
    copied = []
    for index, (layer, source) in enumerate(zip(layers, sources, strict=True)):
        given = dict(source.named_parameters())
        for name, parameter in layer.named_parameters():
            if name in given and given[name].shape == parameter.shape:
                parameter.copy_(given[name])
                copied.append(f"{index}.{name}")
    return copied
