"""Every gate must catch the fault it exists for; and without a fault it passes."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from check_worlds import GREEDY, autoregressive, family, in_turns, pipeline, scripted, table_target
from conftest import random_ids
from test_pipeline_drafts import watch
from test_pipeline_laws import (
    CLOSE,
    PLAIN,
    WARPED,
    law_pipeline,
    reported_law_scores,
    small_target,
    tied_table,
    truthful_pipeline,
)

from methods import verification
from methods.checking import gates
from methods.checking.states import watch_states
from methods.checking.table_target import TableTarget
from methods.drafting.session import RowSession
from methods.interface import SamplingParams
from methods.pipeline import decisions
from methods.pipeline.controller import PipelineController
from methods.pipeline.lockstep import Lockstep
from methods.ppsd.drafter import PpsdDrafter
from methods.sampling import Draws, pick, probabilities
from methods.spd.drafter import SpdDrafter
from methods.target.block import Block
from methods.target.state import AttentionCache, RecurrentCache, State
from methods.transcript import Transcript

PROMPT = random_ids(4, vocab=5, seed=2)
TOKENS = 14


def identity(target, width: int = 1) -> bool:
    method = scripted(target, 3, in_turns, TOKENS, width=width)
    return gates.identity(method, autoregressive(target), [PROMPT], TOKENS).passed


def states(name: str, width: int = 1) -> bool:
    target = family(name)
    method = scripted(target, 3, in_turns, TOKENS, width=width)
    report = watch_states(method.lockstep(PROMPT, GREEDY), target, PROMPT, TOKENS)
    return report.logits <= 5e-5 and report.memory <= 5e-5


def law() -> bool:
    target = small_target(2, vocab=3)
    return gates.law_distance(law_pipeline(target, "sampled", 1), target, PLAIN) < CLOSE


def sampled_law() -> bool:
    target = small_target(2, vocab=3)
    return gates.law(law_pipeline(target, "sampled", 1), target, PLAIN, 2000).passed


def reported_law() -> bool:
    return float(reported_law_scores(law_pipeline(table_target(), "sampled", 1), PLAIN, 300).abs().max()) < 4


def one_warping() -> bool:
    target = TableTarget(tied_table(), 3)
    result = truthful_pipeline(target, target.table.logits).decode([0, 1, 2], WARPED, 100)
    return all(step.accepted for step in result.steps if step.emitted)


def stops() -> bool:
    target = table_target(sharpness=2.0)
    method = scripted(target, 3, in_turns, 12)
    return gates.stops(method, autoregressive(target), PROMPT, 12).passed


def caps() -> bool:
    target = table_target()
    method = scripted(target, 3, in_turns, 9)
    return gates.caps(method, autoregressive(target), PROMPT, [0, 1, 2, 9]).passed


def trace() -> bool:
    method = scripted(table_target(), 3, in_turns, TOKENS)
    return gates.chain_fault(method.decode(PROMPT, GREEDY, TOKENS), 3) is None


def repeats() -> bool:
    method = pipeline(table_target(sharpness=0.0), "spd", 2)
    return gates.repeats(method, [0, 1], 9, seeds=6).passed


def drafts(label: str) -> bool:
    return watch(family("llama"), label, 3, 10).worst <= 1e-5


def table() -> bool:
    return identity(table_target())


def table_tree() -> bool:
    return identity(table_target(), width=4)


# Faults. Each takes the place of a function of the product.


def accept_unverified_after_a_fill(run: Lockstep, pipeline: PipelineController) -> None:
    """The first draft behind a token that was not drafted itself passes without a look."""
    root = pipeline.root
    if pipeline._filling and pipeline.candidates:
        child = pipeline.candidates[0]
        run._settle(pipeline, pipeline.commit(child.token, child), root)
    else:
        ORIGINAL[Lockstep, "_verify"](run, pipeline)


def roll_back_one_less(state: State, mark: int) -> None:
    ORIGINAL[State, "rollback"](state, min(mark + 1, state.length))


def never_roll_back(state: State, slots) -> None:
    pass


def newest_state(cache: RecurrentCache, slot: int):
    return cache.states[max(cache.states)] if slot >= 0 else None


def gather_nothing(cache: AttentionCache, base: int, slots) -> None:
    pass


def see_every_node(state: State, start: int, parents, record: bool) -> Block:
    block = ORIGINAL[State, "_tree_block"](state, start, parents, record)
    assert block.visible is not None
    block.visible[:] = torch.ones_like(block.visible).tril(start)
    return block


def report_another_law(cls, logits, vocabulary, sampling, draws):
    probs = probabilities(logits, sampling)
    return cls(probabilities(logits / 2, sampling), vocabulary, pick(probs, draws.draft()))


def reject_without_residual(p, law, draws):
    if draws.acceptance() * float(law.probs[law.index]) < float(p[law.token]):
        return True, law.token
    return False, pick(p, draws.acceptance())


def draft_without_top_p(cls, logits, vocabulary, sampling, draws):
    probs = probabilities(logits, SamplingParams(sampling.temperature, sampling.top_k))
    return cls(probs, vocabulary, pick(probs, draws.draft()))


def be_greedy(logits, sampling):
    return probabilities(logits, GREEDY)


def go_on_after_a_stop_id(transcript: Transcript, tokens) -> int:
    transcript.tokens.extend(tokens)
    if len(transcript.tokens) >= transcript.max_new_tokens:
        transcript.finish_reason = "length"
    return 1


def one_token_too_many(transcript: Transcript, max_new_tokens: int, stop_ids=()) -> None:
    ORIGINAL[Transcript, "__init__"](transcript, max_new_tokens + 1, stop_ids)


def count_cycles_twice(run: PipelineController, phases=None) -> None:
    ORIGINAL[PipelineController, "end_cycle"](run, phases)
    run.steps.append(run.steps[-1])


def forget_the_fill(run: PipelineController, phases=None) -> None:
    ORIGINAL[PipelineController, "end_cycle"](run, phases)
    if not run.steps[-1].emitted:
        run.steps.pop()


def uniform_without_seed(draws: Draws) -> float:
    return float(torch.rand(()))


def keep_rejected_rows(drafter: PpsdDrafter, verdict, root) -> None:
    pass


def roll_rows_back_one_less(session: RowSession, length: int) -> None:
    ORIGINAL[RowSession, "rollback"](session, min(length + 1, session.length))


def forget_completed_rows_at_a_flush(drafter: SpdDrafter, verdict, root) -> None:
    if verdict.accepted:
        ORIGINAL[SpdDrafter, "settle"](drafter, verdict, root)


PLACES = [
    (Lockstep, "_verify"),
    (State, "rollback"),
    (State, "_tree_block"),
    (Transcript, "__init__"),
    (PipelineController, "end_cycle"),
    (RowSession, "rollback"),
    (SpdDrafter, "settle"),
]
ORIGINAL = {(owner, name): getattr(owner, name) for owner, name in PLACES}

FAULTS: list[tuple[object, str, object, Callable[[], bool]]] = [
    (Lockstep, "_verify", accept_unverified_after_a_fill, table),
    (Lockstep, "_verify", accept_unverified_after_a_fill, law),
    (State, "rollback", roll_back_one_less, table),
    (State, "rollback", roll_back_one_less, functools.partial(states, "llama")),
    (State, "keep", never_roll_back, functools.partial(states, "hybrid")),
    (RecurrentCache, "after", newest_state, functools.partial(states, "hybrid", 4)),
    (AttentionCache, "gather", gather_nothing, functools.partial(states, "llama", 4)),
    (State, "_tree_block", see_every_node, table_tree),
    (State, "_tree_block", see_every_node, functools.partial(states, "qwen3", 4)),
    (verification.DraftLaw, "draw", classmethod(report_another_law), law),
    (verification.DraftLaw, "draw", classmethod(report_another_law), reported_law),
    (verification.DraftLaw, "draw", classmethod(draft_without_top_p), one_warping),
    (decisions, "accept_drawn", reject_without_residual, law),
    (decisions, "probabilities", be_greedy, law),
    (decisions, "probabilities", be_greedy, sampled_law),
    (decisions, "accept_drawn", reject_without_residual, sampled_law),
    (verification.DraftLaw, "draw", classmethod(report_another_law), sampled_law),
    (decisions, "probabilities", be_greedy, repeats),
    (Transcript, "extend", go_on_after_a_stop_id, stops),
    (Transcript, "__init__", one_token_too_many, caps),
    (PipelineController, "end_cycle", count_cycles_twice, trace),
    (PipelineController, "end_cycle", forget_the_fill, trace),
    (Draws, "acceptance", uniform_without_seed, repeats),
    (PpsdDrafter, "settle", keep_rejected_rows, functools.partial(drafts, "ppsd")),
    (RowSession, "rollback", roll_rows_back_one_less, functools.partial(drafts, "ppsd")),
    (SpdDrafter, "settle", forget_completed_rows_at_a_flush, functools.partial(drafts, "spd")),
]


def name(item: object) -> str | None:
    if isinstance(item, functools.partial):
        return " ".join([item.func.__name__, *map(str, item.args)])
    return getattr(item, "__name__", None) or getattr(getattr(item, "__func__", None), "__name__", None)


def caught(gate: Callable[[], bool]) -> bool:
    """The gate says no, or the run does not even end."""
    try:
        return not gate()
    except (ArithmeticError, LookupError, ValueError, RuntimeError, AssertionError):
        return True


@pytest.mark.parametrize(("owner", "attribute", "fault", "gate"), FAULTS, ids=name)
def test_a_fault_is_caught(monkeypatch, owner, attribute, fault, gate):
    monkeypatch.setattr(owner, attribute, fault)
    assert caught(gate)


@pytest.mark.parametrize("gate", list({name(row[3]): row[3] for row in FAULTS}.values()), ids=name)
def test_without_a_fault_the_gate_passes(gate):
    assert gate()


@pytest.mark.parametrize(
    ("owner", "attribute", "fault", "label"),
    [
        (RowSession, "rollback", roll_rows_back_one_less, "ppsd"),
        (SpdDrafter, "settle", forget_completed_rows_at_a_flush, "spd"),
    ],
    ids=name,
)
def test_a_faulty_drafter_cache_never_shows_in_the_output(monkeypatch, owner, attribute, fault, label):
    """Which is why it needs a gate of its own: output checks cannot find it."""
    monkeypatch.setattr(owner, attribute, fault)
    target = family("llama")
    assert gates.identity(pipeline(target, label, 3), autoregressive(target), [PROMPT], 8).passed
