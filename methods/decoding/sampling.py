"""From logits to a distribution and from a distribution to a token: one copy for target and draft."""

from __future__ import annotations

import torch
from torch import Tensor

from methods.core import SamplingParams


def probabilities(logits: Tensor, params: SamplingParams) -> Tensor:
    """The law a token is drawn from, float32, same shape as ``logits`` [..., vocab].

    The filters and their order are those of transformers: temperature, top-k, top-p. Tokens tied
    with the k-th largest all stay; of tokens tied where the mass reaches top-p, the last ones do. At
    temperature 0 all mass is on the first largest logit.
    """
    scores = logits.float()
    if params.greedy:
        return torch.zeros_like(scores).scatter_(-1, scores.argmax(-1, keepdim=True), 1.0)
    scores = scores / params.temperature
    if 0 < params.top_k < scores.shape[-1]:
        kth = scores.topk(params.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if params.top_p < 1.0:
        ordered, order = scores.sort(dim=-1, stable=True)  # ascending, as transformers does it
        drop = ordered.softmax(-1).cumsum(-1) <= 1 - params.top_p
        drop[..., -1] = False
        scores = scores.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -torch.inf)
    return scores.softmax(-1)


def pick(probs: Tensor, uniform: float) -> int:
    """The token of ``probs`` [vocab] at quantile ``uniform`` in [0, 1): inverse-CDF sampling.

    The cumulative sum is float64 and scaled by its own total, so a token without mass is never
    drawn and rounding never runs past the end.
    """
    cumulative = probs.double().cumsum(-1)
    index = torch.searchsorted(cumulative, cumulative[-1:] * uniform, right=True)
    return int(index)


class Draws:
    """The random numbers of one decode call, in streams that do not disturb each other.

    ``target(i)`` belongs to output token ``i`` whatever method decodes it: methods that draw the
    target's token and compare (point-mass proposals) therefore give AR's own output, token for
    token, from the same seed. ``draft`` and ``acceptance`` are new every time, since a draw that
    was already used to reject a branch must not be used again; they are two streams because a
    pipeline drafts and verifies in different processes.
    """

    _BLOCK = 256

    def __init__(self, seed: int) -> None:
        self._target = torch.Generator().manual_seed(seed)
        self._draft = torch.Generator().manual_seed(seed ^ 0x5BD1E995)
        self._acceptance = torch.Generator().manual_seed(seed ^ 0x2545F491)
        self._uniforms: list[float] = []

    def target(self, index: int) -> float:
        """The uniform in [0, 1) that decides output token ``index``."""
        while index >= len(self._uniforms):
            block = torch.rand(self._BLOCK, generator=self._target, dtype=torch.float64)
            self._uniforms.extend(block.tolist())
        return self._uniforms[index]

    def draft(self) -> float:
        """A new uniform in [0, 1) that draws a draft token."""
        return float(torch.rand((), generator=self._draft, dtype=torch.float64))

    def acceptance(self) -> float:
        """A new uniform in [0, 1) for an acceptance test or a residual."""
        return float(torch.rand((), generator=self._acceptance, dtype=torch.float64))


def target_token(logits: Tensor, params: SamplingParams, draws: Draws, index: int) -> int:
    """The target's own token for output position ``index`` from ``logits`` [vocab]."""
    if params.greedy:
        return int(logits.argmax(-1))
    return pick(probabilities(logits, params), draws.target(index))
