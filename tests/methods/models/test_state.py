"""Rollback is exact for every layer kind: what is left equals a fresh prefill of what was kept."""

from __future__ import annotations

import pytest
import torch
from conftest import random_ids

from harness.checks.states import memory_difference
from harness.checks.trees import root_paths, tree_difference
from methods.models.state import RecurrentCache, State
from methods.models.target import Target

TOLERANCE = 1e-5


def fresh(target: Target, ids: list[int]) -> State:
    state = target.new_state()
    target.forward(ids, state)
    return state


def next_logits(target: Target, state: State, token: int) -> torch.Tensor:
    return target.logits(target.forward([token], state, record=True).hidden)[0, -1]


def check_equals_prefill(target: Target, state: State, ids: list[int]) -> None:
    expected = fresh(target, ids)
    assert state.length == len(ids)
    assert memory_difference(state, expected, [len(ids)]) <= TOLERANCE
    probe = next_logits(target, state, 1) - next_logits(target, expected, 1)
    assert float(probe.abs().max()) <= TOLERANCE


@pytest.mark.parametrize("accepted", range(6))
def test_rollback_grid(target: Target, accepted: int) -> None:
    """0 .. k of k drafted tokens kept, twice in a row (C4)."""
    prompt, state = random_ids(9), target.new_state()
    target.prefill(prompt, state)
    kept = list(prompt)
    for seed in (5, 6):
        draft = random_ids(5, seed=seed)
        mark = state.mark()
        target.forward(draft, state, record=True)
        state.rollback(mark + accepted)
        state.commit()
        kept += draft[:accepted]
    check_equals_prefill(target, state, kept)


TREE = [(-1, 3), (-1, 7), (0, 5), (0, 9), (1, 5), (2, 8), (4, 2), (6, 6)]
"""Parent index and token of each node, two branches at the root and deeper ones."""


@pytest.mark.parametrize("splits", [[8], [2, 3, 3], [1] * 8])
def test_every_node_equals_a_forward_of_its_path(target: Target, splits: list[int]) -> None:
    """C15, also when the tree arrives in several calls."""
    assert tree_difference(target, random_ids(10, seed=3), TREE, splits) <= TOLERANCE


@pytest.mark.parametrize("path", root_paths(TREE))
def test_keeping_one_path_of_a_tree(target: Target, path: list[int]) -> None:
    prompt, state = random_ids(10, seed=3), target.new_state()
    target.prefill(prompt, state)
    target.forward([t for _, t in TREE], state, [len(prompt) + p for p, _ in TREE], record=True)
    state.keep([len(prompt) + i for i in path])
    state.commit()
    check_equals_prefill(target, state, prompt + [TREE[i][1] for i in path])


def test_a_tree_grows_behind_a_pruned_one(target: Target) -> None:
    """What a pipeline does: keep a branch with its subtree, commit its root, add a level."""
    prompt, state = random_ids(10, seed=3), target.new_state()
    target.prefill(prompt, state)
    base = len(prompt)
    target.forward([t for _, t in TREE], state, [base + p for p, _ in TREE], record=True)
    state.keep([base + i for i in (0, 2, 3, 5)])  # node 0 and its descendants
    state.commit(base + 1)
    out = target.forward([4, 11], state, [base + 2, base + 3], record=True)
    for row, tail in zip(target.logits(out.hidden)[0], ([3, 9, 4], [3, 5, 8, 11]), strict=True):
        expected = target.logits(target.prefill(prompt + tail, target.new_state()).hidden)[0, 0]
        assert float((row - expected).abs().max()) <= TOLERANCE


def test_growth_keeps_what_is_stored(target: Target) -> None:
    """The same calls on a state that never has to grow leave the same bits."""
    ids, grown, roomy = random_ids(262, seed=8), target.new_state(), target.new_state()
    roomy._reserve(1024)
    for state in (grown, roomy):
        target.forward(ids[:250], state)
        for token in ids[250:]:
            target.forward([token], state)
    assert 256 < grown.capacity < roomy.capacity
    assert grown.length == roomy.length and memory_difference(grown, roomy, [262]) == 0


def test_rollback_below_what_was_committed_is_refused(llama: Target) -> None:
    state = fresh(llama, random_ids(5))
    with pytest.raises(ValueError, match=r"roll back to 4: .* 5 are final; .* record=True"):
        state.rollback(4)


def test_committed_recurrent_states_are_dropped(hybrid: Target) -> None:
    state = hybrid.new_state()
    for token in random_ids(30):
        hybrid.forward([token], state, record=True)
        state.commit(max(0, state.length - 3))
    kept = [len(cache.states) for cache in state.caches if isinstance(cache, RecurrentCache)]
    assert kept
    assert max(kept) <= 4


def test_a_recurrent_state_that_is_not_rolled_back_is_noticed(
    hybrid: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeded fault: what transformers' own crop does."""
    latest: dict[int, tuple[torch.Tensor, ...]] = {}

    def after(self: RecurrentCache, slot: int) -> tuple[torch.Tensor, ...] | None:
        return latest.get(id(self))

    def store(self: RecurrentCache, slot: int, state: tuple[torch.Tensor, ...]) -> None:
        latest[id(self)] = state
        self.states[slot] = state

    monkeypatch.setattr(RecurrentCache, "after", after)
    monkeypatch.setattr(RecurrentCache, "store", store)
    with pytest.raises(AssertionError):
        test_rollback_grid(hybrid, accepted=2)


def test_a_mask_that_leaks_between_branches_is_noticed(
    llama: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeded fault: every tree node sees all nodes before it."""
    tree_block = State._tree_block

    def leaky(self: State, *args: object) -> object:
        block = tree_block(self, *args)  # type: ignore[arg-type]
        assert block.visible is not None
        block.visible = torch.ones_like(block.visible).tril(block.start)
        return block

    monkeypatch.setattr(State, "_tree_block", leaky)
    with pytest.raises(AssertionError):
        test_every_node_equals_a_forward_of_its_path(llama, [8])
