"""Draft-then-verify rounds: against AR, against their own forward passes, and drafting against memory.

A scripted drafter stands in for a trained one, so that no checkpoint is needed and every machine
verifies the same drafts: it runs a real head of the usual size and then names the target's own token, right
with probability ``RIGHT`` at each depth. What a round gains beyond that depends on the cost of a
block of m + 1 tokens beside that of one, which is why those are timed too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.speed.autoregressive import ar_arm
from harness.speed.result import Ratio, Result, Settings
from harness.speed.targets import targets
from harness.speed.timing import Timed, interleaved
from harness.speed.told import DRAFT_VOCABULARY
from methods import registry
from methods.core import SamplingParams, Step
from methods.decoding.sampling import Draws
from methods.decoding.verification import Draft
from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3 import checkpoint
from methods.eagle3.drafting import Eagle3Drafter
from methods.eagle3.head import Eagle3Head
from methods.eagle3.method import Eagle3, Eagle3Options
from methods.eagle3.session import Eagle3Session
from methods.models import Target
from methods.testing.scripted import sometimes

RIGHT = 0.8
SPEEDUPS = {3: 1.8, 7: 1.9}
"""m -> wall-clock speedup wished for where a block of m + 1 tokens costs little more than one."""
ROUND_AIM, DRAFT_AIM = 1 / 1.10, 1 / 2
"""Forward passes alone / whole round; the memory floor / a draft pass."""
GREEDY = SamplingParams()


def measure(settings: Settings) -> Iterator[Result]:
    """Per dtype: seconds per token of AR and of rounds, per round and for its passes alone, per draft
    pass, and per target pass of 1, 4 and 8 tokens."""
    for dtype, target, prompt in targets(settings):
        output = registry.create("autoregressive", target).decode(prompt, GREEDY, settings.tokens).tokens
        methods = {m: ScriptedEagle3(target, m, output) for m in SPEEDUPS}
        for method in methods.values():
            method.learn(prompt, settings.tokens)
        case = f"{settings.preset} {dtype}"
        arms = {"AR": ar_arm(target, prompt, settings.tokens)}
        arms |= {f"m = {m}": token_arm(method, prompt, settings.tokens) for m, method in methods.items()}
        speedups = [Ratio(f"speedup, m = {m}", "AR", f"m = {m}", aim) for m, aim in SPEEDUPS.items()]
        yield Result("rounds", case, "token", interleaved(arms, settings.repeats), tuple(speedups))
        for m, method in methods.items():
            arms = {
                "round": round_arm(method, prompt, settings.tokens),
                "passes alone": passes_arm(method, prompt, settings.tokens),
            }
            ratio = Ratio("passes alone / round", "passes alone", "round", ROUND_AIM)
            times = interleaved(arms, settings.repeats)
            yield Result(f"rounds, m = {m}", case, "round", times, (ratio,))
        head = methods[min(methods)].head
        arms = {
            "draft pass": draft_arm(head, len(prompt), settings.tokens),
            "floor": floor_arm(head, settings.tokens),
        }
        ratio = Ratio("floor / draft pass", "floor", "draft pass", DRAFT_AIM)
        yield Result("drafting", case, "draft pass", interleaved(arms, settings.repeats), (ratio,))
        sizes = [1, *(1 + m for m in SPEEDUPS)]
        arms = {f"{count} tokens": block_arm(target, prompt, count) for count in sizes}
        ratios = [Ratio(f"{count} tokens / 1", f"{count} tokens", "1 tokens") for count in sizes[1:]]
        yield Result("target passes", case, "pass", interleaved(arms, settings.repeats), tuple(ratios))


class ScriptedEagle3(Eagle3):
    """EAGLE-3 chains whose head passes are real and whose tokens are those of ``output``, each right
    with probability ``RIGHT``; the same ones in every call."""

    def __init__(self, target: Target, m: int, output: Sequence[int]) -> None:
        super().__init__(target, Eagle3Options(m=m, proposal="point-mass", untrained=True))
        size = min(DRAFT_VOCABULARY, target.vocab_size)
        vocabulary = DraftVocabulary(target.vocab_size, None if size == target.vocab_size else range(size))
        head = checkpoint.untrained(target.shape, vocabulary, self._embed, dtype=target.dtype)
        self.head = head.to(target.device)
        self.output = list(output)

    def learn(self, prompt: list[int], tokens: int) -> None:
        """Script what this method itself answers to ``prompt``: in half precision a block decides a
        near-tie otherwise than single steps do, and from there on AR's text would never be right."""
        for _ in range(tokens):
            answer = self.decode(prompt, GREEDY, tokens).tokens
            if answer == self.output:
                return
            self.output = answer

    def session(self, sampling: SamplingParams, draws: Draws) -> ScriptedDrafter:
        drafter = ScriptedDrafter(self.head, self.shape, sampling, draws)
        drafter.output, drafter.vocab = self.output, self.target.vocab_size
        return drafter


