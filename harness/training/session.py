"""One training run in its directory: start or continue, log, evaluate, checkpoint, save."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from threading import Event, current_thread, main_thread
from time import perf_counter
from typing import Any

import torch

from harness.records.manifest import write_json
from harness.records.provenance import package_commit, package_versions
from harness.training.corpus import Corpus
from methods.drafters.tensors import read_pickle, sync
from methods.errors import UsageError
from methods.training.trainer import DATA, TARGET, StepReport, Trainer

STATE, CURVE, HEADS, SUMMARY = "state.pt", "curve.jsonl", "heads", "summary.json"
_REPORT_S = 20.0
_CHECKPOINT_S = 300.0


@dataclass(slots=True)
class _Window:
    """What happened since the last report."""

    start: float
    tokens: int = 0
    losses: dict[str, float] | None = None


class TrainingSession:
    """Runs ``trainer`` to its budget. Only the process with ``rank`` 0 writes."""

    def __init__(
        self,
        trainer: Trainer,
        corpus: Corpus,
        directory: Path,
        about: Mapping[str, Any],
        eval_every: int,
        rank: int,
    ) -> None:
        self._trainer = trainer
        self._corpus = corpus
        self._directory = directory
        # The code of this start, not what lies in the work tree hours later.
        self._about = {**about, "code": package_commit()}
        self._eval_every = eval_every
        self._rank = rank
        self._evaluated: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        """Train until the budget is spent; returns the summary.

        The first SIGINT or SIGTERM ends the run after the step in hand, saved, with
        ``KeyboardInterrupt``: between heads of one step there is no state to continue from.
        """
        self._resume()
        trainer = self._trainer
        last_saved = perf_counter()
        window = _Window(perf_counter())
        with _stop_requests() as stop:
            while not trainer.done and not trainer.any_rank(stop.is_set()):
                if self._due(trainer.progress.tokens):
                    self._evaluate()
                report = trainer.step()
                self._log(report)
                window = self._report(report, window)
                if perf_counter() - last_saved >= _CHECKPOINT_S:
                    self._save()
                    last_saved = perf_counter()
            if trainer.done:
                self._evaluate()
            self._save()
        if not trainer.done:
            raise KeyboardInterrupt
        return self._summary()

    def _due(self, tokens: int) -> bool:
        last = self._evaluated.get("tokens", -1)
        return last < 0 or tokens // self._eval_every > last // self._eval_every

    def _resume(self) -> None:
        path = self._directory / STATE
        if not path.exists():
            return
        try:
            state = read_pickle(path)
            self._trainer.load_state_dict(state["trainer"])
            self._evaluated = state["evaluated"]
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"cannot continue from {path}; delete it to train from the start ({error})"
            ) from error
        if self._rank == 0:
            self._cut_curve(state["trainer"]["step"])
            self._say(f"continuing at step {self._trainer.progress.step}")

    def _cut_curve(self, step: int) -> None:
        """Drop what a killed process wrote after its last checkpoint: those steps come again."""
        path = self._directory / CURVE
        lines = path.read_text("utf-8", errors="replace").splitlines() if path.exists() else []
        kept = [line for line in lines if step_of(line) <= step]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(line + "\n" for line in kept), "utf-8")
        os.replace(temporary, path)

    def _log(self, report: StepReport) -> None:
        p = self._trainer.progress
        self._write({"step": p.step, "tokens": p.tokens, "loss": report.losses, "norm": report.norms})

    def _evaluate(self) -> None:
        p = self._trainer.progress
        found = self._trainer.evaluate(self._corpus.held_out) if self._corpus.held_out else {}
        heads = {label: [each.rates() for each in steps] for label, steps in found.items()}
        self._evaluated = {"step": p.step, "tokens": p.tokens, "heads": heads}
        self._write({"step": p.step, "tokens": p.tokens, "held_out": heads})
        for label, steps in heads.items():
            first = steps[0]
            self._say(
                f"held out, {p.tokens} tokens: {label} step acceptance {first['step_acceptance']:.3f}, "
                f"overlap {first['overlap']:.3f}, KL {first['kl']:.3f}"
            )

    def _write(self, entry: dict[str, Any]) -> None:
        if self._rank == 0:
            with (self._directory / CURVE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def _report(self, report: StepReport, window: _Window) -> _Window:
        old = window.losses or report.losses
        window.losses = {label: 0.9 * old[label] + 0.1 * loss for label, loss in report.losses.items()}
        window.tokens += report.tokens
        took = perf_counter() - window.start
        if took < _REPORT_S:
            return window
        p, rate = self._trainer.progress, window.tokens / took
        losses = ", ".join(f"{label} {loss:.3f}" for label, loss in window.losses.items())
        self._say(
            f"step {p.step}, {p.tokens}/{self._trainer.config.tokens} tokens, loss {losses}; "
            f"{rate:.0f} tok/s, {self._shares()}, {self._left(rate):.0f} min left"
        )
        return _Window(perf_counter(), losses=window.losses)

    def _left(self, rate: float) -> float:
        """Minutes to the end at ``rate`` tokens a second."""
        left = self._trainer.config.tokens - self._trainer.progress.tokens
        return max(0, left) / max(1e-9, rate) / 60

    def _shares(self) -> str:
        spent = self._trainer.progress.seconds
        total = max(1e-9, sum(spent.values()))
        return "time " + ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in spent.items())

    def _save(self) -> None:
        if self._rank:
            return
        path = self._directory / STATE
        temporary = path.with_suffix(".tmp")
        torch.save({"trainer": self._trainer.state_dict(), "evaluated": self._evaluated}, temporary)
        sync(temporary)
        os.replace(temporary, path)
        for task in self._trainer.tasks:
            task.save(
                self._directory / HEADS / task.label, self._trainer.target, self._provenance(task.label)
            )

    def _provenance(self, label: str) -> dict[str, Any]:
        """What a checkpoint says of its making."""
        p = self._trainer.progress
        return {
            **self._about,
            "tokens_seen": p.tokens,
            "steps": p.step,
            "epochs": self._trainer.batches.epochs(p.step),
            "data": self._corpus.about,
            "held_out": {
                "tokens": self._evaluated.get("tokens"),
                "steps": self._evaluated.get("heads", {}).get(label),
            },
            "trained_together": [task.label for task in self._trainer.tasks],
            "versions": package_versions(),
        }

    def _summary(self) -> dict[str, Any]:
        p = self._trainer.progress
        shared = p.seconds[TARGET] + p.seconds[DATA]
        heads = {}
        for task in self._trainer.tasks:
            seconds = p.seconds[task.label]
            heads[task.label] = {
                "checkpoint": str(self._directory / HEADS / task.label),
                "tok_per_s_head_alone": p.tokens / max(1e-9, seconds),
                "tok_per_s_with_target_pass": p.tokens / max(1e-9, seconds + shared),
                "held_out": self._evaluated["heads"].get(task.label),
            }
        summary = {
            "tokens": p.tokens,
            "steps": p.step,
            "tok_per_s": p.tokens / max(1e-9, p.elapsed),
            "seconds": p.seconds,
            "heads": heads,
        }
        if self._rank == 0:
            write_json(self._directory / SUMMARY, summary)
        return summary

    def _say(self, text: str) -> None:
        if self._rank == 0:
            print(text, file=sys.stderr, flush=True)


def step_of(line: str) -> float:
    """The step a line of the curve belongs to; beyond all for a torn one."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError):
        return float("inf")
    return step if type(step) is int else float("inf")


