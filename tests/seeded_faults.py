"""Deliberate faults: each takes the place of a function of the product."""

from __future__ import annotations

import torch

from methods.drafting.session import RowSession
from methods.interface import SamplingParams
from methods.pipeline.controller import PipelineController
from methods.pipeline.lockstep import Lockstep
from methods.ppsd.drafter import PpsdDrafter
from methods.rounds import RoundMethod
from methods.sampling import Draws, pick, probabilities
from methods.spd.drafter import SpdDrafter
from methods.target.block import Block
from methods.target.state import AttentionCache, RecurrentCache, State
from methods.transcript import Transcript
from methods.verification import Verified, verify

GREEDY = SamplingParams()


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


def report_a_flatter_law(cls, probs, vocabulary, draws):
    flatter = probs.sqrt() / probs.sqrt().sum()
    return cls(flatter, vocabulary, pick(probs, draws.draft()))


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


# Of draft-then-verify rounds.


def accept_the_first_draft(draft, logits, sampling, draws, index) -> Verified:
    """The first draft node becomes output without a look, then the target's own token behind it."""
    if not draft.tokens:
        return verify(draft, logits, sampling, draws, index)
    return Verified([0], int(logits[1].argmax(-1)), 1)


def accept_one_draft_at_most(draft, logits, sampling, draws, index) -> Verified:
    """The output stays right, the drafts are wasted."""
    found = verify(draft, logits, sampling, draws, index)
    if len(found.path) < 2:
        return found
    return Verified(found.path[:1], draft.tokens[found.path[1]], 2)


def count_the_bonus_twice(method: RoundMethod, draft, verified, emitted, phases):
    return ORIGINAL[RoundMethod, "_step"](method, draft, verified, emitted + 1, phases)


def greedy_token(logits, sampling, draws, index) -> int:
    return int(logits.argmax(-1))


def place_the_tree_one_further(state: State, start: int, parents, record: bool) -> Block:
    """Wrong positions for whatever is kept as a tree."""
    block = ORIGINAL[State, "_tree_block"](state, start, parents, record)
    cos, _ = state._rotary.at(block.positions + 1)
    block.cos = cos[None, :, None]
    return block


def book_drafting_as_target(run: PipelineController, phases=None) -> None:
    phases = dict(phases or {})
    phases["target"], phases["draft"] = phases.get("draft", 0.0), phases.get("target", 0.0)
    ORIGINAL[PipelineController, "end_cycle"](run, phases)


PLACES = [
    (Lockstep, "_verify"),
    (State, "rollback"),
    (State, "_tree_block"),
    (Transcript, "__init__"),
    (PipelineController, "end_cycle"),
    (RowSession, "rollback"),
    (SpdDrafter, "settle"),
    (RoundMethod, "_step"),
]
ORIGINAL = {(owner, name): getattr(owner, name) for owner, name in PLACES}
