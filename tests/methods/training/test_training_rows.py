"""C18 and C19: what the trainer computes at a position is what the decode loop computes there."""

from __future__ import annotations

import pytest
import torch
from conftest import random_ids, tiny

from methods.drafting.vocabulary import DraftVocabulary
from methods.eagle3 import training as eagle3
from methods.eagle3.session import Eagle3Session
from methods.ppsd import training as ppsd
from methods.spd import training as spd
from methods.spd.training import SpdTask
from methods.target.target import Target
from methods.training.observation import Example, Observed, observe
from methods.training.task import HeadTask

VOCABULARY = DraftVocabulary(64, sorted(range(0, 64, 2)))
TOLERANCE = 1e-5


def example(length: int, answers: list[tuple[int, int]], seed: int) -> Example:
    mask = torch.zeros(length, dtype=torch.bool)
    for start, end in answers:
        mask[start:end] = True
    return Example(torch.tensor(random_ids(length, seed=seed)), mask)


EXAMPLES = [example(17, [(5, 17)], 1), example(23, [(3, 9), (14, 22)], 2), example(6, [(1, 6)], 3)]


def watched(target: Target, task: HeadTask) -> Observed:
    shaken(task)
    return observe(target, EXAMPLES, task.taps, VOCABULARY)


def shaken(task: HeadTask) -> None:
    """A start copied from the target has zeros and identities that would hide a wrong tap."""
    generator = torch.Generator().manual_seed(7)
    for parameter in task.module.parameters():
        parameter.data.add_(0.05 * torch.randn(parameter.shape, generator=generator))


def places(seen: Observed) -> list[tuple[int, int, int, int]]:
    """(cycle, first row of its example, position in it, tokens generated) of every supervised position."""
    found = []
    for start, _, first, last in seen.spans:
        for cycle in range(first, last):
            found.append((cycle, start, int(seen.supervised[cycle]) - start, int(seen.generated[cycle])))
    return found


@pytest.mark.parametrize("family", ["qwen3", "hybrid"])
@pytest.mark.parametrize("schedule", ["pre-step", "post-step"])
@pytest.mark.parametrize(("n", "draft_layers"), [(4, 2), (8, 3)])
def test_spd_rows_are_the_stateless_rows_at_every_depth_and_fill(
    family: str, schedule: str, n: int, draft_layers: int
) -> None:
    target = tiny(family)
    task = SpdTask("spd", spd.initial_module(target, n, draft_layers, VOCABULARY, None, 0), schedule)
    seen = watched(target, task)
    taps = torch.stack([seen.taps[anchor] for anchor in task.taps], 1)
    first = int(schedule == "post-step")
    for fill in range(1, n + 1):
        logits = task.logits(task.rows(seen, fill))
        for cycle, start, position, generated in places(seen):
            flying = min(fill, generated)
            depths = [first + position - p if position - p < flying else n for p in range(position + 1)]
            want = task.module.stateless(taps[start : start + position + 1], depths)[0]
            assert (logits[cycle] - want).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", ["llama", "hybrid"])
def test_eagle3_step_k_at_slot_t_is_the_roll_out_with_the_same_tokens(family: str) -> None:
    target = tiny(family)
    task = eagle3.Eagle3Task("eagle3", eagle3.initial_head(target, VOCABULARY, None, 0), steps=5)
    seen = watched(target, task)
    logits = [task.logits(out) for out in task.outputs(seen, None)]
    features = torch.cat([seen.taps[tap] for tap in task.module.config.taps], -1)
    compared = 0
    for cycle, start, position, _ in places(seen):
        end = start + position
        session = Eagle3Session(task.module)
        out, want = session.extend(features[start:end], seen.ids[start + 1 : end + 1])
        assert (logits[0][cycle] - want[0]).abs().max() <= TOLERANCE
        for step in range(1, 5):
            if cycle + step >= len(seen.supervised) or not seen.follows(step)[cycle]:
                break
            out, want = session.grow([step - 2], out, seen.ids[end + step][None])
            assert (logits[step][cycle] - want[0]).abs().max() <= TOLERANCE
            compared += 1
    assert compared > 40


@pytest.mark.parametrize("family", ["llama", "hybrid"])
@pytest.mark.parametrize("head_class", ["layer", "mlp", "linear"])
def test_ppsd_rows_are_the_exit_heads_own(family: str, head_class: str) -> None:
    target = tiny(family)
    head = ppsd.initial_head(target, 4, VOCABULARY, None, 0, head_class)  # type: ignore[arg-type]
    task = ppsd.PpsdTask("ppsd", head, [2, 2, 2, 2])
    seen = watched(target, task)
    logits = task.logits(task.outputs(seen, None)[0])
    for cycle, start, position, _ in places(seen):
        want = head.stateless(seen.taps[2][start : start + position + 1], last=1)[0]
        assert (logits[cycle] - want).abs().max() <= TOLERANCE


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
