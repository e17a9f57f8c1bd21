"""What a benchmark hands to a run: prompts, where they came from, how they are scored."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

SourceKind = Literal["dir", "hub", "wheel"]
TurnPolicy = Literal["first", "all"]


@dataclass(frozen=True, slots=True)
class CodeProblem:
    """A HumanEval problem: what its check program needs."""

    task_id: str
    prompt: str
    entry_point: str
    test: str


Reference = str | tuple[str, ...] | CodeProblem | None
"""What an answer is scored against: GSM8K the final number as text, HumanEval the problem, MT-Bench
the reference answer of each turn (for a judge), None where the source has nothing."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question of a benchmark. ``turns`` are the user's messages, at least one, none empty."""

    benchmark: str
    prompt_id: str
    category: str
    turns: tuple[str, ...]
    reference: Reference = None

    def select(self, policy: TurnPolicy) -> tuple[str, ...]:
        """The user messages to be answered: only the first (the paper's policy) or all."""
        return self.turns[:1] if policy == "first" else self.turns


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Where the prompts of one benchmark came from.

    ``sha256`` is the hash of the bytes the prompts were read from (for the hub: of its rows as
    sorted-key JSON lines). ``subset`` says whether the prompts are the paper's, in its order, or
    whatever the source holds, in the source's order; ``count`` is their number before a cap.
    """

    kind: SourceKind
    location: str
    sha256: str
    revision: str | None
    subset: Literal["paper", "source order"]
    count: int


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one run of one benchmark."""

    benchmark: str
    prompts: tuple[Prompt, ...]
    source: PromptSource

    @property
    def sha256(self) -> str:
        """Hash of the prompts themselves: equal for equal prompts, whichever source they came from."""
        lines = (json.dumps(asdict(prompt), sort_keys=True) for prompt in self.prompts)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
