"""Seeded faults: the property check must notice each of them."""

import random

import pytest
from pipeline_reference import Script, check, random_tree

from methods.pipeline import controller
from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.tree import DraftTree


def check_many(width: int) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        target = tuple(rng.randrange(4) for _ in range(20))
        check(Script(rng.randrange(1, 6), width, target, random_tree(seed, 4, 4), cap=20))


def forget_to_prune(tree: DraftTree, child) -> None:
    tree.levels[0] = (child,)


def keep_one_stray(tree: DraftTree, child) -> None:
    strays = [level[-1] for level in list(tree.levels)[1:2]]
    original_prune(tree, child)
    if strays and len(tree.levels) > 1 and strays[0] not in tree.levels[1]:
        tree.levels[1] = (*tree.levels[1], strays[0])


original_prune = DraftTree._prune
original_grow = DraftTree.grow
original_flush = PipelineController._note_flush


def late_entry(tree: DraftTree, width: int, entered: int) -> None:
    tree.levels[-1][0].proposals = tuple(tree.levels[-1][0].proposals)[1:]
    original_grow(tree, width, entered)


def wide_level(tree: DraftTree, width: int, entered: int) -> None:
    original_grow(tree, width + 1, entered)


def forgotten_fill(pipeline: PipelineController, had_candidates: bool) -> None:
    original_flush(pipeline, had_candidates)
    pipeline.fills = 1


def keep_everything(verdict: Verdict, stage: int) -> list[int]:
    return list(range(len(verdict.seen_by(stage))))


@pytest.mark.parametrize("width", [1, 3])
def test_without_a_fault_the_check_passes(width):
    check_many(width)


@pytest.mark.parametrize(
    ("owner", "attribute", "fault", "width"),
    [
        (DraftTree, "_prune", forget_to_prune, 3),
        (DraftTree, "_prune", keep_one_stray, 3),
        (DraftTree, "grow", late_entry, 1),
        (DraftTree, "grow", wide_level, 1),
        (DraftTree, "grow", wide_level, 3),
        (PipelineController, "_note_flush", forgotten_fill, 1),
        (Verdict, "kept_by", keep_everything, 1),
        (Verdict, "kept_by", keep_everything, 3),
        (controller, "Step", lambda **fields: _Uncounted(), 1),
    ],
)
def test_a_fault_is_noticed(monkeypatch, owner, attribute, fault, width):
    monkeypatch.setattr(owner, attribute, fault)
    with pytest.raises(AssertionError):
        check_many(width)


class _Uncounted:
    drafted = accepted = emitted = 0
