"""C17: the incremental pass equals the stateless definition, for every fill level and layout."""

import dataclasses

import pytest
import torch
from conftest import tiny_shape
from torch import Tensor

from methods.drafters.decoder_layer import RMSNorm
from methods.drafters.rotary import rotary_from_theta
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.models.partition import split_layers
from methods.spd.aggregation import choose_anchors
from methods.spd.checkpoint import untrained
from methods.spd.draft_module import DraftModule, DraftModuleConfig

SHAPE = tiny_shape(
    num_layers=10, hidden=24, intermediate=32, heads=4, kv_heads=2, vocab=50, rotary_dim=4, model_type="qwen3"
)
FINAL_NORM = RMSNorm(24, 1e-6)
IDS = [2, 3, 11, 17, 30, 49]
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def build(layout="A", n=4, draft_layers=2, window=None, ids=IDS, anchors=None, stages=None) -> DraftModule:
    aggregation = choose_anchors(stages or split_layers(SHAPE.num_layers, n), anchors)
    head = torch.randn(SHAPE.vocab, SHAPE.hidden, generator=torch.Generator().manual_seed(7))
    return untrained(
        SHAPE,
        aggregation,
        draft_layers,
        DraftVocabulary(SHAPE.vocab, ids),
        head,
        FINAL_NORM,
        rotary_from_theta(1e4, SHAPE.rotary_dim),
        seed=3,
        layout=layout,
        window=window,
    )


class Sequence:
    """True taps of every position; what a row has not reached yet is NaN, so reading it shows."""

    def __init__(self, module: DraftModule, length: int, seed: int = 0) -> None:
        self.module = module
        self.aggregation = module.config.aggregation
        generator = torch.Generator().manual_seed(seed)
        self.taps = torch.randn(length, len(self.aggregation.anchors), SHAPE.hidden, generator=generator) * 2

    def rows(self, first: int, depths: list[int]) -> Tensor:
        rows = self.taps[first : first + len(depths)].clone()
        for row, depth in zip(rows, depths, strict=True):
            row[self.aggregation.types[depth] + 1 :] = torch.nan
        return rows

    def stateless(self, newest: int, flight: list[int]) -> Tensor:
        depths = [self.aggregation.n] * (newest + 1 - len(flight)) + flight
        return self.module.stateless(self.rows(0, depths), depths)


def cycle(sequence: Sequence, session, newest: int, flight: list[int]) -> None:
    """One drafting cycle: both passes, compared."""
    first = newest + 1 - len(flight)
    fresh = first - session.length
    completed = sequence.rows(session.length, [sequence.aggregation.n] * fresh) if fresh else None
    got = session.step(completed, sequence.rows(first, flight), flight)
    expected = sequence.stateless(newest, flight)
    assert got.shape == (1, sequence.module.vocabulary.size)
    assert not expected.isnan().any()
    torch.testing.assert_close(got, expected, **CLOSE)
    assert session.length == first


