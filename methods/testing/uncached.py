"""Decoding without any state: the reference that plain decoding itself is held against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from methods.core import DecodeResult, SamplingParams, Step, Transcript
from methods.decoding.sampling import Draws, target_token
from methods.interface import DecodingMethod, NoOptions
from methods.models.target import Target


class Uncached(DecodingMethod):
    """Every token from a pass over all tokens before it: transformers' own where the target has a
    transformers model, else the target's on an empty state."""

    name = "uncached"

    def __init__(self, target: Target) -> None:
        super().__init__(target, NoOptions())

    @torch.no_grad()
    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
    ) -> DecodeResult:
        self.target.check_prompt(prompt_ids)
        draws = Draws(sampling.seed)
        transcript = Transcript(self.target.room(prompt_ids, max_new_tokens), stop_ids)
        while not transcript.finished:
            logits = self._logits([*prompt_ids, *transcript.tokens])
            transcript.extend([target_token(logits, sampling, draws, len(transcript.tokens))])
        steps = [Step(0, 0, 1, self.target.num_layers, 0)] * max(0, len(transcript.tokens) - 1)
        return DecodeResult(transcript.tokens, steps, 0.0, 0.0, transcript.finish_reason or "length")

    def _logits(self, ids: list[int]) -> Tensor:
        if hasattr(self.target, "hf"):
            return self.target.hf(torch.tensor([ids], device=self.target.device), use_cache=False).logits[
                0, -1
            ]
        return self.target.logits(self.target.forward(ids, self.target.new_state()).hidden)[0, -1]
