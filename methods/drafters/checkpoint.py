"""The drafter checkpoint of this package: a directory with ``draft.json`` and one safetensors file.

The JSON names the tensor file, which carries its own hash in its name, and is replaced last: a
save that is cut off leaves the previous checkpoint intact.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from methods.drafters.decoder_layer import LayerConfig
from methods.drafters.source import HUB, resolve
from methods.drafters.tensors import file_sha256, read_safetensors, sync
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.models.shape import TargetShape

FORMAT_VERSION = 1
HEAD = "lm_head.weight"
"""The tensor that a tied head does not store."""
_CONFIG_NAME = "draft.json"
_IDS = "draft ids go here"
_SCALE = ".int8_scale"

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """Everything about a trained drafter but its tensors.

    ``draft_ids`` None is the full vocabulary; ``training_span`` (positions) bounds the attention;
    ``tied_head``: the head's rows are the target's own and not in the file; ``architecture`` holds
    the method's own fields (n, stage layers, anchors ...); ``training`` is provenance, which decoding
    never interprets.
    """

    method: str
    target: str
    target_sha256: str
    tokenizer_sha256: str
    num_layers: int
    hidden: int
    vocab: int
    layer: LayerConfig
    draft_ids: list[int] | None
    training_span: int | None
    architecture: dict[str, Any]
    tied_head: bool = False
    training: dict[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @classmethod
    def for_target(cls, shape: TargetShape, **fields: Any) -> DraftConfig:
        """A configuration whose target fields are those of ``shape``."""
        return cls(
            target=shape.name,
            target_sha256=shape.sha256,
            tokenizer_sha256=shape.tokenizer_sha256,
            num_layers=shape.num_layers,
            hidden=shape.hidden,
            vocab=shape.vocab,
            **fields,
        )


@dataclass(frozen=True)
class Loaded(Generic[M]):
    """A drafter and where it came from. ``sha256`` is of the tensor file."""

    module: M
    config: DraftConfig
    sha256: str
    source: str


def save(directory: Path, module: nn.Module, config: DraftConfig) -> str:
    """Write a checkpoint and return the tensor file's SHA-256; an earlier one there is replaced."""
    return write(directory, module.state_dict(), config)


def write(directory: Path, tensors: Mapping[str, Tensor], config: DraftConfig) -> str:
    """``save`` of a module's ``tensors`` by name."""
    directory.mkdir(parents=True, exist_ok=True)
    partial = directory / "draft.partial"
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, partial)
    sync(partial)
    digest = file_sha256(partial)
    file = directory / f"draft-{digest[:16]}.safetensors"
    os.replace(partial, file)
    content = dataclasses.asdict(config) | {"tensors": file.name, "tensors_sha256": digest}
    partial.write_text(_as_text(content), encoding="utf-8")
    sync(partial)
    os.replace(partial, directory / _CONFIG_NAME)
    for older in directory.glob("draft-*.safetensors"):
        if older != file:
            older.unlink()
    return digest


def to_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``tensors`` with every matrix as int8 [rows, columns] and, beside it, its rows' scales [rows]."""
    found = dict(tensors)
    for name, matrix in tensors.items():
        if matrix.dim() == 2:
            largest = matrix.float().abs().amax(1).clamp(min=1e-12)
            found[name] = (matrix.float() * (127 / largest)[:, None]).round().to(torch.int8)
            found[name + _SCALE] = largest / 127
    return found


