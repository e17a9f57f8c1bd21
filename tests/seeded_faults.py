"""Deliberate faults: each takes the place of a function of the product."""

from __future__ import annotations

import inspect
from dataclasses import replace

import torch

from methods.core import SamplingParams, Transcript
from methods.decoding.prompt_lookup import Ngram
from methods.decoding.rounds import RoundMethod
from methods.decoding.sampling import Draws, pick, probabilities, target_token
from methods.decoding.verification import Draft, Verified, verify
from methods.drafters.session import RowSession
from methods.models.block import Block
from methods.models.state import AttentionCache, RecurrentCache, State
from methods.models.target import PREFILL_CHUNK
from methods.pipeline.controller import PipelineController
from methods.pipeline.lockstep import Lockstep
from methods.ppsd.drafter import PpsdDrafter
from methods.spd.drafter import SpdDrafter

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


def round_a_weight(method, target, options):
    ORIGINAL[Ngram, "__init__"](method, target, options)
    weight = target.hf.get_input_embeddings().weight.data
    weight.copy_((8 * weight).round() / 8)


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


# Late in the prompt, late in the output, between prompts, of one sampling parameter alone.


def forget_the_first_token_of_prompts(length: int):
    """From ``length`` tokens on."""

    def decode(method: RoundMethod, prompt_ids, *given):
        forgotten = int(len(prompt_ids) >= length)
        return ORIGINAL[RoundMethod, "decode"](method, prompt_ids[forgotten:], *given)

    return named(decode, length)


def prefill_one_chunk(run: Lockstep, prompt_ids):
    return ORIGINAL[Lockstep, "_prefill"](run, prompt_ids[:PREFILL_CHUNK])


def accept_the_first_draft_behind(tokens: int):
    def verified(draft, logits, sampling, draws, index) -> Verified:
        rule = accept_the_first_draft if index >= tokens else verify
        return rule(draft, logits, sampling, draws, index)

    return named(verified, tokens)


def accept_unverified_behind(tokens: int):
    def _verify(run: Lockstep, pipeline: PipelineController) -> None:
        late = len(pipeline.transcript.tokens) >= tokens
        rule = accept_unverified_after_a_fill if late else ORIGINAL[Lockstep, "_verify"]
        rule(run, pipeline)

    return named(_verify, tokens)


def never_roll_back_behind(slots: int):
    def keep(state: State, kept) -> None:
        if state.length < slots:
            ORIGINAL[State, "keep"](state, kept)

    return named(keep, slots)


def roll_back_one_less_behind(slots: int):
    def rollback(state: State, mark: int) -> None:
        ORIGINAL[State, "rollback"](state, min(mark + (mark >= slots), state.length))

    return named(rollback, slots)


def be_greedy_behind(tokens: int):
    def drawn(logits, sampling, draws, index) -> int:
        return target_token(logits, GREEDY if index >= tokens else sampling, draws, index)

    return named(drawn, tokens)


def go_on_after_late_stop_ids(transcript: Transcript, tokens) -> int:
    if len(transcript.tokens) >= 128:
        transcript.stop_ids = frozenset()
    return ORIGINAL[Transcript, "extend"](transcript, tokens)


def keep_the_session(method: Ngram, sampling, draws):
    """Of the prompt before."""
    if not hasattr(method, "kept"):
        method.kept = ORIGINAL[Ngram, "session"](method, sampling, draws)
    return method.kept


def answer_as_before(method: RoundMethod, prompt_ids, sampling, *given):
    """What the first prompt of that length was answered."""
    known = method.__dict__.setdefault("answers", {})
    key = len(prompt_ids), sampling
    if key not in known:
        known[key] = ORIGINAL[RoundMethod, "decode"](method, prompt_ids, sampling, *given)
    return known[key]


ANSWERS: dict = {}


def answer_as_any_object_did(method: RoundMethod, prompt_ids, sampling, *given):
    """As ``answer_as_before``, kept for the whole process."""
    key = id(method.target), len(prompt_ids), sampling
    if key not in ANSWERS:
        ANSWERS[key] = ORIGINAL[RoundMethod, "decode"](method, prompt_ids, sampling, *given)
    return ANSWERS[key]


def heedless_of(name: str):
    """One sampling parameter counts only beside others."""
    off = SamplingParams(temperature=1.0)

    def drawn(logits, sampling, draws, index) -> int:
        others = [n for n in ("temperature", "top_k", "top_p") if getattr(sampling, n) != getattr(off, n)]
        if others == [name] and not sampling.greedy:
            sampling = replace(sampling, **{name: getattr(off, name)})
        return target_token(logits, sampling, draws, index)

    return named(drawn, name)


def named(function, what):
    function.__name__ = f"{inspect.stack()[1].function} {what}"
    return function


# Of what a method says of itself.


def claim_half_the_decoding(run: Lockstep, *given):
    result = ORIGINAL[Lockstep, "decode"](run, *given)
    return replace(result, decode_s=result.decode_s / 2)


def claim_to_have_prefilled_only(method: RoundMethod, *given):
    result = ORIGINAL[RoundMethod, "decode"](method, *given)
    return replace(result, prefill_s=result.prefill_s + result.decode_s, decode_s=0.0)


def claim_seconds_that_were_not(method: RoundMethod, *given):
    result = ORIGINAL[RoundMethod, "decode"](method, *given)
    return replace(result, prefill_s=result.prefill_s + 0.1)


def claim_half_the_layers(run: PipelineController, phases=None) -> None:
    """As if the stages were twice as many."""
    ORIGINAL[PipelineController, "end_cycle"](run, phases)
    step = run.steps[-1]
    run.steps[-1] = replace(step, target_layers=step.target_layers / 2, nodes=(*step.nodes, *step.nodes))


def claim_no_layers(method: RoundMethod, draft, verified, emitted, phases):
    step = ORIGINAL[RoundMethod, "_step"](method, draft, verified, emitted, phases)
    return replace(step, target_layers=0)


def draft_with_the_target(method: Ngram, sampling, draws):
    """The best drafts there are, from passes over all tokens so far that no step tells of."""
    session, target = ORIGINAL[Ngram, "session"](method, sampling, draws), method.target

    def propose(budget: int) -> Draft:
        tokens = list(session._history)
        for _ in range(min(3, budget)):
            hidden = target.prefill(tokens, target.new_state()).hidden
            tokens.append(int(target.logits(hidden)[0, -1].argmax()))
        return Draft.chain(tokens[len(session._history) :])

    session.propose = propose
    return session


PLACES = [
    (Lockstep, "_verify"),
    (Lockstep, "_prefill"),
    (State, "rollback"),
    (State, "keep"),
    (State, "_tree_block"),
    (Transcript, "__init__"),
    (Transcript, "extend"),
    (PipelineController, "end_cycle"),
    (RowSession, "rollback"),
    (SpdDrafter, "settle"),
    (RoundMethod, "_step"),
    (RoundMethod, "decode"),
    (Lockstep, "decode"),
    (Ngram, "session"),
    (Ngram, "__init__"),
]
ORIGINAL = {(owner, name): getattr(owner, name) for owner, name in PLACES}
