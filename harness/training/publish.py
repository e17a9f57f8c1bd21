"""``python -m harness.train publish``: a trained head in the form that is handed on, with what it measures.

Tensors become bfloat16, head rows that training left as the target's are not stored, and the JSON
gets the head's step acceptance, L_acc and S0 on benchmark prompts, none of which is training data.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from harness.analysis.summary import OVERALL, rows
from harness.cli.arguments import parse
from harness.execution import replay
from harness.execution.plan import make_plan
from harness.training.session import CURVE, step_of
from methods.drafters import checkpoint
from methods.drafters.checkpoint import HEAD, DraftConfig
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.models.target import Target

PROMPTS, NEW_TOKENS = 8, 128
"""Per benchmark, and the cap on each answer, of the figures in a published checkpoint."""

_FIGURES = ("step_acceptance", "L_acc", "S0", "S")
_EAGLE3_STEPS = 7
_POINTS = 32


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """The checkpoint directory ``head`` is published as ``out``, in bfloat16 or with ``int8`` matrices;
    runs that measure it go below ``runs``."""

    head: Path
    out: Path
    preset: str
    runs: Path
    int8: bool = False


def publish(request: PublishRequest, target: Target) -> dict[str, Any]:
    """Write ``request.out``; returns the figures that went into its JSON.

    Raises ``UsageError`` unless ``request.head`` is a head of a training run for ``target``, and for an
    ``out`` among that run's heads.
    """
    heads = request.head.absolute().parent
    run = heads.parent
    if not (run / CURVE).is_file():
        raise UsageError(f"{run} is no training run: it has no {CURVE}; give a directory RUN/heads/LABEL")
    if request.out.resolve().is_relative_to(heads.resolve()):
        raise UsageError(f"--out {request.out} lies in {heads}, whose heads stay as they are; give another")
    config, tensors, _ = checkpoint.read(request.head, checkpoint.method_of(request.head))
    drawn = curve(run, config.training.get("steps", sys.maxsize))
    checkpoint.check_target(config, target.shape, str(request.head))
    if HEAD in tensors:
        rows_ = DraftVocabulary(config.vocab, config.draft_ids).rows(target.head_weight)
        if torch.equal(tensors[HEAD].to(torch.bfloat16), rows_.to(torch.bfloat16).cpu()):
            del tensors[HEAD]
            config = dataclasses.replace(config, tied_head=True)
    if request.int8:
        tensors = checkpoint.to_int8(tensors)
        config = dataclasses.replace(config, training={**config.training, "matrices": "int8"})
    else:
        tensors = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    checkpoint.write(request.out, tensors, config)
    figures = measure(str(request.out), config, request.preset, request.runs)
    training = config.training | {"curve": drawn, "measured": figures}
    checkpoint.write(request.out, tensors, dataclasses.replace(config, training=training))
    return figures


def curve(run: Path, steps_taken: int) -> dict[str, Any]:
    """The curve of the training run in the directory ``run`` up to a checkpoint's step: mean losses of
    ``_POINTS`` equal shares of the steps, and every evaluation on held-out data, each at the supervised
    tokens seen by then."""
    lines = (run / CURVE).read_text("utf-8", errors="replace").splitlines()
    entries = [json.loads(line) for line in lines if step_of(line) <= steps_taken]
    steps = [entry for entry in entries if "loss" in entry]
    size = max(1, math.ceil(len(steps) / _POINTS))
    shares = [steps[start : start + size] for start in range(0, len(steps), size)]
    losses = [
        {"tokens": share[-1]["tokens"]}
        | {label: fmean(entry["loss"][label] for entry in share) for label in share[-1]["loss"]}
        for share in shares
    ]
    held_out = [
        {"tokens": entry["tokens"]}
        | {label: found[0]["step_acceptance"] for label, found in entry["held_out"].items()}
        for entry in entries
        if "held_out" in entry
    ]
    return {"loss": losses, "held_out_step_acceptance": held_out}


def measure(source: str, config: DraftConfig, preset: str, runs: Path) -> dict[str, Any]:
    """Greedy figures of the drafter at ``source``, and of a random one of the same shape, by replay."""
    argv = ["--preset", preset, "--mode", "replay", "--temperature", "0"]
    argv += ["--prompts", str(PROMPTS), "--max-new-tokens", str(NEW_TOKENS)]
    asked = {name: str(value) for name, value in run_options(config).items()}
    flags = [word for pair in asked.items() for word in ("--option", "=".join(pair))]
    plans = []
    for drafter in (["--checkpoint", source], ["--untrained"]):
        plan = make_plan(parse(["--method", config.method, *flags, *drafter, *argv]))
        plans.append(dataclasses.replace(plan, directory=runs / plan.directory.name))
    trained, untrained = (_figures(outcome.records) for outcome in replay.run(plans, sys.argv))
    return {
        "preset": preset,
        "options": asked,
        "prompts_per_benchmark": PROMPTS,
        "max_new_tokens": NEW_TOKENS,
        "temperature": 0.0,
        "dtype": plans[0].dtype,
        "by_benchmark": trained,
        "untrained": untrained[OVERALL],
    }


def run_options(config: DraftConfig) -> Mapping[str, Any]:
    """Options of a run, besides the checkpoint, that use a drafter as it was trained."""
    if config.method == "eagle3":
        return {"m": _EAGLE3_STEPS}
    options: dict[str, Any] = {"n": config.architecture["n"]}
    if config.method == "spd":
        options |= {
            "draft_layers": config.architecture["draft_layers"],
            "schedule": config.training["schedule"],
        }
    return options


def _figures(records: Any) -> dict[str, dict[str, float | None]]:
    return {line["benchmark"]: {name: line[name] for name in _FIGURES} for line in rows(records)}
