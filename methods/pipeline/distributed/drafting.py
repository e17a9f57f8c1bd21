"""A rank's drafter with the features it reads, and the proposals on their way to all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from methods.decoding.verification import DraftLaw
from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.distributed.job import Deciding, Job, Request, Setup
from methods.pipeline.distributed.links import Links, Offers
from methods.pipeline.distributed.progress import Inbox, Progress
from methods.pipeline.distributed.stage import Taps, chunks
from methods.pipeline.drafter import Features
from methods.pipeline.tree import Level, Node, Proposal


class DrafterRole:
    """The drafter along one sequence. ``features`` hold what its tokens' stages have sent."""

    def __init__(self, setup: Setup, job: Job, links: Links, inbox: Inbox) -> None:
        self._setup, self._job, self._links, self._inbox = setup, job, links, inbox
        self._drafter = setup.drafter()
        self._features: Features = {}

    def prefill(self, request: Request, own_taps: list[Taps], progress: Progress) -> None:
        """Begin with the prompt's features [prompt, reads, hidden], from all stages."""
        job, size, start = self._job, self._setup.hidden, 0
        prompt = self._setup.like.new_empty(len(request.prompt_ids), len(job.reads), size)
        for number, chunk in enumerate(chunks(request)):
            part = prompt[start : start + len(chunk)]
            start += len(chunk)
            if 0 in job.reads:
                part[:, job.reads.index(0)] = self._setup.embed(list(chunk))[0]
            if own_taps:
                for row, value in own_taps[number].items():
                    part[:, row] = value[0]
            for stage in self._links.taps_in:
                rows = job.taps(stage)
                with progress.waiting(f"taps of the prompt from stage {stage}"):
                    block = self._links.blocks.receive(stage - 1, len(rows), len(chunk), size)
                for row, value in zip(rows, block, strict=True):
                    part[:, row] = value
        self._drafter.start(prompt, request.width > 1)

    def draft(self, pipeline: PipelineController) -> Tensor:
        """Draft logits [newest nodes, draft_vocab]."""
        return self._drafter.draft(pipeline, self._features)

    def collect_taps(self, work: tuple[Level, ...]) -> None:
        """Receive what the other ranks' stages read off in this cycle."""
        for stage, receiver in self._links.taps_in.items():
            level = work[stage - 1]
            if level:
                rows = self._inbox.take(receiver, f"taps from stage {stage}")
                self.store_taps(level, dict(zip(self._job.taps(stage), rows.unbind(1), strict=True)))

    def store_taps(self, level: Level, taps: Taps) -> None:
        """``taps``: row of ``reads`` -> [at least nodes, hidden]."""
        for row, value in taps.items():
            for i, node in enumerate(level):
                self._features[node.id][row] = value[i]

    def settle(self, verdict: Verdict, root: Node) -> None:
        """Follow a verification of ``root``'s successors."""
        self._drafter.settle(verdict, self._features[root.id])
        for node_id in verdict.gone:
            self._features.pop(node_id, None)

    def enter(self, level: Level, hidden: Tensor | None) -> None:
        """Room for the features of tokens that enter stage 1; ``hidden`` [1, nodes, hidden] are theirs
        where the embedding is read."""
        for i, node in enumerate(level):
            self._features[node.id] = self._setup.like.new_empty(len(self._job.reads), self._setup.hidden)
            if hidden is not None:
                self._features[node.id][self._job.reads.index(0)] = hidden[0, i]


class Proposals:
    """One rank's end of the proposals: the drafter sends, the others receive."""

    def __init__(self, setup: Setup, links: Links, decisions: Deciding, inbox: Inbox) -> None:
        self._setup, self._links = setup, links
        self._decisions, self._inbox = decisions, inbox
        self._owed = 0
        """Proposals under way that a flush made useless before they arrived."""

    def choose(self, logits: Tensor) -> list[list[Proposal]]:
        """The drafter's proposals behind every row of ``logits`` [nodes, draft_vocab]."""
        return self._decisions.offers(logits, self._setup.vocabulary)

    def send(self, newest: Level, rows: list[list[Proposal]]) -> Offers:
        """Tell everybody, and the last stage the law a token was drawn from."""
        self._links.proposals.send(rows)
        if self._links.law_out is not None and self._decisions.drawn:
            self._links.law_out.send(rows[0][0].record.probs)
        return {node.id: row for node, row in zip(newest, rows, strict=True)}

    def receive(self, newest: Level) -> Offers:
        self.skip_owed()
        offers = self._links.proposals.receive(self._inbox, newest)
        if self._links.law_in is not None and self._decisions.drawn:
            probs = self._inbox.take(self._links.law_in, "the drafter's law").clone()
            offers = {key: [self._with_law(row[0], probs)] for key, row in offers.items()}
        return offers

    def receive_early(self, newest: Level) -> Offers | None:
        """What ``receive`` would return, if it need not wait for it."""
        return self.receive(newest) if not self._owed and self._links.proposals.ready() else None

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
        law = DraftLaw(probs.to(self._setup.like.device), vocabulary, index)
        return proposal._replace(record=law)
