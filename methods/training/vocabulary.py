"""The draft vocabulary, chosen by count over the tokens the assistant wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch

from methods.drafting.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.training.observation import Example


def count_vocabulary(
    examples: Iterable[Example], target_vocab: int, size: int, always: Collection[int] = ()
) -> tuple[DraftVocabulary, float]:
    """The ``size`` most frequent assistant tokens (ties: the smaller id), and the share they cover.

    ``always`` ids, the stop ids, are in it whatever their count. A size of the target's vocabulary
    or more is the full vocabulary.
    """
    if size < max(1, len(always)):
        raise UsageError(f"a draft vocabulary of {size} cannot hold the {len(always)} stop ids")
    counts = torch.zeros(target_vocab, dtype=torch.long)
    for example in examples:
        counts += torch.bincount(example.ids[example.mask], minlength=target_vocab)
    if size >= target_vocab:
        return DraftVocabulary(target_vocab), 1.0
    ranked = counts.clone()
    ranked[list(always)] = int(counts.max()) + 1
    ids = ranked.sort(descending=True, stable=True).indices[:size].sort().values
    return DraftVocabulary(target_vocab, ids), float(counts[ids].sum() / counts.sum().clamp(min=1))
