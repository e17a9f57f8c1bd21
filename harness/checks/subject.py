"""The method a check looks at, with its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.checks import watch
from harness.checks.outcome import NotApplicable
from methods import registry
from methods.decoding.rounds import RoundMethod
from methods.interface import DecodingMethod
from methods.models.target import Target
from methods.pipeline.method import PipelineMethod


@dataclass(frozen=True)
class Subject:
    """A registered ``method`` and the ``options`` it is checked with."""

    label: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, method: str, options: Mapping[str, Any] | None = None, label: str | None = None) -> Subject:
        """``UsageError`` if there is no such method or it has no such option.

        A drafter is random unless a checkpoint is named: losslessness must not depend on it.
        """
        given = dict(options or {})
        known = registry.option_names(method)
        registry.check_options(method, given)
        if "untrained" in known and not given.keys() & {"untrained", "checkpoint"}:
            given["untrained"] = True
        registry.get(method).Options(**given)  # refuses what it can before anything is built
        shown = " ".join(f"{key}={value}" for key, value in given.items() if key != "untrained")
        return cls(label or f"{method} {shown}".strip(), method, given)

    def has(self, option: str) -> bool:
        return option in registry.option_names(self.method)

    @property
    def given_n(self) -> int | None:
        return self.options.get("n")

    @property
    def width(self) -> int:
        default = getattr(registry.get(self.method).Options(), "width", 1) if self.has("width") else 1
        return self.options.get("width", default)

    def stages(self, wanted: tuple[int, ...], layers: int = 8) -> tuple[int | None, ...]:
        """The n to try: the one that was given, else those ``wanted`` that the layers allow."""
        if not self.has("n"):
            return (None,)
        if self.given_n is not None:
            return (self.given_n,)
        return tuple(n for n in wanted if n <= layers)

    def build(self, target: Target, n: int | None = None, **changes: Any) -> DecodingMethod:
        """The method on ``target``, in one process; ``n`` only counts where none was given. The target is
        watched from here on: see ``harness.checks.watch``."""
        options = {key: value for key, value in self.options.items() if key not in ("runtime", "layout")}
        if self.has("n") and n is not None:
            options.setdefault("n", n)
        watch.see(target)
        return registry.create(self.method, target, options | changes)

    def rounds(self, target: Target) -> RoundMethod:
        """The method as a ``RoundMethod``; ``NotApplicable`` if it is none."""
        method = self.build(target)
        if not isinstance(method, RoundMethod):
            raise NotApplicable("no draft-and-verify rounds")
        return method

    def scriptable(self, target: Target, n: int | None = None) -> RoundMethod | PipelineMethod:
        """The method as one whose drafter can be replaced; ``NotApplicable`` if it cannot."""
        method = self.build(target, n)
        if not isinstance(method, (RoundMethod, PipelineMethod)):
            raise NotApplicable("needs a RoundMethod (methods.decoding.rounds) or a pipeline")
        return method
