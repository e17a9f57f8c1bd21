"""Whether the law a drafter reports of a token is the law the token was drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import torch
from torch import Tensor

from methods.core import SamplingParams
from methods.decoding.rounds import DraftSession, RoundMethod
from methods.decoding.sampling import Draws
from methods.decoding.verification import Draft, DraftLaw
from methods.pipeline.lockstep import Lockstep
from methods.pipeline.tree import Node

Reported = list[tuple[int, Tensor]]
"""Drawn token and reported law over the target's ids, float64 [vocab], of every drafted node."""


_FEWEST = 5.0
"""Expected draws of a rank that has a score of its own."""


def pipeline_laws(run: Lockstep, prompt_ids: Sequence[int], tokens: int) -> Reported:
    """Of every node of a run, those thrown away included; empty for point-mass proposals."""
    pipeline = run.begin(prompt_ids, tokens, ())
    nodes: dict[int, Node] = {}
    while not pipeline.finished:
        run.cycle(pipeline)
        nodes |= {node.id: node for level in pipeline.in_flight for node in level if node.record is not None}
    return [(node.token, _over_all_ids(node.record)) for node in nodes.values()]


def round_laws(
    method: RoundMethod, prompt_ids: Sequence[int], tokens: int, sampling: SamplingParams
) -> Reported:
    """Of every node of every draft; empty for point-mass proposals."""
    found: Reported = []
    new_session = method.session

    def listening(sampling: SamplingParams, draws: Draws) -> DraftSession:
        session = new_session(sampling, draws)
        propose = session.propose

        def heard(budget: int) -> Draft:
            draft = propose(budget)
            pairs = zip(draft.tokens, draft.laws or (), strict=draft.laws is not None)
            found.extend((token, _over_all_ids(law)) for token, law in pairs)
            return draft

        session.propose = heard  # type: ignore[method-assign]
        return session

    with patch.object(method, "session", listening):
        method.decode(prompt_ids, sampling, tokens)
    return found


def largest_score(reported: Reported) -> float:
    """How often the likeliest token of its law was drawn, the second, ..., in standard deviations from
    what the laws say: the largest. By rank, since over many laws the ids themselves average out; ranks
    too rare for a standard deviation count together with those before them."""
    laws, order = torch.stack([law for _, law in reported]).sort(dim=-1, descending=True, stable=True)
    drawn = (order == torch.tensor([token for token, _ in reported])[:, None]).double()
    usual = max(2, int((laws.sum(0) >= _FEWEST).sum()))
    drawn, laws = (
        torch.cat((x[:, : usual - 1], x[:, usual - 1 :].sum(1, keepdim=True)), 1) for x in (drawn, laws)
    )
    scores = (drawn - laws).sum(0) / (laws * (1 - laws)).sum(0).clamp(min=1e-18).sqrt()
    return float(scores.abs().max())


def _over_all_ids(law: DraftLaw) -> Tensor:
    return law.vocabulary.scatter(law.probs).double()
