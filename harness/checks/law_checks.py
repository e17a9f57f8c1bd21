"""Checks of sampling: which law the tokens follow, and which random numbers decide."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from harness.checks import gates, worlds
from harness.checks.gates import GREEDY, ROUNDING
from harness.checks.outcome import Measured, NotApplicable
from harness.checks.reported import Reported, largest_score, pipeline_laws, round_laws
from harness.checks.sizes import Sizes
from harness.checks.subject import Subject
from methods.core import SamplingParams
from methods.decoding.rounds import RoundMethod
from methods.drafters.vocabulary import DraftVocabulary
from methods.interface import DecodingMethod
from methods.pipeline.method import PipelineMethod
from methods.testing.enumeration import EnumerationError
from methods.testing.laws import SMALLEST_P, block_counts, fit, joint_law, visible
from methods.testing.progress import each, portion
from methods.testing.scripted_rounds import drawn_branches
from methods.testing.scripting import script_pipeline, script_rounds
from methods.testing.table_target import LawTable, TableTarget

PLAIN = SamplingParams(temperature=1.0)
WARPED = SamplingParams(temperature=0.8, top_k=4, top_p=0.85)
SHARP = SamplingParams(temperature=0.4)
"""Random drafters are nearly flat; a law that is nearly flat hides a wrong one."""
EACH = {
    "T = 1": PLAIN,
    "T = 0.6": SamplingParams(0.6),
    "top-k": SamplingParams(1.0, top_k=2),
    "top-p": SamplingParams(1.0, top_p=0.7),
    "all": SamplingParams(0.8, top_k=2, top_p=0.9),
}
"""Every sampling parameter alone, none and all of them."""
LENGTHS = (3, 15, 51, 303, 600)
"""Tokens of the prompt at each of them: multiples of a table's period. What has most ways to fall is
decoded behind the shortest."""
SAMPLED_LENGTHS = (3, 600, 51, 303)
BLOCKS = 60
"""Draws of a decode call: 180 tokens, so that a third of them is late in the output."""
UNSEEN = 0.05
"""A law of which enumeration has seen less is sampled as well."""
SEEDS = 8
"""Enough that no place of nine has one token by chance: 5 tokens, 1e-4."""
SIGMAS = 4.0
"""Allowed for the largest of a handful of standard scores."""


def law(subject: Subject, sizes: Sizes) -> Measured:
    """C9: enumerated where all randomness is from ``Draws``, and sampled in any case: there for the random
    numbers themselves and for what is late in an output."""
    bound = f"<= {ROUNDING:.0e} exact; p > {SMALLEST_P:g}, 3 sigma sampled"
    try:
        worst, unseen = 0.0, 0.0
        for number, (name, sampling) in enumerate(EACH.items()):
            with portion(number / (2 * len(EACH)), (number + 1) / (2 * len(EACH))):
                found = exact_law(subject, sizes, number, sampling)
            worst, unseen = max(worst, found.excess), max(unseen, found.unseen)
            if not found.excess <= ROUNDING:
                wrong = f"{name}: the joint law of three tokens is off by {found.excess:.3g}"
                return Measured(f"exact law: total variation {worst:.1e}", bound, wrong)
        how = f"law of 3 tokens at {', '.join(EACH)}: total variation {worst:.1e}"
        how += f", seen from {max(ROUNDING, unseen):.1g} on; "
    except EnumerationError as error:
        unseen, how = 1.0, f"not enumerated ({error}); "
    samplings = EACH if unseen > UNSEEN else {"T = 1": PLAIN, "all": WARPED}
    with portion(0.5, 1.0):
        figures, fault = _sampled(subject, sizes.draws, samplings)
    return Measured(how + figures, bound, fault)


def exact_law(subject: Subject, sizes: Sizes, number: int, sampling: SamplingParams) -> gates.Followed:
    """Of three tokens behind a prompt of ``LENGTHS[number]``; in rounds drafts may be two deep."""
    chain = subject.width == 1
    stages = subject.stages(sizes.stages)
    n = stages[number % len(stages)]
    target = worlds.small_table(n, 1.0, vocab=3 if chain else 4)
    method = subject.build(target, n)
    cap = 4 if chain and not isinstance(method, PipelineMethod) else 3
    prompt = worlds.prompt(LENGTHS[number], target.vocab_size, seed=number)
    return gates.followed_law(method, target, sampling, cap, prompt, sizes.paths)


def _sampled(subject: Subject, draws: int, samplings: Mapping[str, SamplingParams]) -> tuple[str, str | None]:
    """The figure, and the first fault."""
    table, figures, sees = worlds.small_table(subject.given_n), [], 0.0
    method = subject.build(table, 3)
    prompts = [worlds.prompt(length, table.vocab_size, seed=length) for length in SAMPLED_LENGTHS]
    for name, sampling in each(list(samplings.items())):
        found = gates.law(method, table, sampling, draws, BLOCKS, prompts)
        sees = max(sees, visible(joint_law(table.table, sampling), found.draws))
        figures.append(f"{name} {found.total_variation:.2f} (<= {found.bound:.2f}), p = {found.p_value:.2g}")
        if not found.passed:
            return "; ".join(figures), f"{name}: {found}"
    figure = f"{draws} draws each in outputs of {BLOCKS * table.table.period} tokens: {'; '.join(figures)}"
    return f"{figure}, a law that is {sees:.2f} off is seen", None


def reported(subject: Subject, sizes: Sizes) -> Measured:
    """C10, with float32 and bfloat16 draft logits."""
    scores = []
    nodes = 0
    tokens = max(120, min(sizes.draws, 1600) // 4)
    if not _reported_laws(subject, worlds.family("llama", worlds.FEW), PLAIN, 9):
        raise NotApplicable("drafts are point masses: no law is reported or needed")
    for dtype in (torch.float32, torch.bfloat16):
        target = worlds.family("llama", worlds.FEW, dtype)
        for sampling in (SHARP, WARPED):
            pairs = _reported_laws(subject, target, sampling, tokens)
            nodes += len(pairs)
            scores.append(largest_score(pairs))
            off = max(abs(float(probs.sum()) - 1) for _, probs in pairs)
            if off > 1e-5:
                return Measured(f"a reported law sums to 1 + {off:.1e}", "1e-5", "a law does not sum to 1")
    fault = None if max(scores) < SIGMAS else "tokens are not drawn from the reported law"
    return Measured(f"{nodes} drafted tokens, largest score {max(scores):.2f}", f"< {SIGMAS:g} sigma", fault)


def _reported_laws(subject: Subject, target: object, sampling: SamplingParams, tokens: int) -> Reported:
    method = subject.build(target, 3)  # type: ignore[arg-type]
    if isinstance(method, PipelineMethod):
        return pipeline_laws(method.lockstep(sampling), [0, 1, 2], tokens)
    if isinstance(method, RoundMethod):
        return round_laws(method, [0, 1, 2], tokens, sampling)
    raise NotApplicable("the method does not show the laws of its drafts")


def temperatures(subject: Subject, sizes: Sizes) -> Measured:
    """C11."""
    target, almost, seeds = worlds.small_table(subject.given_n), 0, 3
    method = subject.build(target, 3)
    greedy = method.decode([0, 1], GREEDY, sizes.tokens).tokens
    for seed in range(seeds):
        cold = method.decode([0, 1], SamplingParams(temperature=1e-6, seed=seed), sizes.tokens).tokens
        almost += cold == greedy
    flat = subject.build(worlds.small_table(subject.given_n, sharpness=0.0), 3)
    varied = gates.varies(flat, [0, 1], 9, SEEDS)
    fault = varied.fault if almost == seeds else "T = 1e-6 does not give the tokens of T = 0"
    figure = f"T = 1e-6 equals T = 0 for {almost} of {seeds} seeds; {SEEDS} seeds at T = 1, 9 places"
    return Measured(figure, "all; no place the same for every seed", fault)


def seeds(subject: Subject, sizes: Sizes) -> Measured:
    """C12."""
    flat = worlds.small_table(subject.given_n, sharpness=0.0)
    found = gates.repeats(subject.build(flat, 3), [0, 1], 9, SEEDS)
    return Measured(f"{SEEDS} seeds decoded twice, 9 tokens each", "the same ids", found.fault)


TIED = (
    SamplingParams(1.0, top_k=2),
    SamplingParams(1.0, top_p=0.6),
    SamplingParams(0.7, 3, 0.7),
    PLAIN,
)


def warping(subject: Subject, sizes: Sizes) -> Measured:
    """C13: with a drafter whose logits are the target's nothing may be rejected; and in any case no
    token may come out that plain decoding's mask forbids."""
    rejected = forbidden = outputs = tested = 0
    for dtype in (torch.float32, torch.bfloat16):
        target = TableTarget(LawTable.tied(5), max(3, subject.given_n or 0), logits_dtype=dtype)
        for sampling in TIED:
            tokens = subject.build(target, 3).decode([0, 1, 2], sampling, 24).tokens
            counts = block_counts([tokens], target.table)
            forbidden += fit(counts, joint_law(target.table, sampling, dtype)).p_value == 0
            outputs += 1
            if subject.width == 1 and (truthful := _truthful(subject, target)) is not None:
                steps = truthful.decode([0, 1, 2], sampling, 24).steps
                rejected += sum(step.depth > step.accepted for step in steps)
                tested += sum(step.accepted for step in steps)
    drafts = f", {rejected} of {tested} drafts from the target's own logits rejected" if tested else ""
    fault = None
    if forbidden:
        fault = "a token was drawn that top-k or top-p forbids"
    elif rejected:
        fault = "equal logits are not warped equally: a draft from the target's own law was rejected"
    return Measured(f"{forbidden} of {outputs} outputs leave the mask{drafts}", "0 and 0", fault)


def _truthful(subject: Subject, target: TableTarget) -> DecodingMethod | None:
    """The method with a sampling drafter whose logits are the target's own."""
    table, vocabulary = target.table, DraftVocabulary(target.vocab_size)
    logits = table.logits.to(target.logits_dtype)

    def law_of(prefix: object) -> torch.Tensor:
        return logits[table.context([0, 1, 2, *prefix])]  # type: ignore[misc]

    changes = {"proposal": "sampled"} if subject.has("proposal") else {}
    method = subject.build(target, 3, **changes)
    if isinstance(method, PipelineMethod):
        script_pipeline(method, law_of, vocabulary)
    elif isinstance(method, RoundMethod):
        script_rounds(method, drawn_branches(law_of, vocabulary, m=3))
    else:
        return None
    return method
