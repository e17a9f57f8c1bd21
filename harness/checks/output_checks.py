"""Checks through the decode interface alone: what any method's output and trace must be."""

from __future__ import annotations

import itertools

import torch

from harness.checks import gates, worlds
from harness.checks.divergence import compare, counted
from harness.checks.gates import GREEDY, WARM
from harness.checks.outcome import Measured, NotApplicable
from harness.checks.sizes import Sizes
from harness.checks.subject import Subject
from harness.checks.worlds import Cell
from methods.decoding.trace import chain_fault, trace_fault
from methods.interface import DecodingMethod
from methods.models.target import Target
from methods.pipeline.method import PipelineMethod
from methods.testing.progress import each
from methods.testing.uncached import Uncached


def reference(subject: Subject, target: Target) -> DecodingMethod:
    """Plain decoding; for plain decoding itself, decoding without a state."""
    if subject.method == "autoregressive":
        return Uncached(target)
    return worlds.reference(target)


def identity(subject: Subject, sizes: Sizes) -> Measured:
    """C1, and with it C30: short and long prompts and outputs on every target."""
    outputs = tokens = drafted = accepted = 0
    fault = None
    targets = [worlds.table(), *worlds.targets(sizes.families)]
    cells = list(itertools.product(targets, range(sizes.prompts), subject.stages(sizes.stages)))
    for number, (target, _, n) in enumerate(each(cells)):
        cell = worlds.cell(number, target.vocab_size, sizes.tokens)
        method = subject.build(target, n)
        found = gates.identity(method, reference(subject, target), [cell.prompt], cell.tokens)
        outputs, tokens = outputs + 1, tokens + found.tokens
        drafted, accepted = drafted + found.drafted, accepted + found.accepted
        if found.fault is not None:
            fault = _located(found.fault, subject, method, target, cell, n)
        if fault is not None:
            break
    drafts = f", {accepted} of {drafted} drafts accepted" if drafted else ""
    figure = f"{outputs} outputs, {tokens} tokens{drafts}, {int(fault is not None)} differ"
    return Measured(figure, "0 differ", fault)


def _located(
    fault: str, subject: Subject, method: DecodingMethod, target: Target, cell: Cell, n: int | None
) -> str | None:
    """``fault`` with the target, and the logits where there is a model to ask; None for a tie."""
    where = f"{target.name}, vocabulary {target.vocab_size}" + (f", n = {n}" if n else "")
    where += f", a prompt of {len(cell.prompt)}"
    if hasattr(target, "hf"):
        expected = reference(subject, target).decode(cell.prompt, GREEDY, cell.tokens).tokens
        result = method.decode(cell.prompt, GREEDY, cell.tokens)
        found = compare(target, cell.prompt, expected, result)
        if found.status == "tie" and trace_fault(result) is None:
            return None
        fault = str(found.divergence) if found.status == "mismatch" and found.divergence else fault
    return f"{where}: {fault}"


def half_precision(subject: Subject, sizes: Sizes) -> Measured:
    """C2 on bfloat16 targets."""
    if subject.method == "autoregressive":
        raise NotApplicable("plain decoding is the reference itself")
    statuses, shares = [], [0.0]
    fault = None
    cells = list(itertools.product(worlds.targets(sizes.families, torch.bfloat16), range(sizes.prompts)))
    for number, (target, _) in enumerate(each(cells)):
        prompt = worlds.cell(number, target.vocab_size, sizes.tokens).prompt
        method = subject.build(target, sizes.stages[0])
        expected = worlds.reference(target).decode(prompt, GREEDY, sizes.tokens).tokens
        found = compare(target, prompt, expected, method.decode(prompt, GREEDY, sizes.tokens))
        statuses.append(found.status)
        if found.status == "mismatch" and fault is None:
            fault = f"{target.name}: {found.divergence or 'ends at another place than AR'}"
        elif found.divergence is not None:
            shares.append(found.divergence.doubt.share)
    figure = f"bfloat16: {counted(statuses)}, largest gap of a tie {max(shares):.2f} of the allowed"
    return Measured(figure, "0 mismatches", fault)


