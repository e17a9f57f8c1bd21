"""Checks that need a look inside: states, forced acceptances, trees, clocks."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from harness.checks import worlds
from harness.checks.gates import GREEDY, WARM
from harness.checks.outcome import Measured, NotApplicable
from harness.checks.round_states import watch_rounds
from harness.checks.sizes import Sizes
from harness.checks.states import Looks, StateReport, at_every_length, watch_states
from harness.checks.subject import Subject
from harness.checks.trees import tree_difference
from harness.checks.worlds import Cell
from methods.core import DecodeResult, SamplingParams
from methods.decoding.rounds import RoundMethod
from methods.models.target import PREFILL_CHUNK, Target
from methods.pipeline.method import PipelineMethod
from methods.testing.progress import each
from methods.testing.scripted import Right, always, never
from methods.testing.scripted_rounds import rounds_by_hand
from methods.testing.scripting import script_output

DEPTH = 4
"""k of the rollback grid, and the depth of scripted rounds."""
WRONG = frozenset(run * (run + 3) // 2 + 1 for run in range(DEPTH + 1))
"""Output tokens 1, 3, 6, 10 ...: 0, 1, ..., k acceptances between rejections."""
MIXED = frozenset({3, 4, 9, 17})
EARLY, LATE = 9, 128
"""Output lengths up to which, and from which on, a long output is compared: every comparison is a prefill."""
AFTER_LONG_PROMPTS = 6
"""Tokens decoded there, for the same reason."""

Scripted = RoundMethod | PipelineMethod


def watch(
    method: Scripted, target: Target, cell: Cell, sampling: SamplingParams, looks: Looks = at_every_length
) -> StateReport:
    if isinstance(method, PipelineMethod):
        return watch_states(method.lockstep(sampling), target, cell.prompt, cell.tokens, looks=looks)
    return watch_rounds(method, cell.prompt, cell.tokens, sampling, looks)


def states(subject: Subject, sizes: Sizes) -> Measured:
    """C3, with the method's own drafter, at T = 0 and T = 1; and with it C30: every second prompt is
    long, and one output is, of which the beginning and the end are compared."""
    reports = []
    targets = [worlds.table(), *(worlds.family(name, worlds.FEW) for name in sizes.families)]
    cells = list(itertools.product(targets, (GREEDY, WARM)))
    for number, (target, sampling) in enumerate(each(cells)):
        method = subject.scriptable(target, 3)
        cell = worlds.cell(number + number // 2 % 2, target.vocab_size, min(sizes.tokens, 24))
        if len(cell.prompt) > PREFILL_CHUNK:
            cell = replace(cell, tokens=AFTER_LONG_PROMPTS)
        report = watch(method, target, cell, sampling, lambda tokens: not EARLY < tokens <= LATE)
        reports.append((target, report))
    return _judged(reports)


def rollback_grid(subject: Subject, sizes: Sizes) -> Measured:
    """C4, and with it C30: every second prompt is long, and in two cells the rejections are late."""
    reports, counts = [], set()
    targets = [worlds.table(), *(worlds.family(name) for name in sizes.families)]
    cells = list(itertools.product(targets, subject.stages(sizes.stages)))
    for number, (target, n) in enumerate(each(cells)):
        first = LATE if number in (0, 2) else 0
        tokens = first + max(WRONG) + DEPTH + 3
        cell = replace(worlds.cell(number, target.vocab_size, tokens), tokens=tokens)
        output = worlds.reference(target).decode(cell.prompt, GREEDY, tokens).tokens
        method = subject.scriptable(target, n)
        script_output(method, output, _right_but_for(first), DEPTH)
        counts |= _runs(method.decode(cell.prompt, GREEDY, tokens))
        reports.append((target, watch(method, target, cell, GREEDY, first.__lt__)))
    found = _judged(reports)
    missing = set(range(DEPTH + 1)) - counts
    fault = found.fault or (f"the script could not force {sorted(missing)} accepted" if missing else None)
    return Measured(f"0 to {DEPTH} accepted before a rejection; {found.figure}", found.bound, fault)


def _right_but_for(first: int) -> Right:
    """Wrong at ``WRONG``, counted from output token ``first`` on."""
    return lambda index: index - first not in WRONG


def _runs(result: DecodeResult) -> set[int]:
    """Numbers of acceptances in a row before a rejection."""
    found, run = set(), 0
    for step in result.steps:
        run += step.accepted
        if step.depth > step.accepted or step.accepted > 1:
            found.add(run)
            run = 0
    return found | {run}


def _judged(reports: list[tuple[Target, StateReport]]) -> Measured:
    checked = sum(report.verifications for _, report in reports)
    logits = max(report.logits for _, report in reports)
    memory = max(report.memory for _, report in reports)
    fault = None
    for target, report in reports:
        if not max(report.logits, report.memory) <= worlds.close(target):
            fault = f"{target.name}: logits differ by {report.logits:.1e}, states by {report.memory:.1e}"
            break
    figure = f"{checked} verifications: logits {logits:.1e}, states {memory:.1e} from a fresh prefill"
    return Measured(figure, f"<= {worlds.CLOSE:.0e} (hybrid {worlds.HYBRID_CLOSE:.0e})", fault)


def drafters(subject: Subject, sizes: Sizes) -> Measured:
    """C5."""
    decoded = max(sizes.tokens, 24)
    figures: list[str] = []
    fault = None
    for target in (worlds.table(), worlds.family("hybrid")):
        prompt = worlds.prompt(4, target.vocab_size, seed=21)
        output = worlds.reference(target).decode(prompt, GREEDY, decoded + 1).tokens
        for name, right in (("always right", always), ("never", never), ("mixed", lambda i: i not in MIXED)):
            for n in subject.stages(sizes.stages[:2]):
                method = subject.scriptable(target, n)
                script_output(method, output, right, DEPTH)
                shown = name if n is None else f"{name} at n = {n}"
                result = method.decode(prompt, GREEDY, decoded + 1)
                expected = _steps_by_hand(method, right, decoded + 1)
                if result.tokens != output:
                    fault = f"{target.name}, {name}: the output is not AR's"
                elif len(result.steps) != expected:
                    fault = f"{target.name}, {name}: {len(result.steps)} steps, by hand {expected}"
                if fault is not None:
                    return Measured("", "by hand", fault)
                if target.name == "table":
                    figures.append(f"{shown} {len(result.steps)}")
    return Measured(f"steps for {decoded} tokens: {', '.join(figures)}", "exactly as computed by hand", fault)


def _steps_by_hand(method: Scripted, right: Right, cap: int) -> int:
    """Rounds; or cycles of a pipeline: N + (n - 1) fills."""
    if isinstance(method, RoundMethod):
        return len(rounds_by_hand(right, DEPTH, cap))
    wrong = sum(not right(index) for index in range(1, cap - 1))  # one in the last place starts no fill
    return cap - 1 + (len(method.stage_layers) - 1) * (1 + wrong)


def tree_of_width_one(subject: Subject, sizes: Sizes) -> Measured:
    """C14: a chain, and the same kept and verified as a tree."""
    from unittest.mock import patch

    from methods.testing.scripted import ScriptedPipeline

    if subject.width != 1:
        raise NotApplicable("the width is not 1")
    compared = 0
    for name in ("llama", "hybrid"):
        target = worlds.family(name, worlds.FEW)
        prompt = worlds.prompt(4, target.vocab_size, seed=2)
        for sampling in (GREEDY, SamplingParams(temperature=1.0, seed=2)):
            method = subject.scriptable(target, 3)
            chain = method.decode(prompt, sampling, sizes.tokens)
            if isinstance(method, PipelineMethod):
                made = method.drafter
                tree = ScriptedPipeline(
                    target, method.stage_layers, lambda *_, made=made: made(), method.rule, tree=True
                ).decode(prompt, sampling, sizes.tokens)
            else:
                with patch("methods.decoding.verification.Draft.is_chain", False):
                    tree = method.decode(prompt, sampling, sizes.tokens)
            compared += len(chain.tokens)
            if facts(chain) != facts(tree):
                return Measured(
                    f"{compared} tokens", "same ids and trace", f"{target.name}: tree and chain differ"
                )
    return Measured(f"{compared} tokens, same ids and trace", "same ids and trace")


def facts(result: DecodeResult) -> tuple[object, ...]:
    """Everything but the times."""
    steps = [
        (s.drafted, s.accepted, s.emitted, s.target_layers, s.draft_layers, s.depth, s.nodes)
        for s in result.steps
    ]
    return result.tokens, steps, result.finish_reason


def trees(subject: Subject, sizes: Sizes) -> Measured:
    """C15: random trees through the target, whole and in parts; then the method's own, by its states."""
    if subject.width == 1:
        raise NotApplicable("a chain; run it with a larger width")
    worst, nodes, fault = 0.0, 0, None
    rng = random.Random(4)
    for name in sizes.families:
        target = worlds.family(name)
        for _ in range(sizes.prompts):
            tree = [(rng.randrange(-1, node), rng.randrange(64)) for node in range(12)]
            for splits in ([12], [1, 4, 7]):
                difference = tree_difference(target, worlds.prompt(9, 64, seed=3), tree, splits)
                worst, nodes = max(worst, difference), nodes + len(tree)
                if not difference <= worlds.close(target):
                    fault = f"{target.name}: a node's logits differ by {difference:.1e} from its path's"
        method = subject.scriptable(target, 3)
        report = watch(method, target, Cell(worlds.prompt(5, target.vocab_size, seed=8), 10), GREEDY)
        worst = max(worst, report.logits)
        if not max(report.logits, report.memory) <= worlds.close(target):
            fault = f"{target.name}: after the method's own tree logits differ by {report.logits:.1e}"
    figure = f"{nodes} tree nodes: logits {worst:.1e} from their root path's"
    return Measured(figure, f"<= {worlds.CLOSE:.0e} (hybrid {worlds.HYBRID_CLOSE:.0e})", fault)


