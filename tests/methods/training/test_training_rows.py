"""C18 and C19: what the trainer computes at a position is what the decode loop computes there."""

from __future__ import annotations

import pytest
import torch
from conftest import random_ids, tiny

from harness.checks.training_rows import (
    eagle3_difference,
    example,
    places,
    ppsd_difference,
    shaken,
    spd_difference,
)
from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3 import training as eagle3
from methods.models.target import Target
from methods.ppsd import training as ppsd
from methods.spd import training as spd
from methods.spd.training import SpdTask
from methods.training.observation import Observed, observe
from methods.training.task import HeadTask

VOCABULARY = DraftVocabulary(64, sorted(range(0, 64, 2)))
TOLERANCE = 1e-5


EXAMPLES = [
    example(random_ids(17, seed=1), [(5, 17)]),
    example(random_ids(23, seed=2), [(3, 9), (14, 22)]),
    example(random_ids(6, seed=3), [(1, 6)]),
]


def watched(target: Target, task: HeadTask) -> Observed:
    shaken(task)
    return observe(target, EXAMPLES, task.taps, VOCABULARY)


@pytest.mark.parametrize("family", ["qwen3", "hybrid"])
@pytest.mark.parametrize("schedule", ["pre-step", "post-step"])
@pytest.mark.parametrize(("n", "draft_layers"), [(4, 2), (8, 3)])
def test_spd_rows_are_the_stateless_rows_at_every_depth_and_fill(
    family: str, schedule: str, n: int, draft_layers: int
) -> None:
    target = tiny(family)
    task = SpdTask("spd", spd.initial_module(target, n, draft_layers, VOCABULARY, None, 0), schedule)
    seen = watched(target, task)
    worst, compared = spd_difference(task, seen, n, schedule == "post-step")
    assert worst <= TOLERANCE
    assert compared == n * len(places(seen))


@pytest.mark.parametrize("family", ["llama", "hybrid"])
def test_eagle3_step_k_at_slot_t_is_the_roll_out_with_the_same_tokens(family: str) -> None:
    target = tiny(family)
    task = eagle3.Eagle3Task("eagle3", eagle3.initial_head(target, VOCABULARY, None, 0), steps=5)
    seen = watched(target, task)
    worst, compared = eagle3_difference(task, seen, steps=5)
    assert worst <= TOLERANCE
    assert compared > len(places(seen)) + 40


@pytest.mark.parametrize("family", ["llama", "hybrid"])
@pytest.mark.parametrize("head_class", ["layer", "mlp", "linear"])
def test_ppsd_rows_are_the_exit_heads_own(family: str, head_class: str) -> None:
    target = tiny(family)
    head = ppsd.initial_head(target, 4, VOCABULARY, None, 0, head_class)  # type: ignore[arg-type]
    task = ppsd.PpsdTask("ppsd", head, [2, 2, 2, 2])
    seen = watched(target, task)
    worst, compared = ppsd_difference(task, seen)
    assert worst <= TOLERANCE
    assert compared == len(places(seen))


def test_teacher_is_the_targets_own_law_on_the_draft_vocabulary(llama: Target) -> None:
    seen = observe(llama, EXAMPLES, (2,), VOCABULARY)
    for cycle, start, position, _ in places(seen):
        state = llama.new_state()
        hidden = llama.forward(seen.ids[start : start + position + 1], state).hidden[0, -1]
        probs = llama.logits(hidden).softmax(-1)
        kept = probs[VOCABULARY.ids]
        assert torch.allclose(seen.teacher.probs[cycle], kept / kept.sum(), atol=1e-5)
        assert torch.allclose(seen.teacher.mass[cycle], kept.sum(), atol=1e-5)
        best = int(probs.argmax())
        want = VOCABULARY.ids.tolist().index(best) if best in VOCABULARY.ids.tolist() else -1
        assert int(seen.teacher.best[cycle]) == want


def test_positions_before_the_first_answer_token_are_not_supervised() -> None:
    assert EXAMPLES[1].supervised().tolist() == [3, 4, 5, 6, 7, 14, 15, 16, 17, 18, 19, 20]
    assert EXAMPLES[1].generated()[[2, 3, 8, 14]].tolist() == [0, 1, 6, 1]
