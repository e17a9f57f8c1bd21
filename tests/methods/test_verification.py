"""The accept rules follow the target's law exactly: every way their random choices can fall is
enumerated, running the rules' own code; a sample then checks the random numbers themselves."""

from __future__ import annotations

import inspect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from methods.core import SamplingParams
from methods.decoding import verification
from methods.decoding.sampling import Draws, pick, probabilities
from methods.decoding.verification import (
    Draft,
    DraftLaw,
    accept_one_of,
    draw_without_replacement,
    proposal_rule,
    verify,
)
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.testing.enumeration import distance, exact_law

VOCAB = 4
FULL = DraftVocabulary(VOCAB)
T1 = SamplingParams(temperature=1.0)
CLOSE = 2e-6
"""The rules compute in float32."""


def random_law(seed: int, size: int = VOCAB, sharpness: float = 1.5) -> Tensor:
    return (sharpness * torch.randn(size, generator=torch.Generator().manual_seed(seed))).softmax(-1)


LAWS = {
    "two random laws": (random_law(1), random_law(2)),
    "equal": (random_law(3), random_law(3)),
    "disjoint": (torch.tensor([0.5, 0.5, 0, 0]), torch.tensor([0, 0, 0.25, 0.75])),
    "draft certain": (random_law(4), torch.tensor([0, 1.0, 0, 0])),
    "target certain": (torch.tensor([0, 0, 1.0, 0]), random_law(5)),
    "both certain": (torch.tensor([0, 1.0, 0, 0]), torch.tensor([0, 1.0, 0, 0])),
    "draft misses a token": (random_law(6), torch.tensor([0.5, 0, 0.25, 0.25])),
}


def check_candidates(p: Tensor, q: Tensor, count: int, vocabulary: DraftVocabulary = FULL) -> dict:
    """Law of (accepted candidate, token): candidates drawn without replacement, then tested."""

    def run() -> Hashable:
        draws = Draws(0)
        return verification.accept_one_of(p, draw_without_replacement(q, count, vocabulary, draws), draws)

    law = exact_law(run)
    emitted: dict = defaultdict(float)
    for (_, token), probability in law.items():
        emitted[token] += probability
    assert distance(emitted, dict(enumerate(p.tolist()))) < CLOSE
    return law


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_candidates_leave_the_target_law_unchanged(name, count):
    check_candidates(*LAWS[name], count)


def test_acceptance_of_one_candidate_is_the_overlap():
    for p, q in LAWS.values():
        law = check_candidates(p, q, 1)
        accepted = sum(probability for (chosen, _), probability in law.items() if chosen is not None)
        assert accepted == pytest.approx(float(torch.minimum(p, q).sum()), abs=CLOSE)


def test_candidates_from_a_reduced_vocabulary():
    for count in (1, 2, 3):
        check_candidates(random_law(7, 6), random_law(8, 3), count, DraftVocabulary(6, [1, 2, 5]))


def test_candidates_without_replacement_follow_the_laws_they_report():
    q = random_law(9)
    reported: dict = {}

    def run() -> Hashable:
        laws = draw_without_replacement(q, 3, FULL, Draws(0))
        tokens = tuple(law.token for law in laws)
        reported[tokens] = [float(law.probs[law.index]) for law in laws]
        return tokens

    law = exact_law(run)
    assert set(law) == set(itertools.permutations(range(VOCAB), 3))
    for (first, second, third), probability in law.items():
        a, b, c = (float(q[token]) for token in (first, second, third))
        expected = [a, b / (1 - a), c / (1 - a - b)]
        assert reported[first, second, third] == pytest.approx(expected, abs=CLOSE)
        assert probability == pytest.approx(math.prod(expected), abs=CLOSE)


def test_no_more_candidates_than_the_law_has_tokens():
    q = torch.tensor([0.5, 0, 0.5, 0])
    laws = draw_without_replacement(q, 4, FULL, Draws(0))
    assert sorted(law.token for law in laws) == [0, 2]


# Whole drafts: the joint law of three tokens.

TARGET = {
    prefix: torch.randn(VOCAB, generator=torch.Generator().manual_seed(100 + i)) * 1.5
    for i, prefix in enumerate(
        p for length in range(3) for p in itertools.product(range(VOCAB), repeat=length)
    )
}
"""Logits behind every prefix of fewer than three tokens."""
DRAFT = {prefix: logits.roll(1) + 0.5 * logits for prefix, logits in TARGET.items()}
SAMPLINGS = {
    "plain": T1,
    "top-k": SamplingParams(temperature=1.0, top_k=3),
    "top-p": SamplingParams(temperature=0.7, top_p=0.8),
}


def joint(params: SamplingParams) -> dict[tuple[int, ...], float]:
    laws = {prefix: probabilities(logits, params).tolist() for prefix, logits in TARGET.items()}
    return {
        (a, b, c): laws[()][a] * laws[a,][b] * laws[a, b][c]
        for a, b, c in itertools.product(range(VOCAB), repeat=3)
    }


def paths(draft: Draft) -> list[tuple[int, ...]]:
    behind: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents, strict=True):
        behind.append((*(behind[parent] if parent >= 0 else ()), token))
    return behind


