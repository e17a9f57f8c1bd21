"""Two brute-force pipelines and an executor without tensors that checks what the controller says.

The simulations share no code with the controller and none with each other. A *script* fixes the
target's output and, as a function of the whole prefix, what the drafter proposes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from methods.core import Transcript
from methods.pipeline.controller import PipelineController
from methods.pipeline.tree import Node, Proposal

Prefix = tuple[int, ...]
Propose = Callable[[Prefix], Sequence[Proposal]]


@dataclass(frozen=True)
class Script:
    n: int
    width: int
    target: tuple[int, ...]
    propose: Propose
    cap: int = 1000
    stop_ids: frozenset[int] = frozenset()
    prompt_length: int = 3

    def expected(self) -> list[int]:
        output: list[int] = []
        while len(output) < min(self.cap, len(self.target)):
            output.append(self.target[len(output)])
            if output[-1] in self.stop_ids:
                break
        return output


@dataclass
class Run:
    """What happened, cycle by cycle: Step counts and, per stage, the prefixes of the nodes it ran."""

    output: list[int]
    counts: list[tuple[int, int, int]] = field(default_factory=list)
    work: list[list[list[Prefix]]] = field(default_factory=list)
    fills: int = 0


def simulate_chain(n: int, right: Sequence[bool], length: int) -> tuple[list[tuple[int, int, int]], int]:
    """(drafted, accepted, emitted) of every cycle and the fills, for W = 1.

    ``right[i]``: the draft of output token ``i`` is the target's; ``length``: output tokens."""
    counts, fills, committed = [], int(length > 1), 1
    in_flight: list[list[int]] = []  # [output index, completed stages], oldest first
    entering = 0
    while committed < length:
        in_flight.append([entering, 0])
        entering += 1
        for token in in_flight:
            token[1] += 1
        if in_flight[0][1] < n:
            counts.append((0, 0, 0))
            continue
        successor = in_flight.pop(0)[0] + 1
        committed += 1
        counts.append((1, int(right[successor]), 1))
        if not right[successor]:
            in_flight, entering = [], successor
            fills += int(committed < length)
    return counts, fills


def simulate_tree(script: Script) -> Run:
    """The pipeline as a set of paths behind the root, any W; proposals are asked for anew each time."""
    n, length = script.n, len(script.expected())
    run = Run(output=list(script.target[: min(1, length)]), fills=int(length > 1))
    live: dict[Prefix, int] = {(): 1}  # path behind the root -> cycle of entry, in order of rank
    cycle = 0

    def score(path: Prefix) -> float:
        total = 0.0
        for depth, token in enumerate(path):
            offers = script.propose((*run.output, *path[:depth]))
            total += next(offer.logprob for offer in offers if offer.token == token)
        return total

    def grow() -> None:
        depth = max(map(len, live))
        offers: list[Prefix] = []
        for parent in [path for path in live if len(path) == depth]:
            tokens = [offer.token for offer in script.propose((*run.output, *parent))]
            offers += [(*parent, token) for token in dict.fromkeys(tokens)]
        for path in sorted(offers, key=score, reverse=True)[: script.width]:
            live[path] = cycle + 1

    while len(run.output) < length:
        cycle += 1
        ran = [[(*run.output, *p) for p, entered in live.items() if cycle - entered == s] for s in range(n)]
        run.work.append(ran)
        if n == 1:
            grow()
        if cycle - live[()] < n - 1:
            run.counts.append((0, 0, 0))
            grow()
            continue
        drafted = sum(len(path) == 1 for path in live)
        token = script.target[len(run.output)]
        hit = (token,) in live
        live = {path[1:]: entered for path, entered in live.items() if path[:1] == (token,)}
        run.output.append(token)
        run.counts.append((drafted, int(hit), 1))
        if not hit:
            live = {(): cycle + 1}
            run.fills += int(len(run.output) < length)
        elif n > 1:
            grow()
    return run


