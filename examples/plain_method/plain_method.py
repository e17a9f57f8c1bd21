"""A decoding method in a package of its own: one target pass per token, nothing drafted."""

from time import perf_counter

import torch

from methods.decoding.sampling import Draws, target_token
from methods.errors import UsageError
from methods.interface import DecodeResult, DecodingMethod, Step
from methods.registry import register


@register("plain")
class Plain(DecodingMethod):
    @torch.inference_mode()
    def decode(self, prompt_ids, sampling, max_new_tokens, stop_ids=()):
        if not prompt_ids:
            raise UsageError("the prompt is empty")
        state, draws = self.target.new_state(), Draws(sampling.seed)
        pending, tokens, steps, stopped = list(prompt_ids), [], [], False
        start = first = perf_counter()
        while len(tokens) < max_new_tokens and not stopped:
            hidden = self.target.forward(torch.tensor(pending), state).hidden  # [1, len(pending), hidden]
            logits = self.target.logits(hidden[0, -1])  # [vocab]
            tokens.append(target_token(logits, sampling, draws, len(tokens)))
            stopped = tokens[-1] in stop_ids
            if len(tokens) == 1:  # the token of the prefill belongs to no step
                first = perf_counter()
            else:
                layers = self.target.num_layers
                steps.append(Step(drafted=0, accepted=0, emitted=1, target_layers=layers, draft_layers=0))
            pending = tokens[-1:]
        reason = "stop" if stopped else "length"
        return DecodeResult(tokens, steps, first - start, perf_counter() - first, reason)