def from_int8(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of ``to_int8``, up to its rounding, in float32; other tensors as they are."""
    found = {name: tensor for name, tensor in tensors.items() if not name.endswith(_SCALE)}
    for name, tensor in found.items():
        scale = tensors.get(name + _SCALE)
        if scale is not None:
            found[name] = tensor.float() * scale[:, None]
    return found


def _as_text(content: Mapping[str, Any]) -> str:
    """Indented JSON, but the thousands of draft ids on one line."""
    text = json.dumps({**content, "draft_ids": _IDS}, indent=1)
    return text.replace(json.dumps(_IDS), json.dumps(content["draft_ids"]), 1) + "\n"


def read(
    directory: Path, method: str, target_head: Tensor | None = None
) -> tuple[DraftConfig, dict[str, Tensor], str]:
    """Configuration, tensors and the tensor file's SHA-256 of a ``method`` checkpoint.

    ``target_head`` [vocab, hidden] gives the rows of a tied head. Raises ``UsageError`` for a file
    that is missing, torn, changed, or of another method or format.
    """
    content = _read_json(directory / _CONFIG_NAME)
    name, digest = content.pop("tensors", None), content.pop("tensors_sha256", None)
    config = _parse(content, directory)
    if config.method != method:
        raise UsageError(f"{directory} holds a drafter for {config.method!r}, not for {method!r}")
    path = directory / str(name)
    if Path(str(name)).name != name or not path.is_file():
        raise UsageError(f"{directory} lacks the tensor file {name!r} that {_CONFIG_NAME} names")
    if (found := file_sha256(path)) != digest:
        raise UsageError(f"{path} has sha256 {found}, but {_CONFIG_NAME} was written for {digest}")
    tensors = from_int8(read_safetensors(path))
    # A head of another shape is another target's: check_target says so.
    if config.tied_head and target_head is not None and target_head.shape == (config.vocab, config.hidden):
        tensors[HEAD] = DraftVocabulary(config.vocab, config.draft_ids).rows(target_head)
    return config, tensors, found


def method_of(directory: Path) -> str:
    """The method that the checkpoint in ``directory`` is for."""
    return str(_read_json(directory / _CONFIG_NAME).get("method"))


def described(source: str) -> Mapping[str, Any]:
    """What the checkpoint at a local ``source`` says of itself, unchecked; empty for any other source."""
    if source.startswith(HUB) or not (path := resolve(source) / _CONFIG_NAME).is_file():
        return {}
    return _read_json(path)


def check_target(config: DraftConfig, shape: TargetShape, source: str) -> None:
    """Raise ``UsageError`` naming the first field in which the drafter's target is not ``shape``."""
    pairs: list[tuple[str, Any, Any]] = [
        ("target layers", config.num_layers, shape.num_layers),
        ("hidden size", config.hidden, shape.hidden),
        ("vocabulary", config.vocab, shape.vocab),
    ]
    hashes = [
        ("target weights sha256", config.target_sha256, shape.sha256),
        ("tokenizer sha256", config.tokenizer_sha256, shape.tokenizer_sha256),
    ]
    pairs += [pair for pair in hashes if pair[1] and pair[2]]
    if not (config.target_sha256 and shape.sha256):
        pairs.insert(0, ("target", config.target, shape.name))
    for what, trained, given in pairs:
        if trained != given:
            raise UsageError(f"{source}: trained for {what} {trained} ({config.target}), but this is {given}")


def require(source: str, **wanted: tuple[Any, Any]) -> None:
    """Raise ``UsageError`` unless each (file's value, asked value) pair agrees; None asks nothing."""
    for name, (found, asked) in wanted.items():
        if asked is not None and found != asked:
            what = name.replace("_", " ")
            raise UsageError(f"{source}: trained with {what} = {found}, but {what} = {asked} is asked for")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{path.parent} is not a drafter checkpoint: it has no {_CONFIG_NAME}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold one JSON object")
    return content


def _parse(content: dict[str, Any], directory: Path) -> DraftConfig:
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise UsageError(f"{directory}: checkpoint format {version}; this version reads {FORMAT_VERSION}")
    where = f"{directory}/{_CONFIG_NAME}"
    _check_keys(content, get_type_hints(DraftConfig) | {"layer": dict}, where)
    layer = content["layer"]
    _check_keys(layer, get_type_hints(LayerConfig), f"{where}: layer")
    span = content["training_span"]
    if span is not None and span < 1:
        raise UsageError(f"{where}: training_span must be at least 1 position, got {span}")
    try:
        return DraftConfig(**content | {"layer": LayerConfig(**layer)})
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def check_architecture(config: DraftConfig, kinds: Mapping[str, type], source: str) -> None:
    """Raise ``UsageError`` listing ``architecture``'s missing, unknown and mistyped keys."""
    _check_keys(config.architecture, kinds, f"{source}: architecture")


def check_stages(config: DraftConfig, source: str) -> None:
    """Raise ``UsageError`` unless ``stage_layers`` are ``n`` stages of all the target's layers."""
    n, stages = config.architecture["n"], config.architecture["stage_layers"]
    if (n, config.num_layers) != (len(stages), sum(stages)) or min(stages, default=0) < 1:
        raise UsageError(
            f"{source}: stage layers {stages} are not n = {n} stages of {config.num_layers} layers"
        )


def _check_keys(content: Mapping[str, Any], kinds: Mapping[str, Any], where: str) -> None:
    faults = [f"missing key {key!r}" for key in sorted(kinds.keys() - content.keys())]
    faults += [f"unknown key {key!r}" for key in sorted(content.keys() - kinds.keys())]
    faults += [
        f"{key} = {content[key]!r} has the wrong type"
        for key, kind in kinds.items()
        if key in content and not _fits(content[key], kind)
    ]
    if faults:
        raise UsageError(f"{where}: {'; '.join(faults)}")


def _fits(value: Any, kind: Any) -> bool:
    options = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    for option in options:
        container = get_origin(option) or option
        if isinstance(value, container) and not (container is int and isinstance(value, bool)):
            inner = get_args(option) if container is list else ()
            return all(_fits(item, inner[0]) for item in value) if inner else True
    return False
