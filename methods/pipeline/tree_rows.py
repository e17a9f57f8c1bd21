"""How the nodes of a pipeline's draft tree look to a drafter that recomputes them every cycle."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.pipeline.tree import Level


def tree_rows(levels: Sequence[Level], device: torch.device) -> tuple[Tensor, Tensor]:
    """Positions [nodes] and ancestor mask [nodes, nodes] (each node sees itself) of a draft tree."""
    nodes = [node for level in levels for node in level]
    index = {node.id: i for i, node in enumerate(nodes)}
    mask = torch.zeros(len(nodes), len(nodes), dtype=torch.bool)
    for i, node in enumerate(nodes):
        if node.parent is not None:
            mask[i] = mask[index[node.parent.id]]
        mask[i, i] = True
    return torch.tensor([node.position for node in nodes], device=device), mask.to(device)
