"""A target, methods and prompts without a model, for tests of the machinery around them.

The target's next token is a hash of the tokens before it, so every output is reproducible, differs
per prompt and needs no weights.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from harness.execution import losslessness, plan, witness
from harness.execution.losslessness import Doubt, Verdict
from methods import registry
from methods.core import DecodeResult, SamplingParams, Step
from methods.errors import UsageError
from methods.interface import DecodingMethod
from methods.models import passes
from methods.models.passes import PassLog

DIFFERS = Verdict("mismatch", Doubt(position=3, token=1, best=2, logit=1.0, gap=0.5, allowed=0.25))
"""What the fake target says of every output that is not its own."""

VOCAB = 97
LAYERS = 8
PAUSE_S = 0.0


@dataclass(frozen=True)
class FakePrompt:
    benchmark: str
    prompt_id: str
    category: str
    turns: tuple[str, ...]
    reference: None = None


@dataclass(frozen=True)
class FakeSource:
    kind: str = "dir"
    location: str = "nowhere"
    sha256: str = "5" * 64


@dataclass(frozen=True)
class FakeSet:
    benchmark: str
    prompts: tuple[FakePrompt, ...]
    source: FakeSource = FakeSource()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(repr(self.prompts).encode()).hexdigest()


class FakeTokenizer:
    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = False) -> str:
        return " ".join(map(str, tokens))


class Clock:
    """The harness's clock around decode calls. The fake methods stop it and move it themselves."""

    def __init__(self) -> None:
        self.now: float | None = None
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.perf_counter() + self.ahead if self.now is None else self.now

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.now = self()
        try:
            yield
        finally:
            self.ahead, self.now = self.now - time.perf_counter(), None

    def move(self, seconds: float) -> None:
        assert self.now is not None
        self.now += seconds


CLOCK = Clock()


class FakeTarget:
    """Its layers run as often as the fake methods say."""

    name = "fake"
    hf = SimpleNamespace(config=SimpleNamespace(_attn_implementation="none"))
    tokenizer = FakeTokenizer()
    num_layers = LAYERS
    context = 10_000
    stop_ids = (0,)

    def __init__(self) -> None:
        self.passes = PassLog()

    def run(self, start: int, tokens: int, seconds: float) -> None:
        """A pass of all layers."""
        for layer in range(self.num_layers):
            self.passes.ran(layer, start, tokens)
        CLOCK.move(seconds)

    def fingerprint(self) -> dict[str, Any]:
        return {"name": self.name, "weights": "f" * 64}


