"""The draft vocabulary, chosen by count over the tokens the assistant wrote."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.training.observation import Example


def count_tokens(examples: Iterable[Example], target_vocab: int) -> Tensor:
    """How often the assistant wrote each token: int64 [target_vocab]."""
    counts = torch.zeros(target_vocab, dtype=torch.long)
    for example in examples:
        counts += torch.bincount(example.ids[example.mask], minlength=target_vocab)
    return counts


def most_frequent(counts: Tensor, size: int, always: Collection[int] = ()) -> DraftVocabulary:
    """The ``size`` tokens of the highest ``counts`` [target_vocab] (ties: the smaller id).

    ``always`` ids, the stop ids, are in it whatever their count. A size of the target's vocabulary
    or more is the full vocabulary.
    """
    if size < max(1, len(always)):
        raise UsageError(f"a draft vocabulary of {size} cannot hold the {len(always)} stop ids")
    if size >= len(counts):
        return DraftVocabulary(len(counts))
    ranked = counts.clone()
    ranked[list(always)] = int(counts.max()) + 1
    ids = ranked.sort(descending=True, stable=True).indices[:size].sort().values
    return DraftVocabulary(len(counts), ids)


def covered(counts: Tensor, vocabulary: DraftVocabulary) -> float:
    """The share of the tokens in ``counts`` that ``vocabulary`` has."""
    return float(counts[vocabulary.ids].sum() / counts.sum().clamp(min=1))
