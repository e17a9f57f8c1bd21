"""PPSD's drafts along a known output: one pass of the exit head serves every fill."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from methods.pipeline.replay import Pair
from methods.ppsd.exit_head import ExitHead


class PpsdReplay:
    """Stage-1 features of a token never change, so the tokens in flight with it make no difference.

    ``features`` [tokens, hidden] are those after stage 1; output token i is token ``first`` + i.
    """

    def __init__(self, head: ExitHead, features: Tensor, first: int) -> None:
        self._logits = head.stateless(features, last=features.shape[0] - first)

    def logits(self, pairs: Sequence[Pair]) -> Tensor:
        """Draft logits [pairs, draft_vocab]; see ``methods.pipeline.replay``."""
        return self._logits[[index for index, _ in pairs]]
