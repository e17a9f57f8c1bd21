"""Plain decoding with one fault each, late, long, stateful, forging or mutating: a plugin. Every gate has to
say no to each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from methods.decoding.autoregressive import Autoregressive
from methods.registry import register

SEEN_BY: dict[str, str] = {}
"""The check of ``harness.check`` that has to see it, by the name of the method."""


def planted(check: str):
    """A method of that name whose ``decode`` is the function, which gets itself as it should be."""

    def make(fault):
        class Planted(Autoregressive):
            __doc__ = fault.__doc__

            def decode(self, prompt_ids, sampling, max_new_tokens, stop_ids=()):
                honest = partial(super().decode, sampling=sampling, stop_ids=stop_ids)
                return fault(self, honest, list(prompt_ids), max_new_tokens)

            def can_replay(self, sampling):
                return False

        Planted.__name__ = Planted.__qualname__ = fault.__name__
        SEEN_BY[fault.__name__] = check
        return register(fault.__name__)(Planted)

    return make


# Late in the prompt, late in the output.


@planted("C1")
def prompt_12(method, honest, prompt, cap):
    """Forgets the first token of prompts of 12 and more."""
    return honest(prompt[len(prompt) >= 12 :], max_new_tokens=cap)


@planted("C1")
def prompt_48(method, honest, prompt, cap):
    """The same from 48 tokens on."""
    return honest(prompt[len(prompt) >= 48 :], max_new_tokens=cap)


@planted("C1")
def prompt_520(method, honest, prompt, cap):
    """The same from 520 tokens on."""
    return honest(prompt[len(prompt) >= 520 :], max_new_tokens=cap)


def wrong_token(method, result, place):
    tokens = list(result.tokens)
    if place < len(tokens):
        tokens[place] = (tokens[place] + 1) % method.target.vocab_size
    return replace(result, tokens=tokens)


@planted("C1")
def output_40(method, honest, prompt, cap):
    """Token 40 of the output is another."""
    return wrong_token(method, honest(prompt, max_new_tokens=cap), 40)


@planted("C1")
def output_100(method, honest, prompt, cap):
    """Token 100 of the output is another."""
    return wrong_token(method, honest(prompt, max_new_tokens=cap), 100)


@planted("C1")
def output_130(method, honest, prompt, cap):
    """Token 130 of the output is another."""
    return wrong_token(method, honest(prompt, max_new_tokens=cap), 130)


# Long.


@planted("C1")
def first_chunk(method, honest, prompt, cap):
    """Sees 512 tokens of the prompt, a prefill's chunk."""
    return honest(prompt[:512], max_new_tokens=cap)


@planted("C1")
def window(method, honest, prompt, cap):
    """Sees the last 512 tokens of the prompt."""
    return honest(prompt[-512:], max_new_tokens=cap)


@planted("C1")
def short_of_long_caps(method, honest, prompt, cap):
    """Ends one token early where 128 or more may come."""
    return honest(prompt, max_new_tokens=cap - (cap >= 128))


# Stateful.


@planted("C31")
def answers_by_length(method, honest, prompt, cap):
    """Answers what it answered to another prompt of that length."""
    known = method.__dict__.setdefault("known", {})
    if (len(prompt), cap) not in known:
        known[len(prompt), cap] = honest(prompt, max_new_tokens=cap)
    return known[len(prompt), cap]


@planted("C31")
def remembers(method, honest, prompt, cap):
    """Decodes behind the last token of the prompt before."""
    before, method.before = getattr(method, "before", []), prompt[-1:]
    return honest(before + prompt, max_new_tokens=cap)


@planted("C31")
def every_third(method, honest, prompt, cap):
    """Forgets the first token of every third prompt."""
    method.calls = getattr(method, "calls", 0) + 1
    forgets = method.calls % 3 == 0 and len(prompt) > 1
    return honest(prompt[forgets:], max_new_tokens=cap)


# Forging.


@planted("C33")
def no_seconds(method, honest, prompt, cap):
    """Decodes in no time."""
    return replace(honest(prompt, max_new_tokens=cap), decode_s=0.0)


@planted("C33")
def negative_seconds(method, honest, prompt, cap):
    """Has its tokens before it is asked."""
    return replace(honest(prompt, max_new_tokens=cap), prefill_s=-1.0)


@planted("C33")
def nan_seconds(method, honest, prompt, cap):
    """Decodes in seconds that compare with nothing."""
    return replace(honest(prompt, max_new_tokens=cap), decode_s=float("nan"))


def layers(result, share):
    steps = [replace(step, target_layers=step.target_layers * share) for step in result.steps]
    return replace(result, steps=steps)


@planted("C34")
def half_the_layers(method, honest, prompt, cap):
    """Says that a token takes half the target."""
    return layers(honest(prompt, max_new_tokens=cap), 0.5)


@planted("C34")
def no_layers(method, honest, prompt, cap):
    """Says that a token takes no target at all."""
    return layers(honest(prompt, max_new_tokens=cap), 0.0)


# Mutating.


def weight(method):
    """A weight of a real target; None on a table."""
    hf = getattr(method.target, "hf", None)
    return hf and hf.model.layers[-1].mlp.down_proj.weight.data


@planted("C32")
def coarse_weights(method, honest, prompt, cap):
    """Rounds a weight of the target, whoever decodes with it."""
    if (data := weight(method)) is not None:
        data.copy_((data * 8).round() / 8)
    return honest(prompt, max_new_tokens=cap)


@planted("C32")
def drifting_weights(method, honest, prompt, cap):
    """Changes a number of the target from the second prompt on."""
    method.calls = getattr(method, "calls", 0) + 1
    if method.calls > 1 and (data := weight(method)) is not None:
        data[0, 0] += 0.5
    return honest(prompt, max_new_tokens=cap)


@planted("C32")
def other_tokenizer(method, honest, prompt, cap):
    """Has the next prompt begin with other words."""
    if (tokenizer := getattr(method.target, "tokenizer", None)) is not None:
        tokenizer.chat_template = f"Be right. {tokenizer.chat_template}"
    return honest(prompt, max_new_tokens=cap)
