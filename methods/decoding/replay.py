"""From a known output to a method's trace, in a few passes instead of a decode loop.

What a lossless method emits is the target's own output, so with that output at hand the target
need not be asked again: one pass over prompt and output gives every feature and every law a
drafter could have seen on its way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from methods.core import SamplingParams, Step
from methods.decoding.sampling import probabilities
from methods.drafters.vocabulary import DraftVocabulary
from methods.models.target import Target


@dataclass
class KnownOutput:
    """AR's output of one prompt, and what one target pass over both gives, computed when asked for.

    ``cap`` is the limit the decoding ran under (``max_new_tokens``, or less where the context ends);
    an output shorter than it ended with a stop id.
    """

    target: Target
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    sampling: SamplingParams
    cap: int
    pass_s: float = 0.0
    """Seconds of the target pass, 0 until something has needed it."""

    @property
    def decoded(self) -> int:
        """N, the tokens after the prefill's."""
        return max(0, len(self.output_ids) - 1)

    def features(self, reads: Sequence[int]) -> Tensor:
        """Residual streams [tokens, reads, hidden] of all tokens but the last, which nothing follows."""
        return torch.stack([self._taps[index][0] for index in reads], 1)

    @cached_property
    def truth(self) -> Tensor:
        """Output token ids [N] after the prefill's: entry i is what followed output token i."""
        return torch.tensor(list(self.output_ids[1:]), device=self.target.device)

    @cached_property
    def law(self) -> Tensor:
        """The target's law p [N, vocab]; row i is what ``truth[i]`` was drawn from."""
        last = self._taps[self.target.num_layers][0, len(self.prompt_ids) :]
        return probabilities(self.target.logits(last), self.sampling)

    @cached_property
    def _taps(self) -> Mapping[int, Tensor]:
        started = time.perf_counter()
        ids = [*self.prompt_ids, *self.output_ids[:-1]]
        with torch.no_grad():
            every = range(self.target.num_layers + 1)
            taps = self.target.prefill(ids, self.target.new_state(), taps=every).taps
        self.pass_s = time.perf_counter() - started
        return taps


class Acceptance(NamedTuple):
    """How likely drafts are accepted, each [rows] in [0, 1].

    ``given`` is conditional on the token that the target did emit, which is what a trace along the
    known output needs; ``marginal`` is over the target's law.
    """

    given: Tensor
    marginal: Tensor


def acceptance(
    logits: Tensor, vocabulary: DraftVocabulary, known: KnownOutput, index: Sequence[int], drawn: bool
) -> Acceptance:
    """Of drafts for ``known.truth[index]`` from draft ``logits`` [rows, draft_vocab].

    A drawn draft x ~ q is kept with probability min(1, p/q), so it is kept and equal to x with
    probability min(p(x), q(x)): given x, min(1, q(x)/p(x)), and in all sum_x min(p(x), q(x)). A
    point mass is kept iff the target draws q's largest token.
    """
    rows = torch.as_tensor(index, device=logits.device)
    truth = known.truth[rows]
    if not (drawn and not known.sampling.greedy):
        best = vocabulary.to_target(logits.argmax(-1))
        given = (best == truth).double()
        if known.sampling.greedy:
            return Acceptance(given, given)
        return Acceptance(given, known.law[rows, best].double())
    p, q = known.law[rows], probabilities(logits, known.sampling)
    common = torch.minimum(vocabulary.restrict(p), q).double()
    p_truth = p.gather(-1, truth[:, None])[:, 0].double()
    kept = vocabulary.scatter(q).gather(-1, truth[:, None])[:, 0].double()
    # A pass of another shape can round the known token out of top-k: then min(1, q / 0).
    given = torch.where(p_truth > 0, kept / p_truth, (kept > 0).double()).clamp(max=1.0)
    return Acceptance(given, common.sum(-1).clamp(max=1.0))


@dataclass(frozen=True)
class Replayed:
    """A method's trace along a known output.

    ``steps`` are those of the decode loop, exactly, where the output determines them (T = 0, or
    point-mass proposals); else one draw from their law given the output, ``expected`` holds the
    expectation of the column totals by name of the ``Step`` field ("steps": their number), and
    ``acceptance`` the probability, by position after the prefill token, that a draft examined there
    is accepted (None where none can be).
    """

    steps: list[Step]
    expected: Mapping[str, float] | None = None
    acceptance: list[float | None] = field(default_factory=list)
