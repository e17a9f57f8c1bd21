"""SPD and PPSD whose drafters are right about some of a tiny target's own outputs.

An untrained drafter is rejected nearly always; with its head fitted, runs are accepted and cut at
every fill, with the drafters' own code instead of a script.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from check_worlds import GREEDY, pipeline
from conftest import random_ids, tiny
from torch import nn
from torch.nn import functional as F

from methods.decoding.batched import Generator, Question
from methods.decoding.replay import KnownOutput

TOKENS = 64
PROMPTS = [random_ids(1 + i % 12, seed=70 + i) for i in range(20)]
"""Lengths 1 to 12, one-token prompts among them."""
KNOWN = 6
"""Prompts whose outputs the heads are fitted to."""
_RIDGE = 0.01


@functools.cache
def outputs(family: str, layers: int) -> list[list[int]]:
    """AR's greedy outputs of ``PROMPTS``, all in one batch."""
    questions = [Question(i, prompt) for i, prompt in enumerate(PROMPTS)]
    answers = Generator(tiny(family, layers), len(questions), TOKENS, ()).answers(questions)
    found = {answer.question.key: answer.ids for answer in answers}
    return [found[i] for i in range(len(PROMPTS))]


@torch.no_grad()
def fitted(family: str, layers: int, label: str, n: int, **options: Any) -> Any:
    """``pipeline`` whose head is the ridge regression of the tokens to be drafted, behind every known
    output token at every fill, on what the head reads there."""
    method = pipeline(tiny(family, layers), label, n, **options)
    part = method.module if method.name == "spd" else method.head
    head, part.lm_head = part.lm_head, nn.Identity()
    inputs, named = [], []
    for prompt, output in list(zip(PROMPTS, outputs(family, layers), strict=True))[:KNOWN]:
        known = KnownOutput(method.target, prompt, output, GREEDY, TOKENS)
        pairs = [(i, fill) for i in range(known.decoded) for fill in range(1, min(n, i + 1) + 1)]
        inputs.append(method.draft_logits(known)(pairs))
        named.append(known.truth[[i for i, _ in pairs]])
    part.lm_head = head
    x = torch.cat(inputs).double()
    y = F.one_hot(torch.cat(named), head.weight.shape[0]).double()
    penalty = _RIDGE * len(x) * torch.eye(x.shape[1])
    head.weight.copy_(torch.linalg.solve(x.T @ x + penalty, x.T @ y).T)
    return method