class ScriptedDrafter(Eagle3Drafter):
    """Drafts as its parent does, and then says something else."""

    output: list[int]
    vocab: int
    _done = 0

    def observe(self, tokens: Sequence[int], taps: Tensor) -> None:
        self._done += len(tokens) if self._done else 1
        super().observe(tokens, taps)

    def propose(self, budget: int) -> Draft:
        draft = super().propose(budget)
        right = sometimes(RIGHT)
        known = range(self._done, self._done + len(draft.tokens))
        tokens = [self.output[i] if right(i) else (self.output[i] + 1) % self.vocab for i in known]
        return Draft.chain(tokens, layers=draft.layers)


def token_arm(method: ScriptedEagle3, prompt: list[int], tokens: int) -> Timed:
    def run() -> float:
        result = method.decode(prompt, GREEDY, tokens)
        return result.decode_s / (len(result.tokens) - 1)

    return run


def round_arm(method: ScriptedEagle3, prompt: list[int], tokens: int) -> Timed:
    def run() -> float:
        result = method.decode(prompt, GREEDY, tokens)
        return result.decode_s / len(result.steps)

    return run


def passes_arm(method: ScriptedEagle3, prompt: list[int], tokens: int) -> Timed:
    """The forward passes of the same rounds, each timed alone: the target's block with its logits, the
    head over the accepted rows, the head once per further level."""
    steps = method.decode(prompt, GREEDY, tokens).steps

    def run() -> float:
        passes = Passes(method, prompt)
        return sum(passes.seconds(step) for step in steps) / len(steps)

    return run


class Passes:
    """A target and a head that are taken through the passes of given rounds."""

    def __init__(self, method: ScriptedEagle3, prompt: list[int]) -> None:
        self._target, self._reads = method.target, method.reads
        self._state = self._target.new_state()
        self._session = Eagle3Session(method.head)
        taps = self._target.prefill(prompt, self._state, self._reads).taps
        ids = torch.tensor([*prompt[1:], 0], device=self._target.device)
        self._output, _ = self._session.extend(self._features(taps, len(prompt)), ids)

    @torch.no_grad()
    def seconds(self, step: Step) -> float:
        target, levels = self._target, int(step.draft_layers)
        ids = torch.zeros(step.nodes[0], dtype=torch.long, device=target.device)
        kept = step.emitted
        features = torch.empty(0)
        output = self._output
        spent = 0.0
        for level in range(levels - 1):
            now = clock(target)
            output, _ = self._session.grow([level - 1], output, ids[:1])
            spent += clock(target) - now
        base, now = self._state.length, clock(target)
        out = target.forward(ids, self._state, record=True, taps=self._reads)
        target.logits(out.hidden)
        spent += clock(target) - now
        self._state.keep(range(base, base + kept))
        self._state.commit()
        features = self._features(out.taps, kept)
        now = clock(target)
        self._output, _ = self._session.extend(features, ids[:kept])
        return spent + clock(target) - now

    def _features(self, taps: dict[int, Tensor], rows: int) -> Tensor:
        return torch.cat([taps[index][0, :rows] for index in self._reads], -1)


def draft_arm(head: Eagle3Head, length: int, passes: int) -> Timed:
    """One more draft level, on a cache of ``length`` slots."""
    device, dtype = head.norm.weight.device, head.norm.weight.dtype
    features = torch.zeros(length, 3 * head.config.target_hidden, device=device, dtype=dtype)
    session = Eagle3Session(head)
    ids = torch.zeros(length, dtype=torch.long, device=device)
    output, _ = session.extend(features, ids)

    def run() -> float:
        spent = 0.0
        for _ in range(passes):
            session.drop()
            now = clock(head)
            _, logits = session.grow([-1], output, ids[:1])
            logits.argmax(-1)
            spent += clock(head) - now
        return spent / passes

    return run


def floor_arm(head: Eagle3Head, passes: int) -> Timed:
    """Every matrix of a draft level times one row; fc only meets the target's own features."""
    matrices = [module.weight for module in head.modules() if isinstance(module, nn.Linear)]
    matrices = [matrix for matrix in matrices if matrix is not head.fc.weight]
    rows = [matrix.new_ones(1, 1, matrix.shape[1]) for matrix in matrices]

    @torch.no_grad()
    def run() -> float:
        now = clock(head)
        for _ in range(passes):
            for row, matrix in zip(rows, matrices, strict=True):
                F.linear(row, matrix)
        return (clock(head) - now) / passes

    return run


def block_arm(target: Target, prompt: list[int], count: int) -> Timed:
    """One verification pass of ``count`` tokens behind the prompt."""
    state = target.new_state()
    target.prefill(prompt, state)

    def run() -> float:
        now = clock(target)
        target.logits(target.forward([0] * count, state, record=True).hidden)
        spent = clock(target) - now
        state.rollback(len(prompt))
        return spent

    return run


def clock(owner: Target | Eagle3Head) -> float:
    """The time once everything asked of the owner's device is done."""
    device = owner.device if isinstance(owner, Target) else owner.norm.weight.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
