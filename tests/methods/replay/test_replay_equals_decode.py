"""C28: the replayed trace is the decode loop's, step for step, wherever the output determines it."""

import dataclasses
import functools

import pytest
import torch
from conftest import random_ids

from harness.checks.replays import replay_fault
from methods import registry
from methods.core import SamplingParams
from methods.models.target import Target
from methods.testing.tiny import FAMILIES, tiny_target

VOCAB = 6
"""So few tokens that a random drafter is sometimes right, several times in a row."""

METHODS = [
    ("autoregressive", {}),
    ("ngram", {}),
    ("ngram", {"m": 2, "longest": 2}),
    *(("eagle3", {"m": m}) for m in (1, 3, 7)),
    ("eagle3", {"m": 3, "width": 4}),
    ("eagle3", {"m": 3, "width": 4, "tree": "dynamic"}),
    *(("ppsd", {"n": n}) for n in (1, 2, 4, 8)),
    ("ppsd", {"n": 4, "head_class": "linear"}),
    ("ppsd", {"n": 3, "head_class": "mlp", "stage_layers": "1;4;3"}),
    *(("spd", {"n": n, "draft_layers": 2}) for n in (1, 2, 4, 8)),
    *(("spd", {"n": n, "schedule": "post-step"}) for n in (1, 4, 8)),
    ("spd", {"n": 3, "stage_layers": "1;4;3"}),
]

FEW = [("eagle3", {"m": 3}), ("ppsd", {"n": 4}), ("spd", {"n": 4, "draft_layers": 2})]
CASES = [("llama", *case) for case in METHODS] + [
    (family, *case) for family in FAMILIES if family != "llama" for case in FEW
]


@functools.cache
def target(family: str) -> Target:
    return tiny_target(family, layers=8, vocab=VOCAB, sharpness=2.0)


def method(name: str, options: dict, family: str):
    if name in ("autoregressive", "ngram"):
        return registry.create(name, target(family), options)
    subject = registry.create(name, target(family), {**options, "untrained": True})
    return scramble(subject)


def scramble(subject):
    """Weights that make the drafts depend on the features, and on how many there are."""
    generator = torch.Generator().manual_seed(7)
    drafter = subject.module if subject.name == "spd" else subject.head
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return subject


def check(subject, prompt, sampling, max_new_tokens, stop_ids=()):
    """Decode, replay from AR's output, compare; returns the trace."""
    assert subject.can_replay(sampling)
    reference = registry.create("autoregressive", subject.target)
    decoded, fault = replay_fault(subject, reference, prompt, sampling, max_new_tokens, stop_ids)
    assert fault is None, fault
    return decoded.steps


@pytest.mark.parametrize(("family", "name", "options"), CASES, ids=str)
def test_greedy(family, name, options):
    check(method(name, options, family), random_ids(9, VOCAB, 1), SamplingParams(), 24)


@pytest.mark.parametrize(("name", "options"), METHODS, ids=str)
def test_end_of_output(name, options):
    """Caps around the lengths of rounds and fills, and every token once as the stop id."""
    subject = method(name, options, "llama")
    prompt = random_ids(7, VOCAB, 5)
    for cap in (0, 1, 2, 9):
        check(subject, prompt, SamplingParams(), cap)
    for stop in random_ids(3, VOCAB, 2):
        check(subject, prompt, SamplingParams(), 12, [stop])


@pytest.mark.parametrize(
    ("family", "name", "options"), [case for case in CASES if case[1] != "autoregressive"], ids=str
)
def test_point_mass_at_temperature_one(family, name, options):
    """The target's draw decides there, and it is AR's own from the same seed."""
    rule = {} if name == "ngram" else {"proposal": "point-mass"}
    subject = method(name, {**options, **rule}, family)
    kept = []
    for seed in range(2):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        kept += [step.accepted for step in check(subject, random_ids(8, VOCAB, seed), sampling, 32)]
    assert sum(kept) > 0 and min(kept) == 0, "the case has to see acceptance and rejection"


def test_attention_span_of_a_drafter():
    """Drafters trained on short spans see only so far back; replay has to as well."""
    for name, options in (("spd", {"n": 4}), ("ppsd", {"n": 4}), ("eagle3", {"m": 5})):
        subject = method(name, options, "llama")
        module = {"spd": "module", "ppsd": "head", "eagle3": "head"}[name]
        inner = getattr(subject, module)
        inner.config = dataclasses.replace(inner.config, window=5)
        check(subject, random_ids(12, VOCAB, 1), SamplingParams(), 40)


def test_what_cannot_be_replayed_says_so():
    sampled = SamplingParams(temperature=1.0)
    assert not method("spd", {"n": 4, "width": 4}, "llama").can_replay(SamplingParams())
    tree = method("eagle3", {"width": 2, "proposal": "sampled"}, "llama")
    assert tree.can_replay(SamplingParams()) and not tree.can_replay(sampled)
