"""Reader of the SPD authors' published draft modules (``torch.save`` files, version 11)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from methods.drafters.checkpoint import DraftConfig
from methods.drafters.layouts import Layout, layer_config
from methods.drafters.tensors import file_sha256, read_pickle
from methods.errors import UsageError
from methods.models.partition import check_stage_layers, split_layers
from methods.models.shape import TargetShape

AUTHORS_TRAINING_SPAN = 2048
"""Longest sequence the published heads were trained on; their files do not say."""

_REFUSED_VERSIONS = {
    10: "another architecture, whose tensors have no counterpart here",
    12: "announced upstream but loaded by no released code",
}
_PROVENANCE = (
    "base_model_path",
    "model_type",
    "spec_init_from_base_layers",
    "spec_intermediate_size_fallback",
)
_INTERPRETED = {
    "version",
    "hidden_size",
    "vocab_size",
    "draft_vocab_size",
    "num_stages",
    "num_spec_layers",
    "num_aggr_types",
    "aggr_feature_bound",
    "trained_with_use_deepest",
    "draft_token_ids",
    "stage_layers",
}


def read_authors_file(path: Path, shape: TargetShape) -> tuple[DraftConfig, dict[str, Tensor], str]:
    """Configuration, tensors and SHA-256 of an authors' file, checked against the target.

    The two incompatible layouts share one version number and are told apart by the rows of
    ``q_proj``. Raises ``UsageError`` with the reason for any file that cannot be used.
    """
    content = read_pickle(path)
    if not isinstance(content, dict) or content.keys() != {"state_dict", "config"}:
        raise UsageError(f"{path} must hold exactly state_dict and config")
    config, tensors = content["config"], content["state_dict"]
    if not isinstance(config, Mapping) or not isinstance(tensors, Mapping):
        raise UsageError(f"{path}: state_dict and config must be dictionaries")
    if not all(isinstance(value, Tensor) for value in tensors.values()):
        raise UsageError(f"{path}: state_dict may hold tensors only")
    _check_version(path, config)
    _check_sizes(path, config, shape)
    stage_layers = _stage_layers(path, config, shape)
    layout, intermediate = _layout(path, tensors, shape)
    parsed = DraftConfig.for_target(
        shape,
        method="spd",
        layer=layer_config(shape, layout, intermediate),
        draft_ids=config.get("draft_token_ids"),
        training_span=AUTHORS_TRAINING_SPAN,
        architecture={
            "n": len(stage_layers),
            "stage_layers": stage_layers,
            "anchors": list(_get(path, config, "aggr_feature_bound", (list, tuple))),
            "draft_layers": _get(path, config, "num_spec_layers", int),
            "layout": layout,
        },
        training=_provenance(config),
    )
    return parsed, dict(tensors), file_sha256(path)


def _get(path: Path, config: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    if key not in config:
        raise UsageError(f"{path}: config lacks {key}")
    if not isinstance(config[key], kind):
        raise UsageError(f"{path}: config {key} = {config[key]!r} has the wrong type")
    return config[key]


def _check_version(path: Path, config: Mapping[str, Any]) -> None:
    version = config.get("version")
    if version != 11:
        reason = _REFUSED_VERSIONS.get(version, "unknown") if isinstance(version, int) else "no number"
        raise UsageError(f"{path}: draft module version {version} ({reason}); only version 11 can be read")
    if config.get("trained_with_use_deepest") is not True:
        raise UsageError(
            f"{path}: trained_with_use_deepest is {config.get('trained_with_use_deepest')}; only modules "
            "trained with completed tokens at full depth (True) can be run"
        )


def _check_sizes(path: Path, config: Mapping[str, Any], shape: TargetShape) -> None:
    for key, what, given in (
        ("hidden_size", "hidden size", shape.hidden),
        ("vocab_size", "vocabulary", shape.vocab),
    ):
        if _get(path, config, key, int) != given:
            raise UsageError(f"{path}: trained for {what} {config[key]}, but {shape.name} has {given}")
    ids = _get(path, config, "draft_token_ids", list) if "draft_token_ids" in config else None
    rows = _get(path, config, "draft_vocab_size", int)
    if rows != (shape.vocab if ids is None else len(ids)):
        count = "all of the vocabulary" if ids is None else f"{len(ids)} draft_token_ids"
        raise UsageError(f"{path}: draft_vocab_size {rows} does not match {count}")
    anchors = _get(path, config, "aggr_feature_bound", (list, tuple))
    if config.get("num_aggr_types", len(anchors)) != len(anchors):
        raise UsageError(f"{path}: num_aggr_types {config['num_aggr_types']} for {len(anchors)} anchors")


def _stage_layers(path: Path, config: Mapping[str, Any], shape: TargetShape) -> list[int]:
    n = _get(path, config, "num_stages", int)
    given = config.get("stage_layers")
    if given is None:
        if n < 1 or shape.num_layers % n:
            raise UsageError(
                f"{path}: num_stages {n} does not divide the target's {shape.num_layers} layers, "
                "and no stage_layers are given"
            )
        return split_layers(shape.num_layers, n)
    try:
        stages = [int(part) for part in (given.split(";") if isinstance(given, str) else given)]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: stage_layers {given!r} is not a list of layer counts") from error
    if len(stages) != n:
        raise UsageError(f"{path}: stage_layers {stages} for num_stages {n}")
    return check_stage_layers(shape.num_layers, stages)


def _layout(path: Path, tensors: Mapping[str, Tensor], shape: TargetShape) -> tuple[Layout, int]:
    """Layout and MLP width, by the shapes of the first layer."""
    query = tensors.get("spec_layers.0.self_attn.q_proj.weight")
    gate = tensors.get("spec_layers.0.mlp.gate_proj.weight")
    if query is None or gate is None:
        raise UsageError(f"{path}: no spec_layers.0 q_proj and gate_proj, from which the layout is read")
    plain = shape.heads * shape.head_dim
    if query.shape[0] not in (plain, 2 * plain):
        raise UsageError(
            f"{path}: q_proj has {query.shape[0]} rows; {shape.name} allows {plain} (layout A) "
            f"or {2 * plain} (layout B)"
        )
    return "A" if query.shape[0] == plain else "B", gate.shape[0]


def _provenance(config: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: config[key] for key in _PROVENANCE if key in config}
    other = sorted(str(key) for key in config.keys() - _INTERPRETED - set(_PROVENANCE))
    return known | ({"ignored_config_keys": other} if other else {})
