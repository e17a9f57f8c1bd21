"""Checks of the drafters this package trains: their passes, training rows, vocabularies, checkpoints."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from harness.checks import worlds
from harness.checks.drafts import Definition, draft_module_definition, exit_head_definition, watch_drafts
from harness.checks.gates import GREEDY
from harness.checks.outcome import Measured, NotApplicable
from harness.checks.sizes import Sizes
from harness.checks.subject import Subject
from methods import registry
from methods.drafters.tensors import file_sha256
from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3 import checkpoint as eagle3_checkpoint
from methods.eagle3.method import Eagle3
from methods.errors import UsageError
from methods.interface import DecodingMethod
from methods.models.target import Target
from methods.pipeline.method import PipelineMethod
from methods.ppsd import checkpoint as ppsd_checkpoint
from methods.ppsd.method import Ppsd
from methods.spd import checkpoint as spd_checkpoint
from methods.spd.method import Spd
from methods.testing.scripted import ScriptedDrafter, knows_output
from methods.testing.tiny import tiny_target

REDUCED = sorted(range(0, 64, 2))


def passes(subject: Subject, sizes: Sizes) -> Measured:
    """C17: three of five drafts are right, so that caches are kept and rolled back."""
    worst, drafts, tokens = 0.0, 0, 10
    for name in ("llama", "qwen3", "hybrid"):
        target, prompt = worlds.family(name), worlds.prompt(4, 64, seed=2)
        output = worlds.reference(target).decode(prompt, GREEDY, tokens).tokens
        for n in subject.stages(sizes.stages):
            method = subject.build(target, n)
            definition = _definition(method)
            assert isinstance(method, PipelineMethod)
            script = ScriptedDrafter(
                knows_output(output, 64, lambda index: index % 5 not in (2, 3)), DraftVocabulary(64)
            )
            watched, _ = watch_drafts(method, definition, prompt, script, tokens)
            worst, drafts = max(worst, watched.worst), drafts + watched.drafts
    figure = f"{drafts} drafts at every fill: logits {worst:.1e} from the stateless pass"
    fault = None if worst <= worlds.CLOSE else "the cached pass is not the stateless one"
    return Measured(figure, f"<= {worlds.CLOSE:.0e}", fault)


def _definition(method: DecodingMethod) -> Definition:
    if isinstance(method, Spd):
        return draft_module_definition(method.target, method.module, method.options.schedule == "post-step")
    if isinstance(method, Ppsd):
        return exit_head_definition(method.target, method.head)
    raise NotApplicable("no drafter beside a pipeline with a stateless definition")


def training_rows(subject: Subject, sizes: Sizes) -> Measured:
    """C18."""
    from harness.checks import training_rows as rows
    from methods.ppsd import training as ppsd
    from methods.spd import training as spd
    from methods.training.observation import observe

    worst, compared = 0.0, 0
    for name in ("qwen3", "hybrid"):
        target = worlds.family(name)
        for n in subject.stages((4, 8)):
            method = subject.build(target, n)
            vocabulary = DraftVocabulary(64, REDUCED)
            if isinstance(method, Spd):
                assert n is not None
                layers = method.module.config.draft_layers
                module = spd.initial_module(target, n, layers, vocabulary, None, 0)
                spd_task = spd.SpdTask("spd", module, method.options.schedule)
                rows.shaken(spd_task)
                seen = observe(target, _examples(), spd_task.taps, vocabulary)
                found = rows.spd_difference(spd_task, seen, n, method.options.schedule == "post-step")
            elif isinstance(method, Ppsd):
                assert n is not None
                head = ppsd.initial_head(target, n, vocabulary, None, 0, method.head.config.head_class)
                ppsd_task = ppsd.PpsdTask("ppsd", head, method.stage_layers)
                rows.shaken(ppsd_task)
                seen = observe(target, _examples(), ppsd_task.taps, vocabulary)
                found = rows.ppsd_difference(ppsd_task, seen)
            else:
                raise NotApplicable("no training rows of a pipeline drafter")
            worst, compared = max(worst, found[0]), compared + found[1]
    fault = None if worst <= worlds.CLOSE else "a training row is not what the decode loop computes"
    return Measured(
        f"{compared} rows: logits {worst:.1e} from the stateless pass", f"<= {worlds.CLOSE:.0e}", fault
    )


def training_time_test(subject: Subject, sizes: Sizes) -> Measured:
    """C19."""
    from harness.checks import training_rows as rows
    from methods.eagle3 import training as eagle3
    from methods.training.observation import observe

    worst, compared, steps = 0.0, 0, 5
    for name in ("llama", "hybrid"):
        target, vocabulary = worlds.family(name), DraftVocabulary(64, REDUCED)
        if not isinstance(subject.build(target), Eagle3):
            raise NotApplicable("no EAGLE-3 head")
        task = eagle3.Eagle3Task("eagle3", eagle3.initial_head(target, vocabulary, None, 0), steps=steps)
        rows.shaken(task)
        seen = observe(target, _examples(), task.taps, vocabulary)
        found = rows.eagle3_difference(task, seen, steps)
        worst, compared = max(worst, found[0]), compared + found[1]
    fault = None if worst <= worlds.CLOSE else "a training step is not the roll-out with the same tokens"
    return Measured(
        f"{compared} slots and steps: logits {worst:.1e} from the roll-out", f"<= {worlds.CLOSE:.0e}", fault
    )


def _examples() -> list[Any]:
    from harness.checks.training_rows import example

    spans = [(17, [(5, 17)]), (23, [(3, 9), (14, 22)]), (6, [(1, 6)])]
    return [
        example(worlds.prompt(length, 64, seed), answers) for seed, (length, answers) in enumerate(spans, 1)
    ]


def vocabulary(subject: Subject, sizes: Sizes) -> Measured:
    """C20."""
    found = _vocabulary(subject.build(worlds.family("llama"), 3))
    checked = 0
    for one in (found, DraftVocabulary(64, REDUCED)):
        ids = one.ids.tolist()
        if len(set(ids)) != len(ids) or min(ids) < 0 or max(ids) >= one.target_vocab:
            return Measured("", "", "an id is out of range or comes twice")
        q = torch.linspace(-1, 1, one.size).softmax(-1)
        total = float(one.scatter(q).sum())
        if abs(total - 1) > 1e-6:
            return Measured(f"sum {total}", "1", "q over the target's ids does not sum to 1")
        checked += len(ids)
    refused = [
        _refuses(lambda: DraftVocabulary.from_offsets(torch.zeros(32, dtype=torch.long), 64)),
        _refuses(lambda: DraftVocabulary(64, [3, 64])),
        _refuses(lambda: DraftVocabulary(64, [3, 3])),
        _refuses(lambda: DraftVocabulary(64, [])),
    ]
    fault = None if all(refused) else "an all-zero, empty, repeated or out-of-range map is taken"
    return Measured(
        f"{checked} ids in range and unique, q sums to 1, {sum(refused)} of 4 bad maps refused", "all", fault
    )


def _vocabulary(method: DecodingMethod) -> DraftVocabulary:
    if isinstance(method, PipelineMethod):
        return method.drafter().vocabulary
    if isinstance(method, Eagle3):
        return method.head.vocabulary
    raise NotApplicable("no draft vocabulary")


def _refuses(call: Callable[[], object]) -> bool:
    try:
        call()
    except UsageError:
        return True
    return False


class _Hostile:
    """A pickle of it makes a directory when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.marker,)


