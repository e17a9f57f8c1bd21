"""One frozen target pass over a batch: everything the heads being trained may look at."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from methods.drafters.vocabulary import DraftVocabulary
from methods.models.target import Target

_LOGIT_ROWS = 256
"""Positions per chunk of full-vocabulary logits."""


@dataclass(frozen=True, slots=True)
class Example:
    """A conversation: token ids [tokens] (int64) and the assistant's among them, ``mask`` (bool)."""

    ids: Tensor
    mask: Tensor

    def supervised(self) -> Tensor:
        """Positions p a drafter meets when decoding: tokens p and p + 1 are both the assistant's.

        (The first assistant token comes from the target's prefill and is never drafted.)
        """
        both = self.mask[:-1] & self.mask[1:]
        both[:1] = False
        return both.nonzero()[:, 0]

    def generated(self) -> Tensor:
        """Per position, how many consecutive assistant tokens end there: int64 [tokens]."""
        places = torch.arange(1, len(self.mask) + 1)
        last_other = torch.where(self.mask, 0, places).cummax(0).values
        return places - last_other


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target's law after each supervised position, cut to the draft vocabulary.

    ``probs`` [supervised, draft_vocab] float32 are renormalised; ``mass`` [supervised] is what they
    summed to before; ``best`` [supervised] is the draft id of the target's argmax, -1 where the
    draft vocabulary lacks it: such a position is no training signal and counts as a rejection.
    """

    probs: Tensor
    mass: Tensor
    best: Tensor

    @property
    def valid(self) -> Tensor:
        return self.best >= 0


@dataclass(frozen=True, slots=True)
class Observed:
    """A batch of examples, their tokens one after another as ``rows``.

    ``positions`` [rows] count from 0 in each example. ``supervised`` [cycles] are row numbers,
    ascending; ``generated`` [cycles] is how many assistant tokens end there. ``spans`` gives each
    example's rows and supervised positions, as (first row, end, first cycle, end).
    """

    ids: Tensor
    positions: Tensor
    taps: dict[int, Tensor]
    supervised: Tensor
    generated: Tensor
    spans: list[tuple[int, int, int, int]]
    teacher: Teacher

    def follows(self, steps: int) -> Tensor:
        """Bool [cycles - steps]: cycle i + ``steps`` is ``steps`` tokens after cycle i in the same answer."""
        count = max(0, len(self.supervised) - steps)
        ahead = self.supervised[steps:] - self.supervised[:count]
        grown = self.generated[steps:] - self.generated[:count]
        return (ahead == steps) & (grown == steps)


@torch.no_grad()
def observe(
    target: Target, examples: Sequence[Example], taps: Collection[int], vocabulary: DraftVocabulary
) -> Observed:
    """Run the target over ``examples``, one after the other: no padding, no cross-attention.

    ``taps`` are the residual-stream indices to keep; they, and the teacher's laws, are computed
    once for all heads.
    """
    device = target.device
    rows: dict[int, list[Tensor]] = {tap: [] for tap in taps}
    hidden, supervised, generated, spans = [], [], [], []
    row = cycle = 0
    for example in examples:
        # Tokens after the last supervised position are seen by nothing that is trained.
        places = example.supervised()
        length = int(places[-1]) + 1 if len(places) else 0
        if length == 0:
            continue
        out = target.forward(example.ids[:length], target.new_state(), taps=taps)
        for tap in taps:
            rows[tap].append(out.taps[tap][0])
        hidden.append(out.hidden[0, places.to(device)])
        supervised.append(places + row)
        generated.append(example.generated()[places])
        spans.append((row, row + length, cycle, cycle + len(places)))
        row, cycle = row + length, cycle + len(places)
    if not spans:
        raise ValueError("no example of the batch has a supervised position")
    lengths = [end - start for start, end, _, _ in spans]
    kept = [example for example in examples if len(example.supervised())]
    ids = torch.cat([e.ids[:length] for e, length in zip(kept, lengths, strict=True)])
    return Observed(
        ids.to(device),
        torch.cat([torch.arange(length) for length in lengths]).to(device),
        {tap: torch.cat(parts) for tap, parts in rows.items()},
        torch.cat(supervised).to(device),
        torch.cat(generated).to(device),
        spans,
        _teach(target, torch.cat(hidden), vocabulary),
    )


def _teach(target: Target, hidden: Tensor, vocabulary: DraftVocabulary) -> Teacher:
    draft_id = torch.full((target.vocab_size,), -1, device=hidden.device)
    draft_id[vocabulary.ids.to(hidden.device)] = torch.arange(vocabulary.size, device=hidden.device)
    probs = torch.empty(len(hidden), vocabulary.size, device=hidden.device)
    mass = torch.empty(len(hidden), device=hidden.device)
    best = torch.empty(len(hidden), dtype=torch.long, device=hidden.device)
    for start in range(0, len(hidden), _LOGIT_ROWS):
        part = slice(start, start + _LOGIT_ROWS)
        logits = target.logits(hidden[part]).float()
        cut = vocabulary.restrict(logits)
        probs[part] = cut.softmax(-1)
        mass[part] = (cut.logsumexp(-1) - logits.logsumexp(-1)).exp()
        best[part] = draft_id[logits.argmax(-1)]
    return Teacher(probs, mass, best)
