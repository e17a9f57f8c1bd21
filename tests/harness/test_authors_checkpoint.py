"""A published draft module through the product's own path: ``--checkpoint FILE.pt``.

The file is synthetic, of either published layout. What the drafter says in every cycle of a run is
compared with a float64 pass that is computed from the file's tensors alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from authors_format import contents, draft_logits
from torch import Tensor
from transformers import AutoModelForCausalLM

from harness.checks.small_world import save_family, save_prompts
from harness.records.files import read_records
from harness.run import main
from methods.drafters.decoder_layer import Attention, RMSNorm
from methods.drafters.tensors import file_sha256
from methods.models.shape import TargetShape
from methods.pipeline.controller import PipelineController, Verdict
from methods.pipeline.drafter import Features
from methods.spd.drafter import SpdDrafter

N, ANCHORS = 4, (0, 1, 3)
CLOSE = 1e-5


@dataclass(frozen=True)
class Cycle:
    """What the drafter was given in one cycle and what it said: features [positions, anchors, hidden]
    and depths of all tokens so far, of which the last ``fill`` are in flight; logits [draft_vocab]."""

    tokens: list[int]
    features: Tensor
    depths: list[int]
    fill: int
    logits: Tensor


@pytest.fixture
def cycles(monkeypatch: pytest.MonkeyPatch) -> list[Cycle]:
    """Every cycle of the runs that follow, filled in as they go."""
    seen: list[Cycle] = []
    completed: list[Tensor] = []
    start, settle, draft = SpdDrafter.start, SpdDrafter.settle, SpdDrafter.draft

    def starting(self: SpdDrafter, prompt: Tensor, tree: bool) -> None:
        completed[:] = prompt.clone()
        start(self, prompt, tree)

    def settling(self: SpdDrafter, verdict: Verdict, root: Tensor) -> None:
        completed.append(root.clone())
        settle(self, verdict, root)

    def drafting(self: SpdDrafter, pipeline: PipelineController, features: Features) -> Tensor:
        flight = [node for level in pipeline.in_flight for node in level]
        rows = [*completed, *(features[node.id].clone() for node in flight)]
        depths = [N] * len(completed) + [pipeline.depth(node) for node in flight]
        logits = draft(self, pipeline, features)
        tokens = [*pipeline.transcript.tokens, *(node.token for node in flight[1:])]
        seen.append(Cycle(tokens, torch.stack(rows), depths, len(flight), logits[0]))
        return logits

    monkeypatch.setattr(SpdDrafter, "start", starting)
    monkeypatch.setattr(SpdDrafter, "settle", settling)
    monkeypatch.setattr(SpdDrafter, "draft", drafting)
    return seen


class World:
    """A target of ``family`` on disk, a prompt, and a draft module's file for them."""

    def __init__(self, directory: Path, family: str, layout: str) -> None:
        self.directory = directory
        self.target = save_family(directory / "target", family)
        self.prompts = save_prompts(directory / "prompts", "What is a pipeline?")
        self.model: Any = AutoModelForCausalLM.from_pretrained(self.target)
        self.shape = TargetShape.from_config(self.model.config)
        draft_ids = range(0, self.shape.vocab, 3)
        self.content = contents(self.shape, layout, n=N, anchors=ANCHORS, draft_ids=draft_ids)
        self.file = directory / "head.pt"
        torch.save(self.content, self.file)

    def run(self) -> int:
        flags = f"--method spd --n {N} --benchmark gsm8k --warmup 0 --max-new-tokens 16"
        places = {"target": self.target, "checkpoint": self.file, "data-dir": self.prompts}
        places["results"] = self.directory / "run"
        return main([*flags.split(), *(text for k, v in places.items() for text in (f"--{k}", str(v)))])

    def expected(self, cycle: Cycle) -> Tensor:
        norm = self.model.model.norm.weight.detach()
        norm = norm + 1 if self.shape.model_type.startswith("qwen3_5") else norm
        theta = self.model.config.rope_parameters["rope_theta"]
        return draft_logits(self.content, self.shape, norm, theta, cycle.features, cycle.depths)

    def residual_stream(self, prompt_ids: list[int], cycle: Cycle) -> Tensor:
        """The anchors' features as transformers computes them in one pass."""
        with torch.no_grad():
            out = self.model(torch.tensor([prompt_ids + cycle.tokens]), output_hidden_states=True)
        return torch.stack([out.hidden_states[anchor][0] for anchor in ANCHORS], 1)


def assert_module_agrees(world: World, cycles: list[Cycle]) -> None:
    for cycle in cycles:
        expected = world.expected(cycle)
        assert (cycle.logits - expected).abs().max() < CLOSE * expected.abs().max().clamp(min=1)


@pytest.mark.parametrize("layout", ["A", "B"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "hybrid"])
def test_a_run_from_the_authors_file(
    tmp_path: Path, cycles: list[Cycle], family: str, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two bounds instead of one from tokens to logits: on a hybrid target the drafter multiplies the
    features' own rounding (one pass against token by token, 2e-6 of 1) by about ten."""
    world = World(tmp_path, family, layout)
    assert world.run() == 0, capsys.readouterr().err
    (record,) = read_records(tmp_path / "run")
    assert record.lossless == "exact" and len(record.output_ids) == 16
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    facts = manifest["config"]["widths"]["1"]["facts"]
    assert (facts["checkpoint_sha256"], facts["draft_layers"]) == (file_sha256(world.file), 2)

    assert len(cycles) == len(record.steps.emitted)
    assert {cycle.fill for cycle in cycles} == {1, 2, 3, 4}
    assert_module_agrees(world, cycles)
    for cycle in cycles:
        expected = world.residual_stream(record.prompt_ids, cycle)
        for got, want, depth in zip(cycle.features, expected, cycle.depths, strict=True):
            reached = sum(anchor <= depth for anchor in ANCHORS)
            assert (got - want)[:reached].abs().max() < CLOSE * expected.abs().max()


def swap_gate(self: Attention, *args: Any, queries: Callable[..., Any] = Attention.queries) -> Any:
    query, gate = queries(self, *args)
    return query, gate.flip(2)


@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (Attention, "queries", swap_gate),
        (RMSNorm, "forward", lambda self, x: torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight)),
    ],
    ids=["gate rows of another head", "norms without the 1"],
)
def test_a_misread_layout_is_noticed(
    tmp_path: Path, cycles: list[Cycle], monkeypatch: pytest.MonkeyPatch, where: type, name: str, fault: Any
) -> None:
    world = World(tmp_path, "llama", "B")
    monkeypatch.setattr(where, name, fault)
    assert world.run() == 0  # a wrong drafter is no wrong output
    with pytest.raises(AssertionError):
        assert_module_agrees(world, cycles)


class Hostile:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("place", ["config", "state_dict"])
def test_a_hostile_file_ends_the_command_before_anything_runs(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world, marker = World(tmp_path, "llama", "A"), tmp_path / "ran"
    torch.save(world.content | {place: Hostile(marker)}, world.file)
    capsys.readouterr()  # what saving the target printed
    assert world.run() == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith("error: ") and "head.pt" in err and "mkdir" in err
    assert not marker.exists() and not (tmp_path / "run").exists()