def checkpoints(subject: Subject, sizes: Sizes) -> Measured:
    """C21."""
    target = worlds.family("llama")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "drafter"
        _save(subject.build(target, 3), directory)
        _load(subject, target, directory)  # as it was saved
        refused = {
            "another target": _message(subject, tiny_target("llama", worlds.LAYERS, seed=1), directory)
        }
        gone = _tamper(directory)
        message = _message(subject, target, directory)
        listed = message is not None and all(name in message for name in [*gone, "extra.weight"])
        marker = Path(folder) / "ran"
        for place in (Path(folder) / "head.pt", Path(folder) / "published" / "pytorch_model.bin"):
            place.parent.mkdir(exist_ok=True)
            torch.save(_Hostile(marker), place)
            source = place if place.suffix == ".pt" else place.parent
            (source / "config.json").write_text("{}") if source.is_dir() else None
            refused[place.name] = _message(subject, target, source)
        ran = marker.exists()
    kept = [name for name, message in refused.items() if message is None]
    fault = None
    if not listed:
        fault = f"missing and unexpected tensors are not all listed: {message}"
    elif kept or ran:
        fault = "a pickle ran code" if ran else f"taken instead of refused: {', '.join(kept)}"
    figure = f"{len(gone)} missing and 1 unexpected tensor listed; another target and 2 pickles refused"
    return Measured(figure if fault is None else "", "all listed and refused, no code run", fault)


def _save(method: DecodingMethod, directory: Path) -> None:
    shape = method.target.shape
    if isinstance(method, Spd):
        spd_checkpoint.save(directory, method.module, shape, {})
    elif isinstance(method, Ppsd):
        ppsd_checkpoint.save(directory, method.head, shape, method.stage_layers, {})
    elif isinstance(method, Eagle3):
        eagle3_checkpoint.save(directory, method.head, shape, {})
    else:
        raise NotApplicable("no checkpoint of this package's format")


def _load(subject: Subject, target: Target, source: Path) -> None:
    options = {**subject.options, "checkpoint": str(source)}
    options.pop("untrained", None)
    if subject.has("n"):
        options.setdefault("n", 3)
    registry.create(subject.method, target, options)


def _message(subject: Subject, target: Target, source: Path) -> str | None:
    """What loading is refused with, None if it is not."""
    try:
        _load(subject, target, source)
    except UsageError as error:
        return str(error)
    return None


def _tamper(directory: Path) -> list[str]:
    """Take two tensors out and put one in, consistently, as a faulty writer would; names of the gone."""
    (path,) = directory.glob("draft-*.safetensors")
    tensors = load_file(path)
    gone = sorted(tensors)[:2]
    for name in gone:
        del tensors[name]
    tensors["extra.weight"] = torch.zeros(2)
    save_file(tensors, path)
    with suppress(OSError):
        path.chmod(0o644)
    config = json.loads((directory / "draft.json").read_text())
    (directory / "draft.json").write_text(json.dumps(config | {"tensors_sha256": file_sha256(path)}))
    return gone
