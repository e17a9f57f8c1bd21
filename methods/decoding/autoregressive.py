"""Plain autoregressive decoding: the baseline and the reference output."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from methods.core import DecodeResult, SamplingParams, Step, Transcript
from methods.decoding.replay import KnownOutput, Replayed
from methods.decoding.sampling import Draws, target_token
from methods.interface import DecodingMethod
from methods.registry import register


@register("autoregressive")
class Autoregressive(DecodingMethod):
    """One target pass per token."""

    @torch.inference_mode()
    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
    ) -> DecodeResult:
        target, draws = self.target, Draws(sampling.seed)
        started = time.perf_counter()
        target.check_prompt(prompt_ids)
        transcript = Transcript(target.room(prompt_ids, max_new_tokens), stop_ids)
        state = target.new_state()

        def emit(hidden: Tensor) -> None:
            logits = target.logits(hidden)[0, -1]
            transcript.extend([target_token(logits, sampling, draws, len(transcript.tokens))])

        if not transcript.finished:
            emit(target.prefill(prompt_ids, state).hidden)
        prefilled = time.perf_counter()
        steps: list[Step] = []
        while not transcript.finished:
            emit(target.forward(transcript.tokens[-1:], state).hidden)
            steps.append(self._step())
        ended = time.perf_counter()
        reason = transcript.finish_reason or "length"
        return DecodeResult(transcript.tokens, steps, prefilled - started, ended - prefilled, reason)

    def can_replay(self, sampling: SamplingParams) -> bool:
        return True

    def replay(self, known: KnownOutput) -> Replayed:
        return Replayed([self._step()] * known.decoded)

    def _step(self) -> Step:
        return Step(0, 0, 1, self.target.num_layers, 0)
