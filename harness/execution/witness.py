"""A decode call as the harness saw it: its own clock around it, the target's own count inside it.

Seconds, layers and steps come from the method, and every figure is made of them. What a method says
of itself and what was seen must fit, or the call has failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from methods.clock import perf_counter, thread_time
from methods.core import DecodeResult, SamplingParams
from methods.decoding.trace import by_phase, counted_fault, is_measured, layers_fault, output_fault
from methods.interface import DecodingMethod
from methods.models.passes import Pass

if TYPE_CHECKING:
    from methods.models.target import Target

CLOCKS_S, CLOCKS_SHARE = 0.001, 0.001
"""Two clocks that should show the same may differ by these, absolute and relative, together."""
UNCLAIMED_SHARE = 0.05
"""Of a call's seconds, what a method may leave out of its prefill and decode seconds."""
STALL_S = 0.1
"""And what of it may be waiting: a process may lose its core just before its clock starts or after it
ends. Between the first pass of the target and the last one nothing is excused by it."""


class TraceError(RuntimeError):
    """A method's result contradicts the contract of ``DecodeResult``, or what the harness saw."""


@dataclass(frozen=True, slots=True)
class Witnessed:
    """``result`` of a call that took ``seconds``, of which this thread had no core for ``waited_s``, and
    the target's ``passes`` in it: None where they ran in other processes. The first of those calls, which
    ``begins`` them, may take longer than it says."""

    result: DecodeResult
    seconds: float
    waited_s: float
    passes: Sequence[Pass] | None
    prompt_tokens: int
    num_layers: int
    begins: bool = False

    def fault(self, max_new_tokens: int, stop_ids: Sequence[int]) -> str | None:
        """The first thing that is wrong with the result, None if nothing is."""
        return output_fault(self.result, max_new_tokens, stop_ids) or self.trace_fault() or self.clock_fault()

    def trace_fault(self) -> str | None:
        """C34. Where nothing could be counted, only what no target of so many layers could do."""
        steps = self.result.steps
        fault = layers_fault(steps, self.num_layers)
        if fault is not None or self.passes is None:
            return fault
        return counted_fault(steps, self.passes, self.prompt_tokens, self.num_layers)

    def clock_fault(self, stall_s: float = STALL_S) -> str | None:
        """C33. A method's clock runs within this one, so it cannot show more; and it runs while the
        target does, so it cannot show less than lies between the target's passes."""
        prefill_s, decode_s = self.result.prefill_s, self.result.decode_s
        for name, value in (("prefill_s", prefill_s), ("decode_s", decode_s)):
            if not is_measured(value):
                return f"{name} is {value!r}, not a number of seconds >= 0"
        claimed = prefill_s + decode_s
        if _longer(claimed, self.seconds):
            return f"prefill_s + decode_s are {claimed:.4f} s of a call that took {self.seconds:.4f} s"
        prefill, decoding = by_phase(self.passes or (), self.prompt_tokens)
        for name, value, passes in (("prefill_s", prefill_s, prefill), ("decode_s", decode_s, decoding)):
            ran = passes[-1].last_s - passes[0].first_s if passes else 0.0
            if _longer(ran, value):
                return f"{name} is {value:.4f}, but the target's passes in it took {ran:.4f} s and more"
        allowed = UNCLAIMED_SHARE * self.seconds + CLOCKS_S + min(stall_s, self.waited_s)
        if not self.begins and claimed < self.seconds - allowed:
            return f"prefill_s + decode_s are {claimed:.4f} s only of a call that took {self.seconds:.4f} s"
        phases = sum(sum(step.phases.values()) for step in self.result.steps)
        if self.passes is not None and _longer(phases, decode_s):
            return f"the phases of the steps sum to {phases:.4f} s, decode_s is {decode_s:.4f}"
        return None


def _longer(seconds: float, limit: float) -> bool:
    return seconds > limit * (1 + CLOCKS_SHARE) + CLOCKS_S


class Witness:
    """Has ``method`` decode on ``target`` under the harness's clock, with the target's passes counted."""

    def __init__(self, method: DecodingMethod, target: Target) -> None:
        self._method, self._target = method, target
        self._counts = method.in_process
        self._begun = self._counts

    def decode(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        stop_ids: Sequence[int] = (),
    ) -> Witnessed:
        """A call of the method. Whatever it raises passes through."""
        with self._target.passes.recording() as recording:
            began, started = thread_time(), perf_counter()
            result = self._method.decode(prompt_ids, sampling, max_new_tokens, stop_ids)
            seconds = perf_counter() - started
            waited_s = max(0.0, seconds - (thread_time() - began))
        begins, self._begun = not self._begun, True
        passes = recording.passes if self._counts else None
        return Witnessed(result, seconds, waited_s, passes, len(prompt_ids), self._target.num_layers, begins)