def execute(script: Script) -> tuple[PipelineController, Run]:
    """Drive the controller with a cache per stage, checking its promises on the way."""
    transcript = Transcript(script.cap, script.stop_ids)
    pipeline = PipelineController(
        script.n, script.prompt_length, script.target[0], transcript, width=script.width, draft_layers=0.5
    )
    run = Run(output=transcript.tokens)
    caches: list[list[Node]] = [[] for _ in range(script.n)]
    visits: dict[Node, list[tuple[int, int]]] = {}
    dropped: set[int] = set()

    def prefix(node: Node) -> Prefix:
        return (*transcript.tokens, *(above.token for above in node.path()[1:]))

    def expand() -> None:
        pipeline.expand({node.id: script.propose(prefix(node)) for node in pipeline.newest})

    while not pipeline.finished:
        work = pipeline.stage_work()
        assert len(work) == script.n
        assert pipeline.newest == work[0]
        run.work.append([[prefix(node) for node in level] for level in work])
        for stage, level in enumerate(work):
            assert len(level) <= script.width
            assert pipeline.root not in level or level == (pipeline.root,)
            # Every stage holds the committed tokens before the root, then nodes behind the root.
            committed = transcript.tokens[:-1]
            assert [cached.token for cached in caches[stage][: len(committed)]] == committed
            for node in level:
                assert node.id not in dropped
                assert pipeline.depth(node) == stage
                assert node.position == script.prompt_length + len(prefix(node)) - 1
                visits.setdefault(node, []).append((pipeline.cycle, stage))
                assert all(above in caches[stage][len(committed) :] for above in node.path()[:-1])
            caches[stage] += level
        if pipeline.expansion_due:
            expand()
        if pipeline.verification_due:
            _verify(script, pipeline, caches, visits, dropped)
        if pipeline.expansion_due:
            expand()
        pipeline.end_cycle()
    run.counts = [(step.drafted, step.accepted, step.emitted) for step in pipeline.steps]
    run.fills = pipeline.fills
    return pipeline, run


def _verify(
    script: Script,
    pipeline: PipelineController,
    caches: list[list[Node]],
    visits: dict[Node, list[tuple[int, int]]],
    dropped: set[int],
) -> None:
    committed = len(pipeline.transcript.tokens) - 1  # before the root
    root = pipeline.root
    assert visits[root] == [(root.entered + stage, stage) for stage in range(script.n)]
    in_flight = {node.id for level in pipeline.stage_work() for node in level}
    token = script.target[len(pipeline.transcript.tokens)]
    child = pipeline.candidate(token)
    verdict = pipeline.commit(token, child)
    assert (verdict.accepted, verdict.finished) == (child is not None, pipeline.finished)
    assert verdict.flushed == (child is None and not pipeline.finished)
    assert verdict.root is pipeline.root
    lost = in_flight - verdict.survivors - {root.id}
    dropped |= lost
    for stage, cache in enumerate(caches, start=1):
        tail = cache[committed:]
        assert tail == verdict.seen_by(stage)
        kept = [tail[i] for i in verdict.kept_by(stage)]
        assert kept == [node for node in tail if node is root or node.id in verdict.survivors]
        assert all(node is root or verdict.root in node.path() for node in kept)
        if all(len(level) == 1 for level in pipeline.stage_work()):
            assert len(tail) == 1 + script.n - stage
        cache[committed:] = kept


def check(script: Script) -> PipelineController:
    """Controller and brute force agree on everything; the output is the target's."""
    pipeline, run = execute(script)
    reference = simulate_tree(script)
    assert run.output == script.expected()
    assert run == reference
    decoded = max(0, len(run.output) - 1)
    assert sum(step.emitted for step in pipeline.steps) == decoded
    assert pipeline.cycles == decoded + (script.n - 1) * pipeline.fills + pipeline.bubbles
    assert [step.nodes for step in pipeline.steps] == [tuple(map(len, work)) for work in run.work]
    ended_by_stop = bool(run.output) and run.output[-1] in script.stop_ids
    assert pipeline.transcript.finish_reason == ("stop" if ended_by_stop else "length")
    if script.width == 1:
        assert pipeline.bubbles == 0
    return pipeline


def scripted_chain(target: Sequence[int], right: Sequence[bool]) -> Propose:
    """One proposal a node: the target's token where ``right``, another one elsewhere."""

    def propose(prefix: Prefix) -> list[Proposal]:
        i = len(prefix)
        if i >= len(target):
            return [Proposal(0, -1.0)]
        on_track = prefix == tuple(target[:i])
        return [Proposal(target[i] if on_track and right[i] else target[i] + 1, -1.0)]

    return propose


def random_tree(seed: int, vocab: int, most: int) -> Propose:
    """0 to ``most`` proposals a node, tokens repeated now and then. Log probabilities are multiples of
    1/4, so that ties are common and sums exact."""

    def propose(prefix: Prefix) -> list[Proposal]:
        rng = random.Random(hash((seed, *prefix)))
        count = rng.choice([0, *range(1, most + 1), most, most])
        return [Proposal(rng.randrange(vocab), -rng.randrange(8) / 4) for _ in range(count)]

    return propose
