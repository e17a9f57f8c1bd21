"""Random decode calls, each a function of a seed and an index, compared with plain decoding."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.checks import worlds
from harness.checks.divergence import compare
from harness.checks.state_checks import facts
from methods import registry
from methods.core import DecodeResult, SamplingParams
from methods.decoding.rounds import RoundMethod
from methods.decoding.trace import chain_fault, output_fault
from methods.errors import ENDS_A_RUN, describe_failure
from methods.interface import DecodingMethod
from methods.models.partition import split_layers
from methods.models.seal import Seal
from methods.models.target import Target
from methods.pipeline.method import PipelineMethod
from methods.testing.scripted import sometimes
from methods.testing.scripting import script_output
from methods.testing.tiny import FAMILIES

TABLE = "table"


@dataclass(frozen=True)
class Case:
    """One decode call. ``right`` is the share of right drafts of a script in the drafter's place, None
    for the method's own drafter."""

    method: str
    options: Mapping[str, Any]
    family: str
    vocab: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    cap: int
    stop_ids: tuple[int, ...]
    right: float | None
    bfloat16: bool

    @property
    def target(self) -> Target:
        if self.family == TABLE:
            return worlds.table(self.vocab)
        return worlds.family(self.family, self.vocab, torch.bfloat16 if self.bfloat16 else torch.float32)


@dataclass
class Totals:
    """``prompts`` decoded, ``compared`` tokens equal to plain decoding's, ``sampled`` tokens whose
    seed was tried twice, and cases by method and by how they compared."""

    prompts: int = 0
    compared: int = 0
    sampled: int = 0
    accepted: int = 0
    methods: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.prompts} prompts, {self.compared} tokens compared with plain decoding, "
            f"{self.sampled} sampled tokens decoded twice, {self.accepted} drafts accepted"
        )

    def as_json(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("prompts", "compared", "sampled", "accepted")}
        return {**numbers, "methods": dict(self.methods), "statuses": dict(self.statuses)}


def draw(seed: int, index: int) -> Case:
    """The case of that number, the same on every machine."""
    rng = random.Random(f"{seed}:{index}")
    family = rng.choice([*FAMILIES, TABLE])
    vocab = rng.choice([5, 6, 8]) if family == TABLE else rng.choice(worlds.VOCABULARIES)
    method = rng.choice(["ngram", "eagle3", "ppsd", "spd", "spd"])
    temperature = rng.choice([0.0, 0.0, 0.0, 0.7, 1.0])
    sampling = SamplingParams(
        temperature,
        top_k=rng.choice([0, 0, 2, 4]) if temperature else 0,
        top_p=rng.choice([1.0, 1.0, 0.6, 0.9]) if temperature else 1.0,
        seed=rng.randrange(1 << 31),
    )
    return Case(
        method=method,
        options=_options(rng, method),
        family=family,
        vocab=vocab,
        prompt=tuple(rng.randrange(vocab) for _ in range(rng.choice([1, 2, 3, 7, 20, 45]))),
        sampling=sampling,
        cap=rng.choice([0, 1, 2, 3, 9, 17, 40]),
        stop_ids=tuple(rng.sample(range(vocab), rng.choice([0, 0, 0, 1, 2]))),
        right=rng.choice([None, 0.5, 0.8, 0.95]),
        bfloat16=temperature == 0 and family != TABLE and rng.random() < 0.2,
    )


def _options(rng: random.Random, method: str) -> dict[str, Any]:
    if method == "ngram":
        return {"m": rng.randint(1, 8), "longest": rng.randint(1, 4)}
    width = rng.choice([1, 1, 2, 3, 5])
    options: dict[str, Any] = {"untrained": True, "width": width}
    rules = [None, "point-mass"] if width > 1 and method != "eagle3" else [None, "point-mass", "sampled"]
    options["proposal"] = rng.choice(rules)
    if method == "eagle3":
        m, tree = rng.randint(1, 7), rng.choice(["beam", "dynamic"])
        ranked = width > 1 and options["proposal"] != "sampled"
        return options | {"m": m, "tree": tree if ranked else "beam"}
    n = rng.randint(1, worlds.LAYERS)
    options["n"] = n
    if rng.random() < 0.3:
        options["stage_layers"] = ";".join(map(str, _uneven(rng, n)))
    if method == "ppsd":
        return options | {"head_class": rng.choice([None, "mlp", "linear"])}
    return options | {
        "draft_layers": rng.randint(1, 3),
        "schedule": rng.choice(["pre-step", "post-step"]),
    }


