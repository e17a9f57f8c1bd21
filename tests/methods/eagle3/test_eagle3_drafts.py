"""What EAGLE-3 drafts in a decode call: the right slots, a clean draft cache, trees within their
budget, and laws that are those of the tokens drawn."""

from __future__ import annotations

import pytest
import torch
from conftest import random_ids, tiny
from fitted_head import PROMPTS, features, fitted, outputs, untrained
from torch import Tensor

from methods.core import SamplingParams
from methods.decoding.sampling import Draws, probabilities
from methods.decoding.verification import Draft
from methods.drafters.cache import LayerCache
from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3 import checkpoint
from methods.eagle3.drafting import Eagle3Drafter
from methods.eagle3.method import Eagle3
from methods.errors import UsageError

GREEDY = SamplingParams()
T1 = SamplingParams(temperature=1.0, seed=4)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def stateless(method: Eagle3, tokens: list[int], path: list[int]) -> Tensor:
    """Draft logits behind ``tokens`` and drafted ``path``: one pass per level over everything, features
    from a fresh pass of the target, slot t with the features of t and the embedding of t + 1."""
    head = method.head
    taps = features(method.target, head.config.taps, [tokens[:-1]])[0]
    inputs, ids = head.fuse(taps), tokens[1:]
    with torch.no_grad():
        for token in [None, *path]:
            if token is not None:
                inputs, ids = torch.cat((inputs, out[0, -1:])), [*ids, token]  # noqa: F821
            positions = torch.arange(len(ids))
            mask = torch.ones(len(ids), len(ids), dtype=torch.bool).tril()
            out, _ = head.slots(inputs[None], torch.tensor([ids]), positions, mask)
        return head.logits(out[0, -1])