def decode_three(draft_for: Callable, params: SamplingParams) -> tuple[int, ...]:
    """Rounds of draft and verification until three tokens are out."""
    draws, tokens = Draws(0), ()
    while len(tokens) < 3:
        draft = draft_for(tokens, 2 - len(tokens), params, draws)
        logits = torch.stack([TARGET[tokens], *(TARGET[tokens + path] for path in paths(draft))])
        verified = verification.verify(draft, logits, params, draws, len(tokens))
        accepted = tuple(draft.tokens[node] for node in verified.path)
        assert verified.depth in (len(accepted), len(accepted) + 1)
        tokens = (*tokens, *accepted, verified.token)
    return tokens


def drawn_chain(tokens, depth, params, draws) -> Draft:
    laws: list[DraftLaw] = []
    for _ in range(depth):
        laws.append(DraftLaw.draw(DRAFT[(*tokens, *(law.token for law in laws))], FULL, params, draws))
    return Draft.chain([law.token for law in laws], laws)


def drawn_branches(tokens, depth, params, draws) -> Draft:
    """Two first tokens without replacement; the first is continued by a drawn one."""
    if not depth:
        return Draft()
    laws = draw_without_replacement(probabilities(DRAFT[tokens], params), 2, FULL, draws)
    parents = [-1] * len(laws)
    if depth > 1:
        laws.append(DraftLaw.draw(DRAFT[(*tokens, laws[0].token)], FULL, params, draws))
        parents.append(0)
    return Draft([law.token for law in laws], parents, laws)


def fixed_tree(tokens, depth, params, draws) -> Draft:
    """The two largest draft logits, and the two largest behind each."""
    if not depth:
        return Draft()
    first = DRAFT[tokens].topk(2).indices.tolist()
    if depth == 1:
        return Draft(first, [-1, -1])
    second = [DRAFT[(*tokens, token)].topk(2).indices.tolist() for token in first]
    return Draft([*first, *second[0], *second[1]], [-1, -1, 0, 0, 1, 1])


def fixed_chain(tokens, depth, params, draws) -> Draft:
    best: list[int] = []
    for _ in range(depth):
        best.append(int(DRAFT[(*tokens, *best)].argmax()))
    return Draft.chain(best)


def no_draft(tokens, depth, params, draws) -> Draft:
    return Draft()


DRAFTS = [drawn_chain, drawn_branches, fixed_tree, fixed_chain, no_draft]


def check_joint_law(draft_for: Callable, params: SamplingParams) -> None:
    law = exact_law(lambda: decode_three(draft_for, params))
    assert distance(law, joint(params)) < CLOSE


@pytest.mark.parametrize("draft_for", DRAFTS)
@pytest.mark.parametrize("params", SAMPLINGS)
def test_three_tokens_follow_the_joint_law_of_the_target(draft_for, params):
    check_joint_law(draft_for, SAMPLINGS[params])


# Greedy decoding, whatever the draft.


@settings(max_examples=200, deadline=None)
@given(data=st.data(), nodes=st.integers(0, 12), seed=st.integers(0, 1000))
def test_greedy_walk_is_the_longest_path_of_argmaxes(data, nodes, seed):
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(nodes)]
    tokens = [data.draw(st.integers(0, VOCAB - 1)) for _ in range(nodes)]
    logits = torch.randn(nodes + 1, VOCAB, generator=torch.Generator().manual_seed(seed))
    best = logits.argmax(-1).tolist()
    laws = [DraftLaw(torch.ones(VOCAB) / VOCAB, FULL, token) for token in tokens]
    verified = verify(Draft(tokens, parents), logits, SamplingParams(), Draws(0), 0)
    assert verified == verify(Draft(tokens, parents, laws), logits, SamplingParams(), Draws(0), 0)
    node = -1
    for step in verified.path:
        assert (parents[step], tokens[step]) == (node, best[node + 1])
        node = step
    assert verified.token == best[node + 1]
    below = [tokens[i] for i in range(nodes) if parents[i] == node]
    assert verified.token not in below
    assert verified.depth == len(verified.path) + bool(below)


def test_point_mass_output_is_that_of_plain_sampling_with_the_same_seed():
    for seed in range(50):
        draws, tokens = Draws(seed), ()
        while len(tokens) < 3:
            draft = fixed_tree(tokens, 2 - len(tokens), T1, draws)
            logits = torch.stack([TARGET[tokens], *(TARGET[tokens + path] for path in paths(draft))])
            verified = verify(draft, logits, T1, draws, len(tokens))
            tokens = (*tokens, *(draft.tokens[node] for node in verified.path), verified.token)
        plain, expected = Draws(seed), ()
        for index in range(3):
            expected += (pick(probabilities(TARGET[expected], T1), plain.target(index)),)
        assert tokens == expected


# Real random numbers.