def _uneven(rng: random.Random, n: int) -> list[int]:
    layers = split_layers(worlds.LAYERS, n)
    for _ in range(n):
        smaller, larger = rng.randrange(n), rng.randrange(n)
        if layers[smaller] > 1:
            layers[smaller] -= 1
            layers[larger] += 1
    return layers


def run_case(case: Case, totals: Totals) -> str | None:
    """Decode and compare; the fault, None if there is none. What a method raises is a fault, and so is a
    target that is not what it was."""
    totals.prompts += 1
    totals.methods[case.method] += 1
    seal = Seal(case.target, code={})  # no plugin can be here that replaces functions
    fault = _fault(case, totals)
    difference = seal.difference()
    if difference is None:
        return fault
    worlds.forget()  # or the cases to come would run on it
    return f"the target was changed: {difference}"


def _fault(case: Case, totals: Totals) -> str | None:
    try:
        return _run(case, totals)
    except ENDS_A_RUN:
        raise
    except BaseException as error:
        return describe_failure(error, registry.get(case.method).__module__)


def _run(case: Case, totals: Totals) -> str | None:
    target, prompt, sampling = case.target, list(case.prompt), case.sampling
    reference = worlds.reference(target)
    expected = reference.decode(prompt, sampling, case.cap, case.stop_ids)
    method = _method(case, target, reference)
    result = method.decode(prompt, sampling, case.cap, case.stop_ids)
    totals.accepted += sum(step.accepted for step in result.steps)
    if fault := _trace_fault(case, method, result):
        return fault
    if sampling.greedy or _point_mass(case):
        return _compare(case, expected, result, totals)
    totals.sampled += len(result.tokens)
    totals.statuses["sampled"] += 1
    again = method.decode(prompt, sampling, case.cap, case.stop_ids)
    return None if facts(again) == facts(result) else "the same seed gives another output or trace"


def _method(case: Case, target: Target, reference: DecodingMethod) -> DecodingMethod:
    method = registry.create(case.method, target, dict(case.options))
    assert isinstance(method, (RoundMethod, PipelineMethod))
    # Scripted drafts are no draws of a law: with a sampled rule they would have to be.
    if case.right is not None and (case.sampling.greedy or _point_mass(case)):
        output = reference.decode(case.prompt, case.sampling, case.cap).tokens
        script_output(method, output, sometimes(case.right, seed=case.sampling.seed), m=5)
    return method


def _point_mass(case: Case) -> bool:
    """Whether the target's own draw decides, so that the tokens are plain decoding's at any T."""
    if case.method == "ngram":
        return True
    rule = case.options["proposal"]
    return rule == "point-mass" or (rule is None and case.options["width"] > 1)


def _trace_fault(case: Case, method: DecodingMethod, result: DecodeResult) -> str | None:
    if fault := output_fault(result, case.cap, case.stop_ids):
        return fault
    if result.finish_reason == "length" and len(result.tokens) != case.cap:
        return f"{len(result.tokens)} tokens and no stop id with a cap of {case.cap}"
    if isinstance(method, PipelineMethod) and case.options["width"] == 1:
        return chain_fault(result, len(method.stage_layers))
    return None


def _compare(case: Case, expected: DecodeResult, result: DecodeResult, totals: Totals) -> str | None:
    totals.compared += len(result.tokens)
    if result.tokens == expected.tokens:
        totals.statuses["exact"] += 1
        return None
    if case.family == TABLE or case.sampling.temperature > 0:
        totals.statuses["mismatch"] += 1
        return f"{result.tokens} is not plain decoding's {expected.tokens}"
    found = compare(case.target, case.prompt, expected.tokens, result)
    totals.statuses[found.status] += 1
    return None if found.status == "tie" else str(found.divergence or "ends at another place")
