"""Draft-then-verify rounds: their overhead, the draft head against its floor, and the speedup over AR.

A trained head is stood in for by a script that is right with probability 0.8 per depth, while a
random head of the same sizes really runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.presets import load_preset
from harness.speed.autoregressive import ar_arm, benchmark_prompt
from harness.speed.result import Ratio, Result, Settings
from harness.speed.timing import Timed, interleaved, seconds
from methods import registry
from methods.checking.scripted import sometimes
from methods.drafting.vocabulary import DraftVocabulary
from methods.eagle3 import checkpoint
from methods.eagle3.drafting import Eagle3Drafter, Shape
from methods.eagle3.head import Eagle3Head
from methods.eagle3.session import Eagle3Session
from methods.interface import NoOptions, SamplingParams
from methods.rounds import RoundMethod
from methods.sampling import Draws
from methods.target import Target, load_target
from methods.verification import Draft

DRAFT_VOCABULARY = 8192
ACCEPTANCE = 0.8
LENGTHS = {3: 1.8, 7: 1.9}
"""Draft length m -> the speedup over AR wished for."""


def measure(settings: Settings) -> Iterator[Result]:
    """Seconds per token and per round, for each dtype and draft length."""
    preset = load_preset(settings.preset)
    for dtype in settings.dtypes:
        target = load_target(preset.target, dtype)
        prompt = benchmark_prompt(target)
        head = random_head(target)
        output = registry.create("autoregressive", target).decode(
            prompt, SamplingParams(), 4 * settings.tokens
        )
        for m, speedup in LENGTHS.items():
            told = ToldEagle3(target, head, m, output.tokens)
            arms = {
                "AR token": ar_arm(target, prompt, settings.tokens),
                "token": told_arm(told, prompt, settings.tokens, per="token"),
                "round": told_arm(told, prompt, settings.tokens, per="round"),
                "passes alone": passes_arm(target, head, prompt, m),
                "draft pass": draft_arm(head, target, len(prompt), m),
                "draft floor": floor_arm(head),
            }
            yield Result(
                subject="rounds",
                case=f"{settings.preset} {dtype}, m = {m}",
                unit="arm",
                seconds=interleaved(arms, settings.repeats),
                ratios=(
                    Ratio("speedup over AR", "AR token", "token", speedup),
                    Ratio("passes alone / round", "passes alone", "round", 1 / 1.10),
                    Ratio("draft floor / draft pass", "draft floor", "draft pass", 0.5),
                ),
            )


def random_head(target: Target) -> Eagle3Head:
    vocabulary = DraftVocabulary(target.vocab_size, range(min(DRAFT_VOCABULARY, target.vocab_size)))
    head = checkpoint.untrained(
        target.shape,
        vocabulary,
        lambda ids: F.embedding(ids, target.embedding),
        target_head=target.head_weight,
        dtype=target.dtype,
    )
    return head.to(target.device)


class ToldDrafter(Eagle3Drafter):
    """Drafts with the head for its cost, then puts known tokens in, each right by chance."""

    def __init__(self, head: Eagle3Head, m: int, output: Sequence[int], draws: Draws) -> None:
        shape = Shape(m, width=1, rerank=False, drawn=False)
        super().__init__(head, shape, SamplingParams(), draws)
        self._known, self._vocab = output, head.vocabulary.target_vocab
        self._right = sometimes(ACCEPTANCE)
        self._done = -1  # the prompt comes with the first output token

    def observe(self, tokens: Sequence[int], taps: Tensor) -> None:
        self._done += 1 if self._done < 0 else len(tokens)
        super().observe(tokens, taps)

    def propose(self, budget: int) -> Draft:
        draft = super().propose(budget)
        start = self._done + 1
        known = self._known[start : start + len(draft.tokens)]
        tokens = [t if self._right(i) else (t + 1) % self._vocab for i, t in enumerate(known, start)]
        return Draft(tokens, draft.parents, layers=draft.layers)


class ToldEagle3(RoundMethod):
    """EAGLE-3's rounds with ``ToldDrafter``."""

    name = "told-eagle3"

    def __init__(self, target: Target, head: Eagle3Head, m: int, output: Sequence[int]) -> None:
        super().__init__(target, NoOptions())
        self.reads = head.config.taps
        self._make = lambda draws: ToldDrafter(head, m, output, draws)

    def session(self, sampling: SamplingParams, draws: Draws) -> ToldDrafter:
        return self._make(draws)


def told_arm(method: RoundMethod, prompt: Sequence[int], tokens: int, per: str) -> Timed:
    def run() -> float:
        result = method.decode(prompt, SamplingParams(), tokens)
        return result.decode_s / (len(result.tokens) - 1 if per == "token" else len(result.steps))

    return run


def passes_arm(target: Target, head: Eagle3Head, prompt: Sequence[int], m: int, repeats: int = 4) -> Timed:
    """Seconds of one round's forward passes: the target over m + 1 tokens, its head, and the drafts."""
    state = target.new_state()
    target.prefill(prompt, state)
    draft = draft_arm(head, target, len(prompt), m)
    ids = torch.tensor(list(prompt[: m + 1]), device=target.device)

    def verifications() -> None:
        for _ in range(repeats):
            out = target.forward(ids, state, record=True, taps=head.config.taps)
            target.logits(out.hidden).argmax(-1).tolist()
            state.rollback(len(prompt))

    return lambda: seconds(verifications) / repeats + m * draft()


def draft_arm(head: Eagle3Head, target: Target, prefix: int, m: int, repeats: int = 4) -> Timed:
    """Seconds of one draft pass, the mean of a chain of ``m`` behind ``prefix`` slots."""
    like: dict[str, Any] = {"dtype": target.dtype, "device": target.device}
    width = 3 * target.hidden_size
    session = Eagle3Session(head)
    session.extend(
        torch.zeros(prefix, width, **like), torch.zeros(prefix, dtype=torch.long, device=target.device)
    )
    features, ids = torch.zeros(3, width, **like), torch.zeros(3, dtype=torch.long, device=target.device)

    def chains() -> None:
        for _ in range(repeats):
            output, logits = session.extend(features, ids)
            for level in range(m - 1):
                output, logits = session.grow([level - 1], output, logits.argmax(-1))
            logits.argmax(-1).tolist()
            session.rollback(prefix)

    return lambda: seconds(chains) / (repeats * m)


def floor_arm(head: Eagle3Head, repeats: int = 20) -> Timed:
    """Each matrix a draft step beyond the first reads, times one row."""
    matrices = [p for name, p in head.named_parameters() if p.dim() == 2 and not name.startswith("fc")]
    rows = [matrix.new_ones(1, matrix.shape[1]) for matrix in matrices]

    @torch.inference_mode()
    def passes() -> None:
        for _ in range(repeats):
            for row, matrix in zip(rows, matrices, strict=True):
                F.linear(row, matrix)

    return lambda: seconds(passes) / repeats
