"""Every gate must catch the fault it exists for; and without a fault it passes."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from check_worlds import GREEDY, autoregressive, family, in_turns, pipeline, scripted, table_target
from conftest import random_ids
from seeded_faults import (
    accept_unverified_after_a_fill,
    be_greedy,
    count_cycles_twice,
    draft_without_top_p,
    forget_completed_rows_at_a_flush,
    forget_the_fill,
    gather_nothing,
    go_on_after_a_stop_id,
    keep_rejected_rows,
    never_roll_back,
    newest_state,
    one_token_too_many,
    reject_without_residual,
    report_another_law,
    roll_back_one_less,
    roll_rows_back_one_less,
    see_every_node,
    uniform_without_seed,
)
from test_pipeline_drafts import watch
from test_pipeline_laws import (
    CLOSE,
    PLAIN,
    WARPED,
    law_pipeline,
    reported_laws,
    small_target,
    truthful_pipeline,
)

from harness.checks import gates
from harness.checks.reported import largest_score
from harness.checks.states import watch_states
from methods.core import Transcript
from methods.decoding import verification
from methods.decoding.sampling import Draws
from methods.decoding.trace import chain_fault
from methods.drafters.session import RowSession
from methods.models.state import AttentionCache, RecurrentCache, State
from methods.pipeline import decisions
from methods.pipeline.controller import PipelineController
from methods.pipeline.lockstep import Lockstep
from methods.ppsd.drafter import PpsdDrafter
from methods.spd.drafter import SpdDrafter
from methods.testing.table_target import LawTable, TableTarget

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
    return largest_score(reported_laws(law_pipeline(table_target(), "sampled", 1), PLAIN, 300)) < 4


def one_warping() -> bool:
    target = TableTarget(LawTable.tied(5), 3)
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
    return chain_fault(method.decode(PROMPT, GREEDY, TOKENS), 3) is None


def repeats() -> bool:
    method = pipeline(table_target(sharpness=0.0), "spd", 2)
    return gates.repeats(method, [0, 1], 9, seeds=6).passed


def drafts(label: str) -> bool:
    return watch(family("llama"), label, 3, 10).worst <= 1e-5


def table() -> bool:
    return identity(table_target())


def table_tree() -> bool:
    return identity(table_target(), width=4)


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
