"""Every check of the catalogue catches the fault it exists for; without the fault it passes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import seeded_faults as faults

import methods.decoding.rounds
from harness.analysis import metrics
from harness.benchmarks import chat
from harness.checks.catalogue import CHECKS, chosen, run_check
from harness.checks.guard_checks import endings
from harness.checks.outcome import Outcome
from harness.checks.sizes import SIZES, Sizes
from harness.checks.subject import Subject
from harness.records import journal, manifest
from methods.core import Transcript
from methods.decoding import verification
from methods.decoding.prompt_lookup import Ngram
from methods.decoding.rounds import RoundMethod
from methods.decoding.sampling import Draws
from methods.drafters import vocabulary
from methods.drafters.session import RowSession
from methods.eagle3.session import Eagle3Session
from methods.models.state import RecurrentCache, State
from methods.pipeline import decisions
from methods.pipeline import method as pipeline_method
from methods.pipeline.controller import PipelineController
from methods.pipeline.lockstep import Lockstep
from methods.pipeline.tree import DraftTree
from methods.ppsd.drafter import PpsdDrafter
from methods.spd import checkpoint as spd_checkpoint
from methods.spd.drafter import SpdDrafter
from methods.spd.training import SpdTask

SUBJECTS = {
    "harness": None,
    "ngram": Subject.of("ngram"),
    "eagle3": Subject.of("eagle3", {"m": 5}),
    "eagle3 tree": Subject.of("eagle3", {"m": 3, "width": 4}),
    "ppsd": Subject.of("ppsd"),
    "ppsd tree": Subject.of("ppsd", {"width": 4}),
    "spd": Subject.of("spd", {"draft_layers": 1}),
}
SMALLEST = SIZES["smallest"]


@dataclass(frozen=True)
class Fault:
    """``replacement`` takes the place of ``owner.attribute``; check ``meant`` must catch it on
    ``subject``, and so do those of ``also``."""

    meant: str
    subject: str
    owner: object
    attribute: str
    replacement: object
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        inner = getattr(self.replacement, "__func__", self.replacement)
        return f"{self.meant}, {self.subject}: {getattr(inner, '__name__', self.attribute)}"


grow, rows, extend = DraftTree.grow, SpdTask.rows, Eagle3Session.extend
replay_chain, build_from, with_one_bos = (
    pipeline_method.replay_chain,
    spd_checkpoint.build_from,
    chat._with_one_bos,
)


def ignore_the_width(tree, width, entered):
    grow(tree, 1, entered)


def train_at_another_fill(task, seen, fill):
    return rows(task, seen, max(1, fill - 1))


def shift_the_embeddings(session, features, next_ids):
    return extend(session, features, next_ids.roll(1))


def take_any_tensors(build, tensors, dtype, source):
    module = build()
    module.load_state_dict(dict(tensors), strict=False)
    return module.to(dtype)


def two_bos(tokenizer, ids):
    return [tokenizer.bos_token_id, *with_one_bos(tokenizer, ids)]


def replay_one_step_less(*args):
    replayed = replay_chain(*args)
    return type(replayed)(replayed.steps[:-1])


def mean_over_one_more(sums):
    return sums[..., 0] / (sums[..., 1] + 1)


def accept_anything(*_):
    return None


FAULTS = [
    # rounds
    Fault(
        "C1", "ngram", methods.decoding.rounds, "verify", faults.accept_the_first_draft, ("C2", "C7", "C8")
    ),
    Fault("C2", "ngram", methods.decoding.rounds, "verify", faults.accept_the_first_draft),
    Fault("C5", "ngram", methods.decoding.rounds, "verify", faults.accept_one_draft_at_most),
    Fault("C6", "ngram", RoundMethod, "_step", faults.count_the_bonus_twice, ("C1", "C7", "C8")),
    Fault("C9", "eagle3", methods.decoding.rounds, "verify", faults.accept_the_first_draft),
    Fault("C10", "eagle3", verification.DraftLaw, "of", classmethod(faults.report_a_flatter_law), ("C9",)),
    Fault("C11", "ngram", verification, "target_token", faults.greedy_token, ("C9",)),
    Fault("C32", "ngram", Ngram, "__init__", faults.round_a_weight),
    Fault("C4", "ngram", State, "keep", faults.never_roll_back, ("C1", "C3")),
    Fault("C15", "eagle3 tree", State, "_tree_block", faults.see_every_node),
    Fault("C14", "ngram", State, "_tree_block", faults.place_the_tree_one_further),
    Fault("C19", "eagle3", Eagle3Session, "extend", shift_the_embeddings),
    # pipelines
    Fault("C1", "spd", Lockstep, "_verify", faults.accept_unverified_after_a_fill, ("C2", "C9")),
    Fault("C3", "ppsd", State, "rollback", faults.roll_back_one_less, ("C1", "C4")),
    Fault("C4", "ppsd tree", RecurrentCache, "after", faults.newest_state, ("C3",)),
    Fault("C6", "ppsd", PipelineController, "end_cycle", faults.forget_the_fill),
    Fault("C7", "ppsd", Transcript, "extend", faults.go_on_after_a_stop_id),
    Fault("C8", "ppsd", Transcript, "__init__", faults.one_token_too_many),
    Fault("C9", "spd", decisions, "accept_drawn", faults.reject_without_residual),
    Fault("C9", "spd", decisions, "probabilities", faults.be_greedy, ("C11",)),
    Fault("C10", "spd", verification.DraftLaw, "draw", classmethod(faults.report_another_law), ("C9",)),
    Fault("C12", "spd", Draws, "acceptance", faults.uniform_without_seed),
    Fault("C13", "spd", verification.DraftLaw, "draw", classmethod(faults.draft_without_top_p)),
    Fault("C15", "ppsd tree", State, "_tree_block", faults.see_every_node, ("C3",)),
    Fault("C17", "ppsd", PpsdDrafter, "settle", faults.keep_rejected_rows),
    Fault("C17", "ppsd", RowSession, "rollback", faults.roll_rows_back_one_less),
    Fault("C17", "spd", SpdDrafter, "settle", faults.forget_completed_rows_at_a_flush),
    Fault("C18", "spd", SpdTask, "rows", train_at_another_fill),
    Fault("C20", "spd", vocabulary, "_check", accept_anything),
    Fault("C21", "spd", spd_checkpoint, "build_from", take_any_tensors),
    Fault("C23", "spd", PipelineController, "end_cycle", faults.book_drafting_as_target),
    Fault("C27", "ppsd tree", DraftTree, "grow", ignore_the_width),
    Fault("C28", "ppsd", pipeline_method, "replay_chain", replay_one_step_less),
    # what a method says of itself
    Fault("C33", "spd", Lockstep, "decode", faults.claim_half_the_decoding),
    Fault("C33", "ngram", RoundMethod, "decode", faults.claim_to_have_prefilled_only),
    Fault("C33", "eagle3", RoundMethod, "decode", faults.claim_seconds_that_were_not),
    Fault("C34", "ppsd", PipelineController, "end_cycle", faults.claim_half_the_layers),
    Fault("C34", "eagle3 tree", RoundMethod, "_step", faults.claim_no_layers),
    Fault("C34", "ngram", Ngram, "session", faults.draft_with_the_target),
    # runs and records
    Fault("C22", "harness", chat, "_with_one_bos", two_bos),
    Fault("C24", "harness", metrics, "ratio_of_sums", mean_over_one_more),
    Fault("C25", "harness", journal.Journal, "_cut_torn_line", accept_anything),
    Fault("C26", "harness", manifest, "first_difference", accept_anything),
]
LATE = [
    # late in the prompt
    Fault("C1", "ngram", RoundMethod, "decode", faults.forget_the_first_token_of_prompts(12)),
    Fault("C1", "ngram", RoundMethod, "decode", faults.forget_the_first_token_of_prompts(48)),
    Fault("C1", "ngram", RoundMethod, "decode", faults.forget_the_first_token_of_prompts(520)),
    Fault("C9", "eagle3", RoundMethod, "decode", faults.forget_the_first_token_of_prompts(520)),
    Fault("C1", "spd", Lockstep, "_prefill", faults.prefill_one_chunk),
    Fault("C3", "spd", Lockstep, "_prefill", faults.prefill_one_chunk),
    # late in the output
    Fault("C1", "ngram", methods.decoding.rounds, "verify", faults.accept_the_first_draft_behind(40)),
    Fault("C1", "ngram", methods.decoding.rounds, "verify", faults.accept_the_first_draft_behind(100)),
    Fault("C1", "spd", Lockstep, "_verify", faults.accept_unverified_behind(130)),
    Fault("C3", "ppsd", State, "rollback", faults.roll_back_one_less_behind(130)),
    Fault("C4", "ngram", State, "keep", faults.never_roll_back_behind(130)),
    Fault("C9", "ngram", verification, "target_token", faults.be_greedy_behind(130)),
    Fault("C30", "spd", Transcript, "extend", faults.go_on_after_late_stop_ids),
    # between prompts
    Fault("C31", "ngram", Ngram, "session", faults.keep_the_session),
    Fault("C31", "eagle3", RoundMethod, "decode", faults.answer_as_before),
    Fault("C31", "ngram", RoundMethod, "decode", faults.answer_as_any_object_did),
    # one sampling parameter alone
    Fault("C9", "ngram", verification, "target_token", faults.heedless_of("temperature")),
    Fault("C9", "ngram", verification, "target_token", faults.heedless_of("top_k")),
    Fault("C9", "ngram", verification, "target_token", faults.heedless_of("top_p")),
]
"""What short prompts, short outputs, fresh objects and two sets of sampling parameters do not show."""
FAULTS += LATE
"""C16, C29 and C35 have tests of their own below: they need processes or files."""


def outcome(check: str, subject: str, size: Sizes = SMALLEST) -> Outcome:
    (found,) = chosen([check])
    return run_check(found, SUBJECTS[subject], size)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_caught_by_the_check_meant_for_it(monkeypatch, fault):
    monkeypatch.setattr(fault.owner, fault.attribute, fault.replacement)
    found = outcome(fault.meant, fault.subject)
    assert found.status == "failed", found
    assert found.reason


@pytest.mark.parametrize(
    ("check", "subject"), sorted({(fault.meant, fault.subject) for fault in FAULTS}), ids=str
)
def test_without_a_fault_the_check_passes(check, subject):
    found = outcome(check, subject)
    assert found.status == "passed", found
    assert found.figure


def test_every_check_has_a_fault():
    assert {fault.meant for fault in FAULTS} | {"C16", "C29", "C35"} == {check.id for check in CHECKS}


@pytest.mark.repeats
@pytest.mark.parametrize("fault", LATE, ids=str)
def test_a_late_fault_is_caught_at_the_default_size(monkeypatch, fault):
    monkeypatch.setattr(fault.owner, fault.attribute, fault.replacement)
    assert outcome(fault.meant, fault.subject, SIZES["quick"]).status == "failed"


@pytest.mark.slow
def test_two_runtimes_that_differ_are_noticed(monkeypatch):
    """The ranks are other processes, so a fault of this one is in the lockstep run alone."""
    assert outcome("C16", "ppsd").status == "passed"
    monkeypatch.setattr(PipelineController, "end_cycle", faults.count_cycles_twice)
    assert outcome("C16", "ppsd").status == "failed"


def test_a_parent_that_believes_its_child_is_noticed():
    blind = """