def traces(subject: Subject, sizes: Sizes) -> Measured:
    """C6."""
    target = worlds.table()
    results = 0
    cells = list(itertools.product(subject.stages(sizes.stages), (GREEDY, WARM), range(2 * sizes.prompts)))
    for number, (n, sampling, _) in enumerate(each(cells)):
        cell = worlds.cell(number, target.vocab_size, sizes.tokens)
        method = subject.build(target, n)
        result = method.decode(cell.prompt, sampling, cell.tokens)
        if isinstance(method, PipelineMethod) and subject.width == 1:
            fault = chain_fault(result, len(method.stage_layers))
        else:
            fault = trace_fault(result)
        results += 1
        if fault is not None:
            return Measured(f"{results} traces", "0 faults", fault)
    return Measured(f"{results} traces, 0 faults", "0 faults")


def stops(subject: Subject, sizes: Sizes) -> Measured:
    """C7, at T = 0 on a table and on a model; and where the output of the seed is cut at T = 1."""
    cases = 0
    for target, prompt, tokens in (
        (worlds.small_table(subject.given_n, sharpness=2.0), [1, 0], 12),
        (worlds.family("hybrid"), worlds.prompt(3, 64, seed=1), 8),
    ):
        method = subject.build(target, 3)
        found = gates.stops(method, reference(subject, target), prompt, tokens)
        cases += found.cases
        if found.fault is not None:
            return Measured(f"{cases} stop lists", "0 faults", f"{target.name}: {found.fault}")
        whole = method.decode(prompt, WARM, tokens).tokens
        for stop in whole:
            cases += 1
            result = method.decode(prompt, WARM, tokens, (stop,))
            if result.tokens != whole[: whole.index(stop) + 1] or result.finish_reason != "stop":
                fault = f"{target.name}, T = 1, stop id {stop}: {result.tokens}, not {whole} up to it"
                return Measured(f"{cases} stop lists", "0 faults", fault)
    return Measured(f"{cases} stop lists, 0 faults", "0 faults")


def caps(subject: Subject, sizes: Sizes) -> Measured:
    """C8, at T = 0; and at T = 1, where the cap is reached exactly."""
    target = worlds.small_table(subject.given_n)
    method = subject.build(target, 3)
    depth = getattr(method.options, "m", None) or getattr(method.options, "n", None) or 3
    limits = sorted({0, 1, 2, depth, depth + 1, 63, 64})
    found = gates.caps(method, reference(subject, target), [0, 1, 2], limits)
    if found.fault is None:
        for limit in limits:
            result = method.decode([0, 1, 2], WARM, limit)
            fault = trace_fault(result)
            if len(result.tokens) != limit:
                fault = f"T = 1, cap {limit}: {len(result.tokens)} tokens"
            if fault is not None:
                return Measured(f"caps {limits}", "0 faults", fault)
    return Measured(f"caps {', '.join(map(str, limits))} at T = 0 and 1", "0 faults", found.fault)


def replay(subject: Subject, sizes: Sizes) -> Measured:
    """C28."""
    from harness.checks.replays import replay_fault

    targets = [worlds.table(), *(worlds.family(name, worlds.FEW) for name in sizes.families)]
    cells = list(itertools.product(targets, range(sizes.prompts)))
    for number, (target, _) in enumerate(each(cells)):
        method = subject.build(target, 3)
        if not method.can_replay(GREEDY):
            raise NotApplicable("this method or width cannot be replayed")
        prompt = worlds.cell(number, target.vocab_size, sizes.tokens).prompt
        _, fault = replay_fault(method, worlds.reference(target), prompt, GREEDY, sizes.tokens)
        if fault is not None:
            return Measured(f"{number + 1} traces", "0 differ", f"{target.name}: {fault}")
    return Measured(f"{len(cells)} traces, 0 differ", "0 differ")
