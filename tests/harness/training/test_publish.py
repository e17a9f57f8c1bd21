"""Publishing: what is stored, what is left out, and that the published head drafts as the trained one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from conftest import tiny
from safetensors.torch import load_file

from harness.training import publish as module
from harness.training.heads import build_task, parse_head
from harness.training.publish import PublishRequest, curve, publish, run_options
from harness.training.session import CURVE
from methods import registry
from methods.drafters import checkpoint
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError

FIGURES = {"by_benchmark": {"overall": {"S0": 1.5}}}
HEADS = ("spd:n=4,layers=1,schedule=post-step", "eagle3", "ppsd:n=4")


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources measured, without measuring: there is no benchmark for a tiny target."""
    seen: list[str] = []
    monkeypatch.setattr(module, "measure", lambda source, *_: seen.append(source) or FIGURES)
    return seen


def trained(run: Path, spec: str, change_head: bool = False) -> Path:
    """A head in the directory of a run of 40 steps that were evaluated once."""
    directory = run / "heads" / "head"
    target = tiny("llama")
    vocabulary = DraftVocabulary(target.vocab_size, range(0, 64, 2))
    task = build_task(parse_head(spec), target, vocabulary, 32, 0)
    if change_head:
        with torch.no_grad():
            task.module.lm_head.weight[3] += 1.0
    task.save(directory, target, {"tokens_seen": 5})
    steps = [{"step": i, "tokens": 10 * i, "loss": {"head": float(i)}} for i in range(1, 41)]
    evaluated = {"step": 40, "tokens": 400, "held_out": {"head": [{"step_acceptance": 0.5}]}}
    (run / CURVE).write_text("".join(json.dumps(entry) + "\n" for entry in [*steps, evaluated]))
    return directory


@pytest.mark.parametrize("spec", HEADS)
def test_a_head_left_as_the_targets_is_tied_and_decodes_as_before(
    spec: str, tmp_path: Path, measured
) -> None:
    head, out = trained(tmp_path, spec), tmp_path / "out"
    assert publish(PublishRequest(head, out, "tiny", tmp_path), tiny("llama")) == FIGURES
    assert measured == [str(out)]
    content = json.loads((out / "draft.json").read_text())
    assert content["tied_head"] and content["training"]["measured"] == FIGURES
    assert content["training"]["tokens_seen"] == 5
    drawn = content["training"]["curve"]
    assert drawn["loss"][0] == {"tokens": 20, "head": 1.5} and len(drawn["loss"]) == 20
    assert drawn["held_out_step_acceptance"] == [{"tokens": 400, "head": 0.5}]
    stored = load_file(out / content["tensors"])
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16} and "lm_head.weight" not in stored
    config, _, _ = checkpoint.read(out, content["method"])
    for source in (head, out):
        method = registry.create(
            config.method, tiny("llama"), {"checkpoint": str(source), **run_options(config)}
        )
        drafter = method.head if config.method != "spd" else method.module
        assert torch.equal(drafter.lm_head.weight, tiny("llama").head_weight[::2])


@pytest.mark.parametrize("where", ["", "published", "../other/../head"])
def test_a_training_runs_own_heads_are_not_overwritten(where: str, tmp_path: Path) -> None:
    head = trained(tmp_path, "ppsd:n=4")
    before = {path: path.read_bytes() for path in head.iterdir()}
    out = head.parent / head.name / where if where != "../other/../head" else head / ".." / head.name
    with pytest.raises(UsageError, match="whose heads stay as they are"):
        publish(PublishRequest(head, out, "tiny", tmp_path), tiny("llama"))
    assert {path: path.read_bytes() for path in head.iterdir()} == before


def test_a_killed_runs_curve_ends_at_its_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path, "ppsd:n=4")
    run = next(tmp_path.rglob(CURVE)).parent
    with (run / CURVE).open("a") as file:
        file.write('{"step": "a"}\n{"step": null}\n{"step": 41, "tok')
    drawn = curve(run, 30)
    assert drawn["loss"][-1]["tokens"] == 300 and drawn["held_out_step_acceptance"] == []


def test_a_trained_head_is_stored(tmp_path: Path) -> None:
    head, out = trained(tmp_path, "ppsd:n=4", change_head=True), tmp_path / "out"
    publish(PublishRequest(head, out, "tiny", tmp_path), tiny("llama"))
    content = json.loads((out / "draft.json").read_text())
    assert not content["tied_head"] and "lm_head.weight" in load_file(out / content["tensors"])


def test_int8_matrices_are_half_the_bytes_and_nearly_the_same(tmp_path: Path) -> None:
    head = trained(tmp_path, "spd:n=4,layers=1")
    for name, int8 in (("half", False), ("quarter", True)):
        publish(PublishRequest(head, tmp_path / name, "tiny", tmp_path, int8), tiny("llama"))
    _, exact, _ = checkpoint.read(head, "spd")
    config, found, _ = checkpoint.read(tmp_path / "quarter", "spd")
    assert config.training["matrices"] == "int8" and found.keys() == exact.keys() - {"lm_head.weight"}
    for name, tensor in found.items():
        assert (tensor - exact[name]).norm() <= 0.02 * exact[name].norm(), name
    sizes = [next((tmp_path / name).glob("*.safetensors")).stat().st_size for name in ("half", "quarter")]
    assert sizes[1] < 0.75 * sizes[0]


def test_a_tied_head_needs_its_target(tmp_path: Path) -> None:
    head, out = trained(tmp_path, "ppsd:n=4"), tmp_path / "out"
    publish(PublishRequest(head, out, "tiny", tmp_path), tiny("llama"))
    config, tensors, _ = checkpoint.read(out, "ppsd")
    assert "lm_head.weight" not in tensors
    with pytest.raises(UsageError, match="trained for target layers"):
        checkpoint.check_target(config, dataclasses.replace(tiny("llama").shape, num_layers=3), "it")


def test_only_a_head_of_a_run_is_published(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no curve\.jsonl; give a directory RUN/heads/LABEL"):
        publish(PublishRequest(tmp_path / "a" / "b", tmp_path / "out", "tiny", tmp_path), tiny("llama"))
