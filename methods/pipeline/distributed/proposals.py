"""What the drafter proposes, on its way to all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from methods.pipeline.distributed.incoming import Incoming
from methods.pipeline.distributed.links import Links
from methods.pipeline.distributed.messages import Offers, pack_offers, unpack_offers
from methods.pipeline.distributed.setup import Deciding, Setup
from methods.pipeline.tree import Level, Proposal
from methods.verification import DraftLaw


class Proposals:
    """One rank's end: the drafter sends, the others receive."""

    def __init__(self, setup: Setup, links: Links, decisions: Deciding, incoming: Incoming) -> None:
        self._setup, self._links = setup, links
        self._decisions, self._incoming = decisions, incoming
        self._owed = 0
        """Proposals under way that a flush made useless before they arrived."""

    def choose(self, logits: Tensor) -> list[list[Proposal]]:
        """The drafter's proposals behind every row of ``logits`` [nodes, draft_vocab]."""
        return self._decisions.offers(logits, self._setup.vocabulary)

    def send(self, newest: Level, rows: list[list[Proposal]]) -> Offers:
        """Tell everybody, and the last stage the law a token was drawn from."""
        packed = pack_offers(rows)
        for sender in self._links.offers_out:
            sender.send(packed)
        if self._links.law_out is not None and self._decisions.drawn:
            self._links.law_out.send(rows[0][0].record.probs)
        return {node.id: row for node, row in zip(newest, rows, strict=True)}

    def receive(self, newest: Level) -> Offers:
        self.skip_owed()
        data = self._incoming.data(self._links.offers_in, "the drafter's proposals")
        offers = unpack_offers(newest, self._links.offers_each, data)
        if self._links.law_in is not None and self._decisions.drawn:
            probs = self._incoming.tensor(self._links.law_in, "the drafter's law").clone()
            offers = {key: [self._with_law(row[0], probs)] for key, row in offers.items()}
        return offers

    def receive_early(self, newest: Level) -> Offers | None:
        """What ``receive`` would return, if it need not wait for it."""
        receiver = self._links.offers_in
        if self._owed or receiver is None or not receiver.ready():
            return None
        return self.receive(newest)

    def owe(self) -> None:
        """The proposals of this cycle are of no use; they are received when the next ones are."""
        self._owed += 1

    def skip_owed(self) -> None:
        while self._owed:
            self._owed -= 1
            self.receive(())

    def _with_law(self, proposal: Proposal, probs: Tensor) -> Proposal:
        vocabulary = self._setup.vocabulary
        index = int(torch.searchsorted(vocabulary.ids, proposal.token))
        law = DraftLaw(probs.to(self._setup.sizes.like.device), vocabulary, index)
        return proposal._replace(record=law)
