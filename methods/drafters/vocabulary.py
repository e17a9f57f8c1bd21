"""The subset of the target's vocabulary a drafter can propose."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.errors import UsageError


class DraftVocabulary:
    """Row r of a drafter's head stands for target id ``ids[r]``; the ids are sorted and unique.

    ``ids`` None is the full vocabulary. Raises ``UsageError`` for ids that are not sorted, repeat,
    or lie outside the target's vocabulary.
    """

    def __init__(self, target_vocab: int, ids: Sequence[int] | Tensor | None = None) -> None:
        self.target_vocab = target_vocab
        table = torch.arange(target_vocab) if ids is None else torch.as_tensor(ids, dtype=torch.long)
        _check(table, target_vocab)
        self.size = table.numel()
        self.is_full = self.size == target_vocab
        self._tables = {table.device: table}
        self._ids = table

    @classmethod
    def from_offsets(cls, d2t: Tensor, target_vocab: int) -> DraftVocabulary:
        """From EAGLE's map: draft id i stands for target id i + d2t[i].

        An all-zero map of a reduced vocabulary is refused: it is what an unset buffer looks like.
        """
        offsets = d2t.long()
        if 0 < offsets.numel() < target_vocab and not offsets.any():
            raise UsageError(
                f"d2t is all zero although the draft vocabulary ({offsets.numel()}) is smaller than "
                f"the target's ({target_vocab}): the map was never set"
            )
        return cls(target_vocab, offsets + torch.arange(offsets.numel(), device=offsets.device))

    def to_offsets(self) -> Tensor:
        """EAGLE's d2t, int64 [size]: target id minus draft id."""
        return self._ids - torch.arange(self.size, device=self._ids.device)

    @property
    def ids(self) -> Tensor:
        """Target ids, int64 [size], ascending."""
        return self._ids

    def to_target(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids, any shape."""
        return draft_ids if self.is_full else self._table(draft_ids.device)[draft_ids]

    def contains(self, target_ids: Tensor) -> Tensor:
        """Bool, shape of ``target_ids``: whether the drafter could propose each."""
        kept = torch.zeros(self.target_vocab, dtype=torch.bool, device=target_ids.device)
        kept[self._table(target_ids.device)] = True
        return kept[target_ids]

    def restrict(self, values: Tensor) -> Tensor:
        """Columns of ``values`` [..., target_vocab] the drafter has: [..., size]."""
        return values if self.is_full else values.index_select(-1, self._table(values.device))

    def rows(self, matrix: Tensor) -> Tensor:
        """Rows of ``matrix`` [target_vocab, ...] the drafter has: [size, ...]."""
        return matrix if self.is_full else matrix.index_select(0, self._table(matrix.device))

    def scatter(self, probs: Tensor) -> Tensor:
        """``probs`` [..., size] over the target's ids: [..., target_vocab], zero elsewhere."""
        if self.is_full:
            return probs
        full = probs.new_zeros(*probs.shape[:-1], self.target_vocab)
        return full.index_copy_(-1, self._table(probs.device), probs)

    def _table(self, device: torch.device) -> Tensor:
        if device not in self._tables:
            self._tables[device] = self._ids.to(device)
        return self._tables[device]


def _check(ids: Tensor, target_vocab: int) -> None:
    if ids.dim() != 1 or not ids.numel():
        raise UsageError("a draft vocabulary needs a list of at least one target id")
    outside = ids[(ids < 0) | (ids >= target_vocab)]
    if outside.numel():
        raise UsageError(
            f"draft vocabulary names target id {int(outside[0])}; allowed: 0 to {target_vocab - 1}"
        )
    ordered, counts = ids.unique(return_counts=True)
    if ordered.numel() != ids.numel():
        raise UsageError(f"draft vocabulary names target id {int(ordered[counts > 1][0])} more than once")
    if not torch.equal(ordered, ids):
        raise UsageError("draft vocabulary is not sorted: head rows belong to target ids in ascending order")
