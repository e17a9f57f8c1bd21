"""The contract between decoding methods and everything that runs or measures them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from methods.core import DecodeResult, SamplingParams, Step
from methods.errors import UsageError

if TYPE_CHECKING:
    from methods.decoding.replay import KnownOutput, Replayed

__all__ = ["DecodeResult", "DecodingMethod", "NoOptions", "SamplingParams", "Step"]


@dataclass(frozen=True)
class NoOptions:
    """The options of a method that has none."""


class DecodingMethod(ABC):
    """A way to decode from a target. Register subclasses with ``methods.registry.register``.

    ``Options`` is a frozen dataclass; its fields are the method's command-line options (``--n``,
    ``--draft-layers`` ...). A value that cannot be used raises ``UsageError`` from ``__init__``.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions

    def __init__(self, target: Any, options: Any) -> None:
        self.target = target
        self.options = options

    @abstractmethod
    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
    ) -> DecodeResult:
        """Decode up to ``max_new_tokens`` tokens, ending with the first of ``stop_ids``.

        Raises ``UsageError`` for an empty prompt or one longer than the target's context.
        """

    @classmethod
    def has_ranks(cls, options: Any) -> bool:
        """Whether ``decode`` under ``options`` runs the target in processes of the method's own, which a
        launcher may have started and whose cycles can be timed. ``describe`` then tells of ``ranks``, how
        many, and ``threads``, what each computes with. Optional."""
        return False

    @property
    def in_process(self) -> bool:
        """Whether the target's layers run in this process, where they are counted; where they do not, a
        trace is taken as the method reports it."""
        return not self.has_ranks(self.options)

    def can_replay(self, sampling: SamplingParams) -> bool:
        """Whether ``replay`` is there for outputs decoded under ``sampling``."""
        return False

    def replay(self, known: KnownOutput) -> Replayed:
        """The trace of ``decode`` on a prompt whose AR output is known, without decoding: see
        ``methods.decoding.replay``. Optional."""
        raise UsageError(f"method {self.name!r} cannot be replayed; it has to be run in mode decode")

    def describe(self) -> dict[str, Any]:
        """What a record must say of this method besides its options: proposal rule, checkpoint
        hash, whether the drafter is untrained. JSON values only."""
        return {}
