"""The kit itself: the laws are the chosen ones, and mistakes in a state show."""

import itertools
import random

import pytest
import torch
from check_worlds import GREEDY, VOCAB, autoregressive, table_target

from methods.core import SamplingParams
from methods.decoding.sampling import probabilities
from methods.testing.laws import block_counts, chi_square, fit, joint_law
from methods.testing.scripted import random_laws, sometimes
from methods.testing.table_target import LawTable, TableTarget

WARM = SamplingParams(temperature=1.0)


def law_after(target: TableTarget, tokens: list[int]) -> torch.Tensor:
    return target.logits(target.forward(tokens, target.new_state()).hidden)[0, -1]


def test_the_law_is_that_of_the_tokens_since_the_last_restart():
    table = LawTable.random(VOCAB, period=3, seed=1)
    target = TableTarget(table, layers=2)
    assert len(table.logits) == 1 + VOCAB + VOCAB**2
    assert torch.equal(law_after(target, [3, 1, 4]), table.logits[0])
    assert torch.equal(law_after(target, [3, 1, 4, 2]), table.logits[1 + 2])
    assert torch.equal(law_after(target, [3, 1, 4, 2, 0]), table.logits[(1 + 2) * VOCAB + 1 + 0])
    contexts = [
        table.context(tokens) for k in range(3) for tokens in itertools.product(range(VOCAB), repeat=k)
    ]
    assert sorted(contexts) == list(range(len(table.logits)))


def test_one_token_at_a_time_equals_one_pass_and_a_tree_its_root_paths():
    target, rng = table_target(), random.Random(3)
    state = target.new_state()
    prompt = [rng.randrange(VOCAB) for _ in range(7)]
    target.forward(prompt, state)
    tokens, parents = [], []
    for slot in range(7, 27):
        tokens.append(rng.randrange(VOCAB))
        parents.append(rng.choice(range(6, slot)))
    hidden = target.forward(tokens, state, parents, record=True).hidden
    for i in range(20):
        path, slot = [], 7 + i
        while slot >= 7:
            path.append(tokens[slot - 7])
            slot = parents[slot - 7]
        assert torch.equal(target.logits(hidden[0, i]), law_after(target, prompt + path[::-1]))


def leaves_the_law(hidden: torch.Tensor, target: TableTarget, tokens: list[int]) -> bool:
    """The residual stream is not that of ``tokens``: an unrelated context, whatever its law."""
    return not torch.equal(hidden[0, -1], target.forward(tokens, target.new_state()).hidden[0, -1])


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_stale_slot_in_any_layer_shows(layer):
    target = table_target()
    state = target.new_state()
    target.forward([1, 2, 3], state)
    target.forward([4], state, record=True)
    state.rollback(3)
    target.forward([0], state, record=True)
    cache = state.caches[layer]
    cache.prefixes[3], cache.shares[3] = cache.prefixes[2], cache.shares[2]
    assert leaves_the_law(target.forward([2], state, record=True).hidden, target, [1, 2, 3, 0, 2])


def test_a_skipped_layer_a_wrong_parent_and_a_leaking_mask_show(monkeypatch):
    target = table_target()
    state = target.new_state()
    target.forward([1, 2, 3], state)
    stage, rest = target.stage(0, 2), target.stage(2, 3)
    first, last = stage.new_state(), rest.new_state()
    rest.forward(stage.forward(target.embed([1, 2, 3]), first)[0], last)
    stage.forward(target.embed([4]), first)
    hidden = rest.forward(stage.forward(target.embed([0]), first)[0], last)[0]
    assert leaves_the_law(hidden, target, [1, 2, 3, 4, 0])

    target.forward([4, 0], state, parents=[2, 2], record=True)
    hidden = target.forward([1], state, parents=[4], record=True).hidden
    assert leaves_the_law(hidden, target, [1, 2, 3, 4, 1])
    state.rollback(5)

    block = state.block(1, [4], True)
    block.visible[:] = True
    monkeypatch.setattr(state, "block", lambda *_: block)
    hidden = target.forward([1], state, parents=[4], record=True).hidden
    assert leaves_the_law(hidden, target, [1, 2, 3, 0, 1])


@pytest.mark.parametrize(
    "sampling", [WARM, SamplingParams(1.0, top_k=3), SamplingParams(0.7, top_p=0.8), GREEDY]
)
def test_the_joint_law_is_the_product_of_the_conditional_ones(sampling):
    target = table_target()
    law = joint_law(target.table, sampling)
    assert float(law.sum()) == pytest.approx(1, abs=1e-6)
    for index, block in enumerate(itertools.product(range(VOCAB), repeat=3)):
        expected = 1.0
        for k, token in enumerate(block):
            expected *= float(probabilities(law_after(target, [0, 1, 2, *block[:k]]), sampling)[token])
        assert float(law[index]) == pytest.approx(expected, abs=1e-7)


def test_blocks_are_counted_in_the_order_of_the_law():
    table = LawTable.random(2, period=2)
    assert block_counts([[0, 1, 1, 0, 1], [1, 1]], table).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("counts", "law", "p"),
    # Critical values of the chi-square table: 3.841 at 1 degree of freedom, 5.991 at 2, both 0.05.
    [
        ([119.6, 80.4], [0.5, 0.5], 0.0056),
        ([109.8, 90.2], [0.5, 0.5], 0.1658),
        ([100.0, 100.0], [0.5, 0.5], 1.0),
    ],
)
def test_chi_square_against_a_table(counts, law, p):
    assert chi_square(torch.tensor(counts), torch.tensor(law)) == pytest.approx(p, abs=1e-3)


def test_chi_square_pools_rare_cells_and_forbids_impossible_ones():
    law = torch.tensor([0.5, 0.5 - 2e-4, 1e-4, 1e-4, 0.0])
    assert chi_square(torch.tensor([50, 50, 0, 0, 0]), law) > 0.5
    assert chi_square(torch.tensor([50, 49, 0, 0, 1]), law) == 0.0


def test_true_samples_pass_and_slightly_wrong_ones_do_not():
    law = joint_law(table_target().table, WARM)
    generator = torch.Generator().manual_seed(0)

    def sample(probs: torch.Tensor, draws: int) -> torch.Tensor:
        drawn = torch.multinomial(probs, draws, replacement=True, generator=generator)
        return torch.bincount(drawn, minlength=len(law))

    fits = [fit(sample(law, 4000), law) for _ in range(200)]
    assert all(one.passed for one in fits)
    assert 0.4 < sum(one.p_value < 0.5 for one in fits) / 200 < 0.6
    mixed = 0.9 * law + 0.1 / len(law)
    assert not any(fit(sample(mixed, 200_000), law).passed for _ in range(5))


def test_scripts_are_functions_of_the_position_and_the_prefix():
    right = sometimes(0.7, seed=2)
    hits = [right(i) for i in range(2000)]
    assert hits == [right(i) for i in range(2000)]
    assert 0.66 < sum(hits) / 2000 < 0.74
    law_of = random_laws(VOCAB, seed=1)
    assert torch.equal(law_of([1, 2]), law_of((1, 2)))
    assert not torch.equal(law_of([1, 2]), law_of([2, 2]))
    assert autoregressive(table_target()).decode([0, 1, 2], GREEDY, 4).tokens == [
        int(table_target().table.logits[c].argmax()) for c in _greedy_contexts(4)
    ]


def _greedy_contexts(count: int) -> list[int]:
    table, context, contexts = table_target().table, 0, []
    for position in range(3, 3 + count):
        contexts.append(context)
        context = table.after(context, position, int(table.logits[context].argmax()))
    return contexts
