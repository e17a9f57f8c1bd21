"""Plain autoregressive decoding: the baseline and the reference output."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from methods.interface import DecodeResult, DecodingMethod, SamplingParams, Step
from methods.registry import register
from methods.replay import KnownOutput, Replayed
from methods.sampling import Draws, target_token
from methods.transcript import Transcript


@register("autoregressive")
class Autoregressive(DecodingMethod):
    """One target pass per token."""

    @torch.no_grad()
    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
    ) -> DecodeResult:
        target = self.target
        started = time.perf_counter()
        transcript = Transcript(target.room(prompt_ids, max_new_tokens), stop_ids)
        draws = Draws(sampling.seed)
        state = target.new_state()
        hidden = target.prefill(prompt_ids, state).hidden
        prefilled = time.perf_counter()
        steps: list[Step] = []
        while not transcript.finished:
            token = target_token(target.logits(hidden)[0, -1], sampling, draws, len(transcript.tokens))
            transcript.extend([token])
            if len(transcript.tokens) == 1:
                prefilled = time.perf_counter()
            else:
                steps.append(self._step())
            if not transcript.finished:
                hidden = target.forward([token], state).hidden
        decode_s = time.perf_counter() - prefilled
        return DecodeResult(
            transcript.tokens, steps, prefilled - started, decode_s, transcript.finish_reason or "length"
        )

    def can_replay(self, sampling: SamplingParams) -> bool:
        return True

    def replay(self, known: KnownOutput) -> Replayed:
        return Replayed([self._step()] * known.decoded)

    def _step(self) -> Step:
        return Step(0, 0, 1, self.target.num_layers, 0)