import os
from harness.cli.guard import _Child
_Child.answer = lambda child: os.waitstatus_to_exitcode(child.status)
"""
    assert endings().fault is None
    assert endings(["leaves"], prelude=blind).fault == "leaves in run ended with 0, not 1"


def test_a_table_that_is_not_its_records_is_noticed(tmp_path):
    from harness.checks.record_checks import tables
    from paper_tables.__main__ import main

    (tmp_path / "smollm2-135m" / "records").mkdir(parents=True)
    assert main(["1", "--preset", "smollm2-135m", "--stored-only", "--results", str(tmp_path)]) == 0
    assert tables(tmp_path).fault is None
    path = tmp_path / "smollm2-135m" / "table1.md"
    path.write_text(path.read_text().replace("-", "1.0", 1))
    assert tables(tmp_path).fault is not None


@pytest.mark.repeats
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if SUBJECTS[fault.subject]], ids=str)
def test_which_others_notice(monkeypatch, fault):
    """Prints the list (pytest -s); ``also`` names those that have to be in it."""
    monkeypatch.setattr(fault.owner, fault.attribute, fault.replacement)
    cheap = [check for check in CHECKS if check.of_method is not None and check.id != "C16"]
    found = [run_check(check, SUBJECTS[fault.subject], SMALLEST) for check in cheap]
    noticed = [one.check for one in found if one.status == "failed"]
    print(f"{fault}: {', '.join(noticed)}")
    assert {fault.meant, *fault.also} <= set(noticed)