@contextmanager
def _stop_requests() -> Iterator[Event]:
    """Set by the first SIGINT or SIGTERM; a second one acts as it always did."""
    stop = Event()
    kinds = (signal.SIGINT, signal.SIGTERM)
    if current_thread() is not main_thread():  # only there can a handler be set
        yield stop
        return
    before = {kind: signal.getsignal(kind) for kind in kinds}

    def restore() -> None:
        for kind, handler in before.items():
            signal.signal(kind, handler)

    def request(*_: Any) -> None:
        stop.set()
        restore()

    for kind in kinds:
        signal.signal(kind, request)
    try:
        yield stop
    finally:
        restore()


def configuration(trainer: Trainer, heads: Sequence[Any], corpus: Corpus, recipe: Any) -> dict[str, Any]:
    """What makes two starts the same run: everything that changes a weight."""
    return {
        "target": trainer.target.fingerprint(),
        "heads": [{"method": head.method, **head.options} for head in heads],
        "data": corpus.about,
        "recipe": {**asdict(recipe), "overrides": {k: asdict(v) for k, v in recipe.overrides.items()}},
        "tokens": trainer.config.tokens,
        "seed": trainer.config.seed,
        "draft_vocabulary": sha256(trainer.vocabulary.ids.numpy().tobytes()).hexdigest(),
    }