def better_drafters(subject: Subject, sizes: Sizes) -> Measured:
    """C27: steps fall as the drafter is right more often; and width changes the trace."""
    from methods.testing.scripted import sometimes

    target, prompt, decoded = worlds.small_table(subject.given_n), [0, 1, 2], 80
    output = worlds.reference(target).decode(prompt, GREEDY, decoded + 1).tokens
    steps = []
    for right in (sometimes(0.2), sometimes(0.6), sometimes(0.9)):
        method = subject.scriptable(target, 3)
        script_output(method, output, right, DEPTH)
        steps.append(len(method.decode(prompt, GREEDY, decoded + 1).steps))
    fault = None if steps[0] > steps[1] > steps[2] else "a drafter that is right more often is no faster"
    figure = f"steps for {decoded} tokens with 20, 60 and 90 % right drafts: {', '.join(map(str, steps))}"
    if subject.has("width"):
        changes = {} if not subject.has("proposal") else {"proposal": "point-mass"}
        one, four = (
            facts(subject.build(target, 3, width=width, **changes).decode(prompt, GREEDY, decoded + 1))
            for width in (1, 4)
        )
        if one[0] != four[0] or one[1] == four[1]:
            fault = "W = 4 does not change the trace, or changes the output"
        figure += "; W = 4 changes the trace and not the output"
    return Measured(figure, "falling", fault)


