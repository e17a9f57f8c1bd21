"""All channels of one rank for drafts of one width, the same on both ends, and what the small ones carry."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import count

import torch

from methods.decoding.verification import MAX_WIDTH
from methods.errors import UsageError
from methods.pipeline.distributed.job import Job, Setup
from methods.pipeline.distributed.progress import Inbox
from methods.pipeline.distributed.transport import (
    Blocks,
    ByteReceiver,
    ByteSender,
    TensorReceiver,
    TensorSender,
    Transport,
)
from methods.pipeline.tree import Level, Node, Proposal

TAGS_PER_LINKS = 1 << 11
"""Tags set aside for one set of links: enough for several hundred ranks."""
_LAST_TAG = 2**31 - 1
"""gloo's tags are 32 bits wide."""

Offers = dict[int, list[Proposal]]
"""Node id -> what the drafter proposes behind it."""

_OFFER = struct.Struct("<qd")  # token, log probability
_VERDICT = struct.Struct("<qq")  # token, index of the accepted candidate (-1: none)


class FanOut:
    """A channel from one rank to every other: ``receiver`` on those, ``senders`` on that one. First to
    stage 1, then to the drafter: the others are in no hurry."""

    def __init__(
        self, transport: Transport, rank: int, source: int, world: int, size: int, tags: Iterator[int]
    ) -> None:
        self.receiver: ByteReceiver | None = None
        self.senders: list[ByteSender] = []
        for destination, tag in zip((0, *range(world - 1, 0, -1)), tags, strict=False):
            if destination == source:
                continue
            if rank == source:
                self.senders.append(transport.sender(destination, tag, size))
            elif rank == destination:
                self.receiver = transport.receiver(source, tag, size)

    def send(self, data: bytes) -> None:
        for sender in self.senders:
            sender.send(data)


class VerdictChannel:
    """The last stage's decisions, 16 bytes each, to every other rank."""

    def __init__(self, transport: Transport, rank: int, job: Job, tags: Iterator[int]) -> None:
        layout = job.layout
        self._fan_out = FanOut(transport, rank, layout.last, layout.world, _VERDICT.size, tags)

    def send(self, token: int, candidates: Level = (), child: Node | None = None) -> None:
        """The target's ``token``, and the one of ``candidates`` that carries it, if any."""
        self._fan_out.send(_VERDICT.pack(token, -1 if child is None else candidates.index(child)))

    def receive(self, inbox: Inbox, candidates: Level, what: str) -> tuple[int, Node | None]:
        token, index = _VERDICT.unpack(inbox.take(self._fan_out.receiver, what))
        return token, None if index < 0 else candidates[index]


class ProposalChannel:
    """The drafter's proposals, ``each`` behind every node of a level, to every other rank."""

    def __init__(
        self, transport: Transport, rank: int, job: Job, width: int, draft_vocab: int, tags: Iterator[int]
    ) -> None:
        layout = job.layout
        self._each = min(width, draft_vocab)
        size = width * self._each * _OFFER.size
        self._fan_out = FanOut(transport, rank, layout.drafter, layout.world, size, tags)

    def send(self, rows: Sequence[Sequence[Proposal]]) -> None:
        """A row for every node, of equal length."""
        self._fan_out.send(b"".join(_OFFER.pack(p.token, p.logprob) for row in rows for p in row))

    def ready(self) -> bool:
        return self._fan_out.receiver is not None and self._fan_out.receiver.ready()

    def receive(self, inbox: Inbox, level: Level) -> Offers:
        data = inbox.take(self._fan_out.receiver, "the drafter's proposals")
        pairs = _OFFER.iter_unpack(data[: len(level) * self._each * _OFFER.size])
        return {node.id: [Proposal(*next(pairs)) for _ in range(self._each)] for node in level}


class Links:
    """``first_tag`` separates this set of channels from every other between the same ranks.

    Attributes that do not apply to this rank are None or empty. ``hidden_*``: hidden states
    [width, hidden] along the stages. ``taps_*``: residual streams [width, taps, hidden] to the
    drafter, by stage. ``law_*``: the law proposals were drawn from [draft_vocab] to the last stage.
    """

    def __init__(
        self, setup: Setup, job: Job, rank: int, width: int, transport: Transport, first_tag: int
    ) -> None:
        layout, like, hidden = job.layout, setup.like, setup.hidden
        draft_vocab = setup.vocabulary.size
        tags = count(first_tag)
        stage, drafts = layout.stage(rank), rank == layout.drafter
        self.blocks = Blocks(next(tags), like)

        self.hidden_in: TensorReceiver | None = None
        self.hidden_out: TensorSender | None = None
        for upstream, tag in zip(range(layout.n - 1), tags, strict=False):
            if rank == upstream:
                self.hidden_out = TensorSender(transport, upstream + 1, tag, (width, hidden), like)
            elif rank == upstream + 1:
                self.hidden_in = TensorReceiver(transport, upstream, tag, (width, hidden), like)

        self.taps_in: dict[int, TensorReceiver] = {}
        self.taps_out: TensorSender | None = None
        for source, tag in zip(range(layout.n), tags, strict=False):
            rows = len(job.taps(source + 1))
            if not rows or source == layout.drafter:
                continue
            if rank == source:
                self.taps_out = TensorSender(transport, layout.drafter, tag, (width, rows, hidden), like)
            elif drafts:
                self.taps_in[source + 1] = TensorReceiver(transport, source, tag, (width, rows, hidden), like)

        self.proposals = ProposalChannel(transport, rank, job, width, draft_vocab, tags)
        self.verdicts = VerdictChannel(transport, rank, job, tags)

        self.law_in: TensorReceiver | None = None
        self.law_out: TensorSender | None = None
        tag = next(tags)
        if width == 1 and layout.last != layout.drafter:
            if drafts:
                self.law_out = TensorSender(transport, layout.last, tag, (draft_vocab,), torch.empty(0))
            elif stage == layout.n:
                self.law_in = TensorReceiver(transport, layout.drafter, tag, (draft_vocab,), torch.empty(0))


def first_tag(job_number: int, width: int, world: int) -> int:
    """Of the links of a job's drafts of ``width``: no two sets of links between the same ranks share a
    tag. Raises ``UsageError`` where tags would run out."""
    if not 1 <= width <= MAX_WIDTH or 4 * world >= TAGS_PER_LINKS:
        raise UsageError(f"no tags for width {width} on {world} ranks (widths to {MAX_WIDTH})")
    first = (job_number * MAX_WIDTH + width - 1) * TAGS_PER_LINKS
    if first + TAGS_PER_LINKS > _LAST_TAG:
        raise UsageError(f"these ranks have run {job_number} jobs: start the program anew for more")
    return first


class JobLinks:
    """The links of one job on one rank by width, made when a width is first asked for."""

    def __init__(self, setup: Setup, job: Job, rank: int, transport: Transport, job_number: int) -> None:
        self.setup, self.job, self.rank = setup, job, rank
        self._transport, self._number = transport, job_number
        self._by_width: dict[int, Links] = {}

    def of(self, width: int) -> Links:
        if width not in self._by_width:
            tag = first_tag(self._number, width, self.job.layout.world)
            self._by_width[width] = Links(self.setup, self.job, self.rank, width, self._transport, tag)
        return self._by_width[width]