def next_token(prefix: Sequence[int], sampling: SamplingParams) -> int:
    seed = "" if sampling.greedy else str(sampling.seed)
    digest = hashlib.sha256(f"{list(prefix)}{seed}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % VOCAB


class FakeMethod(DecodingMethod):
    """Decodes ``block`` tokens per step, in a hundredth of a second each."""

    block = 1

    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
    ) -> DecodeResult:
        with CLOCK.stopped():
            return self.decoded(prompt_ids, sampling, max_new_tokens, stop_ids)

    def decoded(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int],
    ) -> DecodeResult:
        tokens: list[int] = []
        while len(tokens) < max_new_tokens and not (tokens and tokens[-1] in stop_ids):
            tokens.append(self.token([*prompt_ids, *tokens], sampling))
        time.sleep(PAUSE_S)
        count = max(len(tokens) - 1, 0)
        decode_s = count / self.block / 100
        self.target.run(0, len(prompt_ids), 0.25)
        for start in range(0, count, self.block):
            passes = -(-count // self.block)
            self.target.run(len(prompt_ids) + start, self.block, decode_s / passes)
        return DecodeResult(
            tokens=tokens,
            steps=self.steps(count),
            prefill_s=0.25,
            decode_s=decode_s,
            finish_reason="stop" if tokens and tokens[-1] in stop_ids else "length",
        )

    def token(self, prefix: Sequence[int], sampling: SamplingParams) -> int:
        return next_token(prefix, sampling)

    def steps(self, count: int) -> list[Step]:
        sizes = [min(self.block, count - start) for start in range(0, count, self.block)]
        return [
            Step(
                drafted=self.block - 1,
                accepted=size - 1,
                emitted=size,
                target_layers=LAYERS,
                draft_layers=0 if self.block == 1 else 2,
                depth=min(size, self.block - 1),
                nodes=(self.block,),
                phases={"target": 0.001},
            )
            for size in sizes
        ]


class FakeAR(FakeMethod):
    name = "autoregressive"


@dataclass(frozen=True)
class FakeOptions:
    n: int = 4
    width: int = 1
    rate: float = 0.5
    anchors: tuple[int, ...] = (0, 4)
    checkpoint: str | None = None
    untrained: bool = False


class FakeDraft(FakeMethod):
    name = "fake-draft"
    Options = FakeOptions
    block = 3

    def __init__(self, target: Any, options: Any) -> None:
        super().__init__(target, options)
        if not 1 <= options.n <= target.num_layers:
            raise UsageError(f"n must be in 1..{target.num_layers}, got {options.n}")

    def describe(self) -> dict[str, Any]:
        return {"checkpoint": self.options.checkpoint}


class FakeStored(FakeDraft):
    """The preset names a checkpoint for it."""

    name = "fake-stored"


class FakeWrong(FakeMethod):
    """Not lossless: its fourth token is another one."""

    name = "fake-wrong"

    def decode(self, *args: Any, **kwargs: Any) -> DecodeResult:
        result = super().decode(*args, **kwargs)
        result.tokens[3:4] = [(token + 1) % VOCAB for token in result.tokens[3:4]]
        return result


class FakeBroken(FakeMethod):
    """Fails on every other prompt."""

    name = "fake-broken"

    def decode(self, prompt_ids: Sequence[int], *args: Any, **kwargs: Any) -> DecodeResult:
        if prompt_ids[-1] % 2:
            raise RuntimeError("odd prompt\nsecond line")
        return super().decode(prompt_ids, *args, **kwargs)


class FakeMiscount(FakeMethod):
    """Its steps do not add up to its tokens."""

    name = "fake-miscount"

    def steps(self, count: int) -> list[Step]:
        return super().steps(count)[:-1]


class FakeEnding(FakeMethod):
    """On every other prompt it ends the process, or never comes back."""

    end: Callable[[], Any]

    def decode(self, prompt_ids: Sequence[int], *args: Any, **kwargs: Any) -> DecodeResult:
        if prompt_ids[-1] % 2:
            type(self).end()
        return super().decode(prompt_ids, *args, **kwargs)


class FakeExits(FakeEnding):
    name = "fake-exits"
    end = staticmethod(lambda: sys.exit(0))


class FakeLeaves(FakeEnding):
    name = "fake-leaves"
    end = staticmethod(lambda: os._exit(0))


class FakeHangs(FakeEnding):
    name = "fake-hangs"
    end = staticmethod(lambda: time.sleep(1000))


class FakeStuck(FakeEnding):
    """In a call that hears no signals."""

    name = "fake-stuck"
    end = staticmethod(lambda: any(itertools.repeat(False)))


METHODS: dict[str, type[FakeMethod]] = {
    cls.name: cls
    for cls in (
        *(FakeAR, FakeDraft, FakeStored, FakeWrong, FakeBroken, FakeMiscount),
        *(FakeExits, FakeLeaves, FakeHangs, FakeStuck),
    )
}


def load_prompts(name: str, data_dir: Any, count: int | None) -> FakeSet:
    known = ("mt_bench", "gsm8k", "humaneval")
    if name not in known:
        raise UsageError(f"unknown benchmark {name!r}; known: {', '.join(known)}")
    prompts = [FakePrompt(name, f"{name}/{i}", "any", (f"question {i}", f"then {i}")) for i in range(4)]
    return FakeSet(name, tuple(prompts[:count]))


def load_preset(name: str) -> Any:
    if name != "smollm2-135m":
        raise UsageError(f"unknown preset {name!r}; known: smollm2-135m")
    return SimpleNamespace(
        name=name,
        target="fake",
        dtype="float32",
        num_layers=LAYERS,
        stop_ids="generation_config",
        thinking=False,
        chat_template=None,
        checkpoints={"fake-stored": "preset.safetensors"},
    )


def render(tokenizer: Any, messages: Any, template: str | None = None, thinking: bool = False) -> list[int]:
    return [ord(char) % VOCAB for message in messages for char in message["role"][0] + message["content"]]


def describe_chat(tokenizer: Any, template: str | None, thinking: bool) -> dict[str, Any]:
    return {"name": template, "template_sha256": "template", "thinking": thinking}


def benchmark_version(name: str) -> int:
    return 3


def score(prompt: Any, text: str, execute_code: bool) -> float | None:
    return 1.0 if prompt.benchmark == "gsm8k" else None


def install(setattr_: Any = setattr) -> None:
    """Put the fakes in place of the real target, prompts and methods, whatever is registered by now."""
    setattr_(registry, "_discovered", True)
    setattr_(registry, "BUILTIN_MODULES", {})
    setattr_(registry, "_registered_in", {})
    setattr_(registry, "_methods", dict(METHODS))
    setattr_(registry, "_registered_in", {})
    setattr_(plan, "load_target", lambda name, dtype: FakeTarget())
    setattr_(losslessness, "judge", lambda *_: DIFFERS)
    for module in (witness, passes):
        setattr_(module, "perf_counter", CLOCK)
    for function in (load_prompts, load_preset, render, describe_chat, benchmark_version, score):
        setattr_(plan, function.__name__, function)