def runtimes(subject: Subject, sizes: Sizes) -> Measured:
    """C16."""
    from methods.pipeline.distributed.ranks import Ranks
    from methods.pipeline.layout import Layout

    n = subject.given_n or sizes.stages[0]
    target = worlds.family("hybrid")
    lockstep = subject.scriptable(target, n)
    if not isinstance(lockstep, PipelineMethod):
        raise NotApplicable("no pipeline: one runtime only")
    layout = str(subject.options.get("layout", "n+1"))
    # They end with this process; the next subject finds them running.
    ranks = Ranks.of(Layout.named(layout, n))
    distributed = subject.build(target, n, runtime="distributed", layout=layout)
    compared = 0
    for sampling in (GREEDY, SamplingParams(temperature=1.0, seed=11)):
        for number in range(2 * sizes.prompts):
            prompt = worlds.cell(number, target.vocab_size, 12).prompt
            expected = lockstep.decode(prompt, sampling, 12)
            found = distributed.decode(prompt, sampling, 12)
            compared += len(expected.steps)
            if facts(found) != facts(expected):
                fault = f"a prompt of {len(prompt)}, T = {sampling.temperature:g}: ids or trace differ"
                return Measured(f"{compared} cycles", "same ids and trace", fault)
    return Measured(f"{ranks.world} processes, {compared} cycles, 0 differ", "same ids and trace")