def node_paths(draft: Draft) -> list[list[int]]:
    paths: list[list[int]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
    return paths


class Spy:
    """Every draft of the decode calls of a method, with the tokens it continued."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drafts: list[tuple[list[int], Draft]] = []
        self.drafters: list[Eagle3Drafter] = []
        known: dict[Eagle3Drafter, list[int]] = {}
        observe, propose = Eagle3Drafter.observe, Eagle3Drafter.propose

        def watched_observe(drafter, tokens, taps):
            observe(drafter, tokens, taps)
            known.setdefault(drafter, []).extend(tokens)
            self.drafters.append(drafter)

        def watched_propose(drafter, budget):
            draft = propose(drafter, budget)
            self.drafts.append((list(known[drafter]), draft))
            return draft

        monkeypatch.setattr(Eagle3Drafter, "observe", watched_observe)
        monkeypatch.setattr(Eagle3Drafter, "propose", watched_propose)


def check_chain(method: Eagle3, spy: Spy, prompt: list[int], cap: int) -> None:
    method.decode(prompt, GREEDY, cap)
    for tokens, draft in spy.drafts:
        for i, token in enumerate(draft.tokens):
            logits = stateless(method, tokens, list(draft.tokens[:i]))
            assert float(logits.max() - logits[token]) <= 1e-4


@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_chains_are_the_argmaxes_of_the_stateless_head(monkeypatch, name):
    """Eight layers, so that the three taps differ, and a prompt of one token."""
    for prompt in ([5], random_ids(6)):
        check_chain(untrained(tiny(name), m=3), Spy(monkeypatch), prompt, 9)


@pytest.mark.parametrize("shift", [-1, 1])
def test_embeddings_shifted_by_one_slot_are_noticed(monkeypatch, shift):
    spy = Spy(monkeypatch)
    observe = Eagle3Drafter.observe
    monkeypatch.setattr(
        Eagle3Drafter,
        "observe",
        lambda self, tokens, taps: observe(self, tokens[-shift:] + tokens[:-shift], taps),
    )
    with pytest.raises(AssertionError):
        check_chain(untrained(tiny("llama"), m=1), spy, random_ids(6), 9)


def test_a_fitted_head_is_right_only_with_the_next_tokens_embedding():
    """The slot test of the published heads: step-0 accuracy collapses if embeddings are shifted."""
    method = fitted("llama")
    texts = [(prompt + output)[:60] for prompt, output in zip(PROMPTS, outputs("llama"), strict=False)]
    taps = features(method.target, method.head.config.taps, texts)
    ids = torch.tensor(texts)
    accuracy = {}
    with torch.no_grad():
        for shift in (0, 1, 2):
            out, _ = method.head.slots(
                method.head.fuse(taps[:, :57]), ids[:, shift : shift + 57], torch.arange(57)
            )
            named = method.head.logits(out).argmax(-1)
            accuracy[shift] = float((named == ids[:, 2:59]).float().mean())
    assert accuracy[1] > 0.6
    assert max(accuracy[0], accuracy[2]) < 0.8 * accuracy[1]


@pytest.mark.parametrize("options", [{"m": 5}, {"m": 4, "width": 3}, {"m": 4, "width": 3, "tree": "dynamic"}])
@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_the_stable_draft_cache_holds_true_features_only(monkeypatch, name, options):
    """After every round, whatever was accepted: the keys and values of one pass over the features of a
    fresh pass of the target, and as many slots as committed tokens."""
    method, drafters = fitted(name, **options), []
    observe = Eagle3Drafter.observe
    seen: list[int] = []
    patterns: set[int] = set()

    def checked(drafter, tokens, taps):
        observe(drafter, tokens, taps)
        drafters.append(drafter)
        seen.extend(tokens)
        patterns.add(len(tokens))
        session, fresh = drafter._session, LayerCache()
        assert session.length == len(seen) - 1 == session._cache.length
        features_ = features(method.target, method.head.config.taps, [seen[:-1]])
        ids = torch.tensor([seen[1:]])
        method.head.slots(method.head.fuse(features_), ids, torch.arange(len(seen) - 1), None, fresh)
        for mine, theirs in ((session._cache._keys, fresh._keys), (session._cache._values, fresh._values)):
            torch.testing.assert_close(
                mine[:, :, : len(seen) - 1], theirs[:, :, : len(seen) - 1], atol=1e-4, rtol=1e-4
            )

    monkeypatch.setattr(Eagle3Drafter, "observe", checked)
    with torch.no_grad():
        for prompt in PROMPTS[:2]:
            seen.clear()
            method.decode(prompt, GREEDY, 24)
    assert len(patterns) > 3


def test_a_draft_cache_that_keeps_drafted_slots_is_noticed(monkeypatch):
    """Seeded fault: the tree is not dropped before true features follow."""
    monkeypatch.setattr("methods.eagle3.session.Eagle3Session.drop", lambda self: None)
    with pytest.raises((AssertionError, RuntimeError)):
        test_the_stable_draft_cache_holds_true_features_only(monkeypatch, "llama", {"m": 5})


def levels(draft: Draft) -> list[int]:
    depth = [len(path) for path in node_paths(draft)]
    return [depth.count(level) for level in range(1, max(depth, default=0) + 1)]


@pytest.mark.parametrize("tree", ["beam", "dynamic"])
@pytest.mark.parametrize("width", [2, 4])
def test_trees_hold_the_best_candidates_within_the_budget(monkeypatch, tree, width):
    """Against an exhaustive beam over the stateless head."""
    method, spy, m = fitted("llama", m=3, width=width, tree=tree), Spy(monkeypatch), 3
    method.decode(PROMPTS[4], GREEDY, 14)
    assert len(spy.drafts) > 2
    for tokens, draft in spy.drafts:
        deepest = min(m, 14 - (len(tokens) - len(PROMPTS[4])) - 1)
        beam: list[tuple[float, list[int]]] = [(0.0, [])]
        pool: list[tuple[float, list[int]]] = []
        kept: list[tuple[float, list[int]]] = []
        for _ in range(deepest):
            offers = []
            for score, path in beam:
                best = stateless(method, tokens, path).log_softmax(-1).topk(width)
                offers += [(score + float(v), [*path, int(t)]) for v, t in zip(*best, strict=True)]
            pool += offers
            beam = sorted(offers, key=lambda offer: -offer[0])[:width]
            kept += beam
        if tree == "dynamic":
            kept = sorted(pool, key=lambda offer: (-offer[0], len(offer[1])))[: deepest * width]
        assert len(draft.tokens) == deepest * width
        assert sorted(node_paths(draft)) == sorted(path for _, path in kept)
        assert draft.layers == deepest
        if tree == "beam":
            assert levels(draft) == [width] * deepest
        siblings = list(zip(draft.parents, draft.tokens, strict=True))
        assert len(set(siblings)) == len(siblings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 3])
def test_reported_laws_are_those_of_the_stateless_head(monkeypatch, width, dtype):
    """C10: over a reduced vocabulary; the sum over the target's vocabulary is 1 (C20)."""
    target = tiny("llama")
    method = untrained(target, m=3, width=width, proposal="sampled")
    vocabulary = DraftVocabulary(64, [1, 5, *range(20, 50), 63])
    method.head = checkpoint.untrained(
        target.shape, vocabulary, method._embed, target_head=target.head_weight
    )
    head_logits = method.head.logits
    monkeypatch.setattr(method.head, "logits", lambda out: head_logits(out).to(dtype))
    spy = Spy(monkeypatch)
    method.decode(random_ids(6), T1, 12)
    assert len(spy.drafts) > 2
    for tokens, draft in spy.drafts:
        assert draft.laws is not None or not draft.tokens
        first: list[int] = []
        for path, law in zip(node_paths(draft), draft.laws or (), strict=True):
            q = probabilities(stateless(method, tokens, path[:-1]), T1)
            if len(path) == 1:
                q = q.index_fill(0, torch.tensor(first, dtype=torch.long), 0)
                q = q / q.sum()
                first.append(law.index)
            torch.testing.assert_close(law.probs, q, atol=1e-5 if dtype == torch.float32 else 0.02, rtol=0)
            assert law.token == path[-1] == int(vocabulary.ids[law.index])
            assert float(vocabulary.scatter(law.probs).sum()) == pytest.approx(1, abs=1e-5)
    # Branches part at the root only.
    wide = [draft for _, draft in spy.drafts if len(draft.tokens) > 3 and width == 3]
    assert all(levels(draft) in ([3], [3, 3], [3, 3, 3]) for draft in wide)
    assert wide or width == 1


def test_fewer_branches_where_the_law_has_fewer_tokens(monkeypatch):
    spy = Spy(monkeypatch)
    method = untrained(tiny("llama"), m=2, width=4, proposal="sampled")
    method.decode(random_ids(6), SamplingParams(temperature=1.0, top_k=2), 8)
    assert {levels(draft)[0] for _, draft in spy.drafts if draft.tokens} == {2}


def test_a_vocabulary_smaller_than_the_width(monkeypatch):
    target = tiny("llama")
    method = untrained(target, m=3, width=4)
    vocabulary = DraftVocabulary(64, [7, 9, 11])
    method.head = checkpoint.untrained(
        target.shape, vocabulary, method._embed, target_head=target.head_weight
    )
    spy = Spy(monkeypatch)
    method.decode(random_ids(6), GREEDY, 8)
    assert levels(spy.drafts[0][1]) == [3, 4, 4]
    assert {token for _, draft in spy.drafts for token in draft.tokens} <= {7, 9, 11}


def total_rounds(method) -> int:
    return sum(len(method.decode(prompt, GREEDY, 24).steps) for prompt in PROMPTS)


def test_a_fitted_head_beats_a_random_one_and_a_tree_a_chain():
    """C27, over twenty prompts."""
    chain, tree = fitted("llama", m=3), fitted("llama", m=3, width=4)
    random_head = untrained(tiny("llama", 4), m=3)
    counts = [total_rounds(method) for method in (tree, chain, random_head)]
    assert counts[0] < 0.95 * counts[1] < 0.95 * 0.85 * counts[2]


def test_the_same_seed_gives_the_same_draft():
    method = untrained(tiny("llama"), m=3, proposal="sampled")
    taps = torch.randn(6, 3, 32, generator=torch.Generator().manual_seed(1))
    drafts = []
    for _ in range(2):
        session = method.session(T1, Draws(T1.seed))
        session.observe(random_ids(7), taps)
        drafts.append(session.propose(9))
        assert session.propose(0) == Draft()
    assert drafts[0].tokens == drafts[1].tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"m": 0}, "m must be >= 1, got 0"),
        ({"width": 0}, "width must be 1 to 256, got 0"),
        ({"tree": "bush"}, "unknown tree 'bush'; allowed: beam, dynamic"),
        ({"tree": "dynamic"}, "tree 'dynamic' needs a width above 1"),
        (
            {"tree": "dynamic", "width": 2, "proposal": "sampled"},
            "tree 'dynamic' selects by score, so it needs --proposal point-mass",
        ),
        ({"proposal": "typical"}, "unknown proposal rule 'typical'"),
        ({"untrained": False}, "needs a draft head for tiny-llama: give --checkpoint"),
        ({"checkpoint": "somewhere"}, r"or --untrained for a random one \(not both\)"),
        (
            {"untrained": False, "checkpoint": "x", "taps": "1,2"},
            "taps '1,2' are not numbers separated by ';'",
        ),
    ],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(UsageError, match=message):
        untrained(tiny("llama"), **options)
