"""EAGLE-3 chains along a known output: the training-time-test roll-out from every position at once.

Slot t of draft level k + 1 continues level k as if its draft had been accepted; where it was not,
no round looks any further. Lengths known, the rounds are a walk over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from methods.core import Step
from methods.decoding.replay import KnownOutput, Replayed, acceptance
from methods.decoding.sampling import Draws
from methods.decoding.verification import Draft, Verified
from methods.drafters.attention import causal_mask
from methods.drafters.decoder_layer import KeyValues
from methods.eagle3.drafting import Shape
from methods.eagle3.head import Eagle3Head

NEGLIGIBLE = 1e-9
"""Roll-outs whose drafts are all accepted with less than this probability go no deeper."""

_CHUNK = 256

_TOTALS = ("drafted", "accepted", "emitted", "target_layers", "draft_layers", "depth", "nodes")

Levels = list[list[float]]
"""Per output token as a round's root: probability by draft level that it is accepted if those before
it are; short where nothing deeper can be reached."""

StepOf = Callable[[Draft, Verified, int, dict[str, float]], Step]


class ChainTable:
    """``given`` and ``marginal`` as in ``methods.decoding.replay.Acceptance``, per root and level."""

    def __init__(self, roots: int) -> None:
        self.given: Levels = [[] for _ in range(roots)]
        self.marginal: Levels = [[] for _ in range(roots)]

    def follow(self, root: int, limit: int, right: Callable[[float], bool]) -> int:
        """Drafts accepted behind ``root``, at most ``limit``, when ``right(probability)`` decides."""
        levels = self.given[root][:limit]
        return next((level for level, given in enumerate(levels) if not right(given)), len(levels))


@torch.no_grad()
def chain_table(head: Eagle3Head, known: KnownOutput, m: int, drawn: bool) -> ChainTable:
    """Roll ``m`` levels out behind every output token that something follows."""
    table = ChainTable(known.decoded)
    if not known.decoded:
        return table
    first = len(known.prompt_ids)
    features = head.fuse(known.features(head.config.taps).flatten(1)[:-1])
    ids = torch.tensor([*known.prompt_ids, *known.output_ids[:-1]], device=features.device)
    stable = torch.arange(features.shape[0], device=features.device)
    mask = None
    if head.config.window is not None:
        mask = causal_mask(len(stable), len(stable), stable.device)
        mask &= stable[:, None] - stable < head.config.window
    out, past = head.slots(features[None], ids[None, 1:], stable, mask)
    outputs = out[0, first - 1 :]
    roots = torch.arange(known.decoded, device=features.device)
    owner = roots[:0]
    reached = torch.ones(known.decoded, dtype=torch.float64, device=features.device)
    for level in range(m):
        if level:
            positions = first + roots + level - 1
            owner = torch.cat((owner, roots))
            near = stable < first + roots[:, None]
            if head.config.window is not None:
                near &= positions[:, None] - stable < head.config.window
            mask = torch.cat((near, roots[:, None] == owner), 1)
            following = known.truth[roots + level - 1]
            out, new = head.slots(outputs[None], following[None], positions, mask, past)
            outputs, past = out[0], _joined(past, new)
        found = _accept(head, outputs, known, (roots + level).tolist(), drawn)
        for root, given, marginal in zip(roots.tolist(), *(a.tolist() for a in found), strict=True):
            table.given[root].append(given)
            table.marginal[root].append(marginal)
        reached = reached * found[0]
        alive = (reached >= NEGLIGIBLE) & (roots + level + 1 < known.decoded)
        roots, outputs, reached = roots[alive], outputs[alive], reached[alive]
        if not len(roots):
            break
    return table


def replay_chain(known: KnownOutput, table: ChainTable, shape: Shape, step_of: StepOf) -> Replayed:
    """The rounds over a table; ``step_of`` makes the ``Step`` of a round as the decode loop does."""
    draws = Draws(known.sampling.seed)
    walk = _Walk(known, shape.m, step_of)
    done, steps = min(1, len(known.output_ids)), []
    while done < len(known.output_ids):
        kept = table.follow(done - 1, walk.levels(done), lambda given: draws.acceptance() < given)
        steps.append(walk.step(done, kept))
        done += steps[-1].emitted
    if known.sampling.greedy or not shape.drawn:
        return Replayed(steps)
    return Replayed(steps, *_expectation(walk, table))


class _Walk:
    """Rounds by how many tokens are done when they begin and how many drafts they accept."""

    def __init__(self, known: KnownOutput, m: int, step_of: StepOf) -> None:
        self.length = len(known.output_ids)
        self._cap, self._m, self._step_of = known.cap, m, step_of

    def levels(self, done: int) -> int:
        """Draft levels of a round: the target's own token ends it, so the last one wanted needs none."""
        return max(0, min(self._m, self._cap - done - 1))

    def step(self, done: int, kept: int) -> Step:
        levels = self.levels(done)
        draft = Draft([-1] * levels, range(-1, levels - 1), layers=levels)
        verified = Verified(list(range(kept)), -1, kept + (kept < levels))
        return self._step_of(draft, verified, min(kept + 1, self.length - done), {})


def _expectation(walk: _Walk, table: ChainTable) -> tuple[dict[str, float], list[float | None]]:
    """Expected totals, and the acceptance probability of each position where a draft can be examined."""
    count = walk.length - 1
    visits = [1.0] + [0.0] * count
    totals = dict.fromkeys((*_TOTALS, "steps"), 0.0)
    examined, accepted = [0.0] * count, [0.0] * count
    for root in range(count):
        alive = visits[root]
        levels = min(walk.levels(root + 1), len(table.given[root]))
        for level in range(levels + 1):
            given = table.given[root][level] if level < levels else 0.0
            step = walk.step(root + 1, level)
            ends = alive * (1 - given)
            if root + step.emitted < count:
                visits[root + step.emitted] += ends
            _add(totals, step, ends)
            if level < levels:
                examined[root + level] += alive
                accepted[root + level] += alive * table.marginal[root][level]
            alive *= given
    return totals, [a / e if e > 0 else None for a, e in zip(accepted, examined, strict=True)]


def _add(totals: dict[str, float], step: Step, weight: float) -> None:
    for name in _TOTALS:
        value = getattr(step, name)
        totals[name] += weight * (sum(value) if name == "nodes" else value)
    totals["steps"] += weight


def _accept(
    head: Eagle3Head, outputs: Tensor, known: KnownOutput, index: Sequence[int], drawn: bool
) -> tuple[Tensor, Tensor]:
    """Acceptance of the drafts for ``truth[index]`` from slot outputs [rows, hidden]."""
    parts = [
        acceptance(
            head.logits(outputs[start : start + _CHUNK]),
            head.vocabulary,
            known,
            index[start : start + _CHUNK],
            drawn,
        )
        for start in range(0, len(index), _CHUNK)
    ]
    return torch.cat([part.given for part in parts]), torch.cat([part.marginal for part in parts])


def _joined(past: KeyValues, new: KeyValues) -> KeyValues:
    return torch.cat((past[0], new[0]), 2), torch.cat((past[1], new[1]), 2)
