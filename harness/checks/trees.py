"""Draft trees by brute force: every node against a plain pass of its root path."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from methods.models.target import Target

Tree = Sequence[tuple[int, int]]
"""(parent node or -1 for the prompt's last token, token) of each node, parents first."""


def root_paths(tree: Tree) -> list[list[int]]:
    """Node numbers from the root to each node, itself included."""
    paths: list[list[int]] = []
    for node, (parent, _) in enumerate(tree):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    return paths


@torch.no_grad()
def tree_difference(target: Target, prompt_ids: Sequence[int], tree: Tree, splits: Sequence[int]) -> float:
    """C15: largest difference of a node's logits from those of its path behind the prompt in a
    plain forward. ``splits`` are the numbers of nodes that arrive together."""
    state, parts, start = target.new_state(), [], 0
    target.prefill(prompt_ids, state)
    for size in splits:
        nodes = tree[start : start + size]
        parents = [len(prompt_ids) + parent for parent, _ in nodes]
        parts.append(target.forward([token for _, token in nodes], state, parents, record=True).hidden)
        start += size
    logits = target.logits(torch.cat(parts, 1))[0]
    worst = 0.0
    for row, path in zip(logits, root_paths(tree), strict=True):
        ids = [*prompt_ids, *(tree[node][1] for node in path)]
        expected = target.logits(target.prefill(ids, target.new_state()).hidden)[0, 0]
        worst = max(worst, float((row - expected).abs().max()))
    return worst