@pytest.mark.parametrize("layout", ["A", "B"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("post_step", [False, True])
@pytest.mark.parametrize("window", [None, 5])
def test_incremental_equals_stateless_at_every_fill(layout, n, post_step, window):
    sequence = Sequence(build(layout, n, window=window), 60)
    session = sequence.module.session()

    def run(newest: int, cycles: int) -> int:
        for fill in range(1, cycles + 1):
            flight = list(reversed(range(min(fill, n))))
            if post_step:
                # One stage further: the oldest token of a full pipeline is complete.
                flight = [depth + 1 for depth in flight if depth + 1 < n]
                if not flight:
                    flight = [n]
            cycle(sequence, session, newest, flight)
            newest += 1
        return newest

    with torch.no_grad():
        run(newest=6, cycles=n + 4)
        for keep in (session.length, session.length - 2, 0):
            session.rollback(keep)
            # The tokens from here on are others than before.
            sequence.taps[keep:] = Sequence(sequence.module, 60, seed=keep + 1).taps[keep:]
            run(newest=max(keep, 1), cycles=n + 2)


def test_a_one_token_prompt_fills_from_nothing():
    sequence = Sequence(build(n=4), 10)
    session = sequence.module.session()
    for newest in range(4):
        cycle(sequence, session, newest, list(range(newest, -1, -1)))


def test_uneven_stages_and_given_anchors():
    sequence = Sequence(build(stages=[4, 1, 3, 2], anchors=(0, 4, 5, 9)), 20)
    session = sequence.module.session()
    for newest, flight in [(5, [0]), (6, [1, 0]), (7, [2, 1, 0]), (8, [3, 2, 1, 0]), (9, [3, 2, 1, 0])]:
        cycle(sequence, session, newest, flight)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("layout", ["A", "B"])
def test_tree_rows_equal_a_chain_along_their_root_path(layout, window):
    module = build(layout, n=4, window=window)
    sequence = Sequence(module, 30)
    parents = [-1, 0, 0, 1, 1, 2]
    levels = [0, 1, 1, 2, 2, 2]
    depths = [2 - level for level in levels]
    prefix = 7
    nodes = Sequence(module, len(parents), seed=9).rows(0, depths)
    mask = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    session = module.session()
    with torch.no_grad():
        got = session.step(
            sequence.rows(0, [4] * prefix),
            nodes,
            depths,
            positions=torch.tensor([prefix + level for level in levels]),
            mask=mask,
            last=3,
        )
        for row, node in zip(got, (3, 4, 5), strict=True):
            path = mask[node].nonzero()[:, 0].tolist()
            taps = torch.cat((sequence.rows(0, [4] * prefix), nodes[path]))
            expected = module.stateless(taps, [4] * prefix + [depths[i] for i in path])
            torch.testing.assert_close(row[None], expected, **CLOSE)
    assert session.length == prefix


def test_a_long_prompt_in_chunks_equals_one_pass(monkeypatch):
    monkeypatch.setattr("methods.drafters.session._CHUNK", 8)
    sequence = Sequence(build(n=2), 80)
    cycle(sequence, sequence.module.session(), 71, [1, 0])


def test_rows_and_logits_follow_the_published_formula():
    module = build(n=5, draft_layers=1, anchors=(0, 3, 9))
    taps, depths = torch.randn(6, 3, SHAPE.hidden), [5, 4, 2, 1, 0, 0]
    weights = [projection.weight for projection in module.aggr_projs]
    # Stages of 2 layers: anchor 3 is there from depth 2, anchor 9 at depth 5, lowest anchor first.
    expected = torch.stack(
        [
            weights[2] @ torch.cat((taps[0, 0], taps[0, 1], taps[0, 2])),
            weights[1] @ torch.cat((taps[1, 0], taps[1, 1])),
            weights[1] @ torch.cat((taps[2, 0], taps[2, 1])),
            *(weights[0] @ taps[i, 0] for i in (3, 4, 5)),
        ]
    )
    rows = module.aggregate(taps, depths)
    torch.testing.assert_close(rows, expected, **CLOSE)
    hidden, _ = module.spec_layers[0](expected[None], None, *module.rotary(torch.arange(6)))
    normed = hidden[0, -1] * torch.rsqrt(hidden[0, -1].square().mean() + 1e-6)
    torch.testing.assert_close(module.stateless(taps, depths)[0], module.lm_head.weight @ normed, **CLOSE)


def test_several_rows_of_logits_and_batches():
    module = build(n=2)
    taps = torch.randn(2, 6, 3, SHAPE.hidden)
    depths = [2, 2, 2, 2, 1, 0]
    both = module.stateless(taps, depths, last=6)
    assert both.shape == (2, 6, len(IDS))
    torch.testing.assert_close(both[1, -1:], module.stateless(taps[1], depths), **CLOSE)


def test_the_window_hides_older_positions():
    module, wide = build(n=2, draft_layers=1, window=3), build(n=2, draft_layers=1)
    taps = torch.randn(12, 3, SHAPE.hidden)
    depths = [2] * 10 + [1, 0]
    changed = taps.clone()
    changed[:9] += 1.0
    torch.testing.assert_close(module.stateless(taps, depths), module.stateless(changed, depths))
    assert not torch.allclose(wide.stateless(taps, depths), wide.stateless(changed, depths))


@pytest.mark.parametrize("layout", ["A", "B"])
def test_parameter_names_and_count_follow_the_published_formula(layout):
    draft_layers, anchors = 3, (0, 2, 4, 6, 9)
    module = build(layout, n=5, draft_layers=draft_layers, anchors=anchors)
    hidden, rows, inter = SHAPE.hidden, SHAPE.heads * SHAPE.head_dim, SHAPE.intermediate
    kv = SHAPE.kv_heads * SHAPE.head_dim
    query = rows * (2 if layout == "B" else 1)
    layer = hidden * (query + 2 * kv + rows + 3 * inter + 2) + 2 * SHAPE.head_dim
    expected = hidden * hidden * (1 + 2 + 3 + 4 + 5) + draft_layers * layer + len(IDS) * hidden
    assert sum(parameter.numel() for parameter in module.parameters()) == expected
    names = list(module.state_dict())
    assert len(names) == 5 + 1 + 11 * draft_layers
    assert {"aggr_projs.4.weight", "spec_layers.2.self_attn.q_norm.weight", "lm_head.weight"} <= set(names)
    assert module.state_dict()["aggr_projs.2.weight"].shape == (hidden, 3 * hidden)


def test_gradients_reach_every_parameter_but_not_the_targets_norm():
    module = build("B", n=4)
    depths = [4, 4, 4, 3, 2, 1, 0]
    module.stateless(Sequence(module, 7).taps, depths, last=7).square().sum().backward()
    assert [name for name, p in module.named_parameters() if p.grad is None or not p.grad.any()] == []
    assert not any(parameter is FINAL_NORM.weight for parameter in module.parameters())


def test_seeded_initialisation_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    first = torch.rand(1)
    torch.manual_seed(0)
    a, b = build(), build()
    assert torch.equal(torch.rand(1), first)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert a.aggr_projs[1].weight.std().item() == pytest.approx(0.02, rel=0.2)
    head = torch.randn(SHAPE.vocab, SHAPE.hidden, generator=torch.Generator().manual_seed(7))
    assert torch.equal(a.lm_head.weight, head[IDS])


def test_impossible_sizes_are_refused():
    config = build().config
    with pytest.raises(UsageError, match="draft layers must be at least 1, got 0"):
        dataclasses.replace(config, draft_layers=0)
    with pytest.raises(UsageError, match="training span"):
        DraftModuleConfig(config.layer, config.aggregation, 1, window=0)
    with pytest.raises(UsageError, match="4 attention heads cannot share 3"):
        dataclasses.replace(config.layer, kv_heads=3)