def test_reported_draft_law_is_the_drawn_one_in_half_precision():
    """C10."""
    logits = (3 * torch.randn(6, generator=torch.Generator().manual_seed(3))).to(torch.bfloat16)
    draws, params = Draws(5), SamplingParams(temperature=0.8, top_k=4)
    drawn = [
        DraftLaw.draw(logits, DraftVocabulary(9, [0, 2, 3, 5, 7, 8]), params, draws) for _ in range(4000)
    ]
    law = drawn[0].probs
    assert law.dtype == torch.float32
    assert torch.equal(law, probabilities(logits.float(), params))
    assert int((law > 0).sum()) == 4
    counts = torch.bincount(torch.tensor([d.index for d in drawn]), minlength=6) / len(drawn)
    assert float((counts - law).abs().max()) < 4 * 0.5 / len(drawn) ** 0.5
    assert {d.token for d in drawn} <= {0, 2, 3, 5, 7, 8}


class Zeros(Draws):
    """The smallest number that can be drawn, every time."""

    def acceptance(self) -> float:
        return 0.0


def check_impossible_token_is_refused() -> None:
    p, q = LAWS["disjoint"]
    chosen, token = verification.accept_one_of(p, [DraftLaw(q, FULL, 3)], Zeros(0))
    assert (chosen, token) == (None, 0)


def test_a_token_without_target_probability_is_never_accepted():
    check_impossible_token_is_refused()


def test_a_rejection_that_rounding_alone_allows_still_yields_a_token():
    """p and q differ in the last bit only: the residual has no mass."""

    class Ones(Draws):
        def acceptance(self) -> float:
            return 1.0 - 2**-53

    p = random_law(3)
    q = p.clone()
    q[2] = torch.nextafter(q[2], torch.tensor(1.0))
    chosen, token = accept_one_of(p, [DraftLaw(q, FULL, 2)], Ones(0))
    assert chosen is None
    assert 0 <= token < VOCAB


# Seeded faults: each check fails on a rule with one line wrong.


def broken(monkeypatch: pytest.MonkeyPatch, name: str, right: str, wrong: str) -> None:
    source = inspect.getsource(getattr(verification, name))
    assert source.count(right) == 1
    scope = vars(verification).copy()
    # The file's annotations are never evaluated, so the copy's need not be either.
    exec("from __future__ import annotations\n" + source.replace(right, wrong), scope)
    monkeypatch.setattr(verification, name, scope[name])


FAULTS = {
    "residual not subtracted": ("p - law.vocabulary.scatter(law.probs)", "p"),
    "every candidate against the first one's law": (
        "enumerate(laws)",
        "enumerate([DraftLaw(laws[0].probs, law.vocabulary, law.index) for law in laws])",
    ),
    "acceptance by p alone": ("* float(law.probs[law.index])", ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_rule_is_noticed(monkeypatch, fault):
    broken(monkeypatch, "accept_one_of", *FAULTS[fault])
    with pytest.raises(AssertionError):
        for p, q in LAWS.values():
            check_candidates(p, q, 2)


def test_acceptance_of_an_impossible_token_is_noticed(monkeypatch):
    broken(monkeypatch, "accept_one_of", "< float(p[law.token])", "<= float(p[law.token])")
    with pytest.raises(AssertionError):
        check_impossible_token_is_refused()


def test_a_draw_used_twice_is_noticed(monkeypatch):
    """The target's draws of all positions taken from the first one."""
    broken(monkeypatch, "verify", "index + len(path)", "0")
    with pytest.raises(RuntimeError, match="draw 0 decides twice"):
        check_joint_law(fixed_tree, T1)


def test_a_tested_draft_that_was_not_drawn_is_noticed():
    """The largest draft token, passed off as a draw from the law."""

    def passed_off(tokens, depth, params, draws):
        chain = fixed_chain(tokens, depth, params, draws)
        prefixes = [(*tokens, *chain.tokens[:i]) for i in range(depth)]
        laws = [
            DraftLaw(probabilities(DRAFT[prefix], params), FULL, token)
            for prefix, token in zip(prefixes, chain.tokens, strict=True)
        ]
        return Draft.chain(chain.tokens, laws)

    with pytest.raises(AssertionError):
        check_joint_law(passed_off, T1)


# Value objects and options.


def test_drafts_check_their_shape():
    assert Draft().is_chain
    assert Draft.chain([1, 2, 3]).is_chain
    assert Draft.chain([1, 2, 3]).parents == range(-1, 2)
    assert not Draft([1, 2], [-1, -1]).is_chain
    assert Draft([1, 2, 3], [-1, -1, 0]).children() == [[0, 1], [2], [], []]
    with pytest.raises(ValueError, match="one parent"):
        Draft([1, 2], [-1])
    with pytest.raises(ValueError, match="one law"):
        Draft([1], [-1], laws=[])
    for parents in ([0], [-1, 1], [-2]):
        with pytest.raises(ValueError, match="do not come before"):
            Draft([1] * len(parents), parents)


def test_proposal_rules():
    assert [proposal_rule(None, width) for width in (1, 4)] == ["sampled", "point-mass"]
    assert proposal_rule("point-mass", 1) == "point-mass"
    with pytest.raises(UsageError, match="unknown proposal rule 'typical'; allowed: sampled, point-mass"):
        proposal_rule("typical", 1)
