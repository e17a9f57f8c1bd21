"""Draft-then-verify decoding: a round drafts tokens and checks them all in one target pass."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from methods.core import DecodeResult, SamplingParams, Step, Transcript
from methods.decoding.replay import KnownOutput, Replayed
from methods.decoding.sampling import Draws, target_token
from methods.decoding.verification import Draft, Verified, follow, verify
from methods.errors import UsageError
from methods.interface import DecodingMethod
from methods.models.state import State


class DraftSession(ABC):
    """What drafts along one sequence. Whether a proposal was accepted shows only in what ``observe``
    is told next."""

    @abstractmethod
    def observe(self, tokens: Sequence[int], taps: Tensor) -> None:
        """``tokens`` joined the sequence for good; the last one is the *root* the next draft continues.

        First come the prompt and the first output token, then after every round but the last the
        accepted drafts and the target's own token. ``taps`` [rows, reads, hidden] are the residual
        streams at ``RoundMethod.reads`` of what the target has run and ``observe`` has not seen yet:
        every token so far but the new root. Row i belongs to the token before ``tokens[i]``, or at
        first, where the prompt's first token has none before it, before ``tokens[i + 1]``. Without
        ``reads`` it is empty.
        """

    @abstractmethod
    def propose(self, budget: int) -> Draft:
        """Draft behind the root, at most ``budget`` (>= 0) deep; may be empty.

        ``budget`` shrinks towards the end of the output, which the target's own token always ends.
        """


class RoundMethod(DecodingMethod):
    """A draft-then-verify method: subclasses give the session, verification and rollback are here.

    Phases: "draft" is all of the session's time, "target" the pass with its logits, "verify" the
    acceptance and the rollback.
    """

    reads: tuple[int, ...] = ()
    """Residual-stream indices the session wants (0 = embedding, L = last layer's output)."""

    @abstractmethod
    def session(self, sampling: SamplingParams, draws: Draws) -> DraftSession:
        """A session for one sequence."""

    @torch.no_grad()
    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
    ) -> DecodeResult:
        self.target.check_prompt(prompt_ids)
        started = time.perf_counter()
        transcript = Transcript(self.target.room(prompt_ids, max_new_tokens), stop_ids)
        draws = Draws(sampling.seed)
        state = self.target.new_state()
        prefill = self.target.prefill(prompt_ids, state, taps=self.reads)
        session = self.session(sampling, draws)
        if not transcript.finished:
            first = target_token(self.target.logits(prefill.hidden)[0, -1], sampling, draws, 0)
            transcript.extend([first])
            session.observe([*prompt_ids, first], self._rows(prefill.taps))
        prefill_s = time.perf_counter() - started
        steps: list[Step] = []
        while not transcript.finished:
            steps.append(self._round(session, state, transcript, sampling, draws))
        decode_s = time.perf_counter() - started - prefill_s
        return DecodeResult(
            transcript.tokens, steps, prefill_s, decode_s, transcript.finish_reason or "length"
        )

    def _round(
        self,
        session: DraftSession,
        state: State,
        transcript: Transcript,
        sampling: SamplingParams,
        draws: Draws,
    ) -> Step:
        clock = time.perf_counter
        t0 = clock()
        draft = session.propose(transcript.max_new_tokens - len(transcript.tokens) - 1)
        t1 = clock()
        base = state.length
        parents = None if draft.is_chain else [base - 1, *(base + 1 + parent for parent in draft.parents)]
        ids = [transcript.tokens[-1], *draft.tokens]
        out = self.target.forward(ids, state, parents, record=True, taps=self.reads)
        logits = self.target.logits(out.hidden)[0]
        t2 = clock()
        verified = verify(draft, logits, sampling, draws, len(transcript.tokens))
        rows = [0, *(1 + node for node in verified.path)]
        state.keep([base + row for row in rows])
        state.commit()
        tokens = [*(draft.tokens[node] for node in verified.path), verified.token]
        emitted = transcript.extend(tokens)
        t3 = clock()
        if not transcript.finished:
            session.observe(tokens, self._rows(out.taps, rows))
        t4 = clock()
        phases = {"draft": t1 - t0 + t4 - t3, "target": t2 - t1, "verify": t3 - t2}
        return self._step(draft, verified, emitted, phases)

    def _step(self, draft: Draft, verified: Verified, emitted: int, phases: dict[str, float]) -> Step:
        return Step(
            drafted=len(draft.tokens),
            accepted=min(len(verified.path), emitted),
            emitted=emitted,
            target_layers=self.target.num_layers,
            draft_layers=draft.layers,
            depth=min(verified.depth, emitted),
            nodes=(1 + len(draft.tokens),),
            phases=phases,
        )

    def can_replay(self, sampling: SamplingParams) -> bool:
        return True

    @torch.no_grad()
    def replay(self, known: KnownOutput) -> Replayed:
        """The rounds as ``decode`` makes them, with the drafts themselves but without the target:
        the known output says what it would have answered."""
        output, start = known.output_ids, len(known.prompt_ids)
        session = self.session(known.sampling, Draws(known.sampling.seed))
        features = known.features(self.reads) if self.reads else torch.empty(start + known.decoded, 0)
        done, steps = min(1, len(output)), []
        if known.decoded:
            session.observe([*known.prompt_ids, output[0]], features[:start])
        while done < len(output):
            draft = session.propose(known.cap - done - 1)
            if draft.laws is not None and not known.sampling.greedy:
                raise UsageError(f"method {self.name!r} accepts by chance: it cannot be replayed at T > 0")
            verified = follow(draft, output[done:])
            kept = len(verified.path)
            emitted = min(kept + 1, len(output) - done)
            steps.append(self._step(draft, verified, emitted, {}))
            if done + emitted < len(output):
                rows = features[start + done - 1 : start + done + kept]
                session.observe(output[done : done + emitted], rows)
            done += emitted
        return Replayed(steps)

    def _rows(self, taps: dict[int, Tensor], rows: Sequence[int] | slice = slice(None)) -> Tensor:
        """The taps of ``rows`` as [rows, reads, hidden]; empty if nothing is read."""
        if not self.reads:
            return torch.empty(0)
        return torch.stack([taps[index][0, rows] for index in self.reads], 1)

    def describe(self) -> dict[str, Any]:
        return {"proposal": "point-mass"}
