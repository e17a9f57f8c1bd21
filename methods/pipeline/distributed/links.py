"""All channels of one rank for drafts of one width, the same on both ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import torch
from torch import Tensor

from methods.pipeline.distributed.channel import (
    Blocks,
    ByteReceiver,
    ByteSender,
    TensorReceiver,
    TensorSender,
    byte_receiver,
    byte_sender,
)
from methods.pipeline.distributed.job import Job
from methods.pipeline.distributed.messages import VERDICT_BYTES, offers_bytes
from methods.pipeline.distributed.post import Post

TAGS_PER_SET = 1 << 12
"""Tags that one set of links may use."""


class Links:
    """``first_tag`` separates this set of channels from every other between the same ranks.

    Attributes that do not apply to this rank are None or empty. ``hidden_*``: hidden states
    [width, hidden] along the stages. ``taps_*``: residual streams [width, taps, hidden] to the
    drafter, by stage. ``offers_*``: the drafter's proposals, ``offers_each`` behind every node, to
    every other rank. ``law_*``: the law they were drawn from [draft_vocab] to the last stage.
    ``verdict_*``: from the last stage.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        width: int,
        hidden: int,
        draft_vocab: int,
        like: Tensor,
        post: Post,
        first_tag: int,
    ) -> None:
        layout = job.layout
        tags = count(first_tag)
        stage, drafts = layout.stage(rank), rank == layout.drafter
        self.blocks = Blocks(next(tags), like)

        self.hidden_in: TensorReceiver | None = None
        self.hidden_out: TensorSender | None = None
        for upstream, tag in zip(range(layout.n - 1), tags, strict=False):
            if rank == upstream:
                self.hidden_out = TensorSender(post, upstream + 1, tag, (width, hidden), like)
            elif rank == upstream + 1:
                self.hidden_in = TensorReceiver(post, upstream, tag, (width, hidden), like)

        self.taps_in: dict[int, TensorReceiver] = {}
        self.taps_out: TensorSender | None = None
        for source, tag in zip(range(layout.n), tags, strict=False):
            rows = len(job.taps(source + 1))
            if not rows or source == layout.drafter:
                continue
            if rank == source:
                self.taps_out = TensorSender(post, layout.drafter, tag, (width, rows, hidden), like)
            elif drafts:
                self.taps_in[source + 1] = TensorReceiver(post, source, tag, (width, rows, hidden), like)

        self.offers_each = min(width, draft_vocab)
        size = offers_bytes(width, draft_vocab)
        self.offers_in, self.offers_out = _fan_out(post, rank, layout.drafter, layout.world, size, tags)
        size = VERDICT_BYTES
        self.verdict_in, self.verdict_out = _fan_out(post, rank, layout.last, layout.world, size, tags)

        self.law_in: TensorReceiver | None = None
        self.law_out: TensorSender | None = None
        tag = next(tags)
        if width == 1 and layout.last != layout.drafter:
            if drafts:
                self.law_out = TensorSender(post, layout.last, tag, (draft_vocab,), torch.empty(0))
            elif stage == layout.n:
                self.law_in = TensorReceiver(post, layout.drafter, tag, (draft_vocab,), torch.empty(0))


def _fan_out(
    post: Post, rank: int, source: int, world: int, size: int, tags: Iterator[int]
) -> tuple[ByteReceiver | None, list[ByteSender]]:
    """One channel from ``source`` to every other rank: this rank's end or ends of it. First to
    stage 1, then to the drafter: the others are in no hurry."""
    receiver: ByteReceiver | None = None
    senders: list[ByteSender] = []
    for destination, tag in zip((0, *range(world - 1, 0, -1)), tags, strict=False):
        if destination == source:
            continue
        if rank == source:
            senders.append(byte_sender(post, destination, tag, size))
        elif rank == destination:
            receiver = byte_receiver(post, source, tag, size)
    return receiver, senders
