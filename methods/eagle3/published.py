"""Reader of published EAGLE-3 heads: SafeAILab, SpecForge / SGLang and speculators files.

Some publishers leave ``lm_head.weight`` out where the draft vocabulary is the target's: such a head
borrows the target's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from methods.drafters.checkpoint import HEAD, DraftConfig
from methods.drafters.decoder_layer import LayerConfig
from methods.drafters.tensors import file_sha256, read_pickle, read_safetensors
from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3.head import default_taps
from methods.errors import UsageError
from methods.models.shape import TargetShape

_TENSOR_FILES = ("model.safetensors", "pytorch_model.bin")
# Buffers some writers keep; the head computes its own.
_IGNORED_SUFFIX = "rotary_emb.inv_freq"
_NO_SCALING = (None, "default")


def read_published(
    directory: Path,
    shape: TargetShape,
    taps: Sequence[int] | None = None,
    target_head: Tensor | None = None,
) -> tuple[DraftConfig, dict[str, Tensor], str]:
    """Configuration, tensors under this package's names, and the tensor file's SHA-256.

    ``taps`` given spares the file's own tap ids, whose convention may be unclear. ``target_head``
    [vocab, hidden] is what a file without a head borrows; its configuration says ``tied_head``.
    Raises ``UsageError`` naming what is missing or does not fit the target.
    """
    try:
        return _read(directory, shape, taps, target_head)
    except UsageError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        # Others write these files: any value may be of any type.
        raise UsageError(f"{directory}/config.json does not describe an EAGLE-3 head: {error}") from error


def _read(
    directory: Path, shape: TargetShape, taps: Sequence[int] | None, target_head: Tensor | None
) -> tuple[DraftConfig, dict[str, Tensor], str]:
    config = _read_config(directory)
    path = _tensor_file(directory)
    tensors = _canonical(path)
    # speculators nests the layer; the other formats are flat.
    layer = config.get("transformer_layer_config", config)
    _check_kind(path, layer)
    hidden = _get(path, layer, "hidden_size")
    target_hidden = config.get("target_hidden_size") or hidden
    if target_hidden != shape.hidden:
        raise UsageError(f"{path}: hidden size {target_hidden}, but {shape.name} has {shape.hidden}")
    borrows = HEAD not in tensors
    if borrows:
        tensors[HEAD] = _borrowed(path, layer | config, tensors, shape, hidden, target_head)
    vocabulary = _vocabulary(path, config, layer, tensors, shape)
    if hidden != target_hidden and "embed_tokens.weight" not in tensors:
        raise UsageError(
            f"{path}: missing embed_tokens.weight (hidden size {hidden}, target's {target_hidden})"
        )
    fc_norm = bool(config.get("fc_norm"))
    parsed = DraftConfig.for_target(
        shape,
        method="eagle3",
        layer=_layer(path, layer, tensors, hidden),
        draft_ids=None if vocabulary.is_full else vocabulary.ids.tolist(),
        training_span=None,
        architecture={
            "taps": list(taps or _taps(path, config, shape)),
            "rope": _rope(layer),
            "fc_bias": "fc.bias" in tensors,
            "norm_before_residual": bool(config.get("norm_before_residual")),
            "norm_before_fc": bool(config.get("norm_before_fc")),
            "fc_norm": fc_norm,
            # SpecForge writes norm_output too but never feeds the normed output back; only
            # EAGLE-3.1 heads do, and those have fc_norm.
            "norm_output": fc_norm and bool(config.get("norm_output")),
            "own_embedding": "embed_tokens.weight" in tensors,
        },
        tied_head=borrows,
        training={"published_config": config},
    )
    return parsed, tensors, file_sha256(path)


def _read_config(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{directory} has no readable config.json; not an EAGLE-3 checkpoint") from error
    if not isinstance(config, dict):
        raise UsageError(f"{directory}/config.json must hold one JSON object")
    return config


def _tensor_file(directory: Path) -> Path:
    for name in _TENSOR_FILES:
        if (directory / name).is_file():
            return directory / name
    raise UsageError(f"{directory} has none of {', '.join(_TENSOR_FILES)}")


def _canonical(path: Path) -> dict[str, Tensor]:
    """Tensors by the names of SafeAILab: no ``model.`` prefix, ``midlayer`` for ``layers.0``."""
    content = read_safetensors(path) if path.suffix == ".safetensors" else read_pickle(path)
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        raise UsageError(f"{path} must hold a dictionary of tensors")
    named: dict[str, Tensor] = {}
    for name, value in content.items():
        short = str(name).removeprefix("model.")
        if short.startswith("layers.0."):
            short = "midlayer." + short.removeprefix("layers.0.")
        if short in named:
            raise UsageError(f"{path}: {short} is given twice under different names")
        if not short.endswith(_IGNORED_SUFFIX):
            named[short] = value
    return named


def _get(path: Path, config: Mapping[str, Any], key: str) -> Any:
    if config.get(key) is None:
        raise UsageError(f"{path.parent}/config.json lacks {key}")
    return config[key]


def _check_kind(path: Path, layer: Mapping[str, Any]) -> None:
    if layer.get("num_hidden_layers", 1) != 1:
        raise UsageError(f"{path}: num_hidden_layers {layer['num_hidden_layers']}; only one-layer heads run")
    if layer.get("hidden_act", "silu") != "silu":
        raise UsageError(f"{path}: hidden_act {layer['hidden_act']!r}; only silu heads run")


def _borrowed(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    shape: TargetShape,
    hidden: int,
    target_head: Tensor | None,
) -> Tensor:
    """The target's head [vocab, hidden] for a file without one, if the head's outputs fit it."""
    missing = f"{path}: missing {HEAD}"
    if target_head is None:
        raise UsageError(missing)
    lent = f"{shape.name}'s own cannot be borrowed"
    if hidden != shape.hidden:
        raise UsageError(f"{missing}, and {lent}: hidden size {hidden}, the target's is {shape.hidden}")
    said = config.get("draft_vocab_size") or shape.vocab
    mapped = [len(tensors["d2t"])] if "d2t" in tensors else []
    marked = [int(tensors["t2d"].sum())] if "t2d" in tensors else []
    for size in (said, *mapped, *marked):
        if size != shape.vocab:
            raise UsageError(f"{missing}, and {lent}: draft vocabulary {size}, the target's is {shape.vocab}")
    # To transformers such a file says: the head is the embedding. Harmless where that is the target's head.
    embedding = tensors.get("embed_tokens.weight") if config.get("tie_word_embeddings") else None
    if embedding is not None and not torch.equal(embedding.bfloat16(), target_head.bfloat16().cpu()):
        raise UsageError(
            f"{missing}, and tie_word_embeddings with an embed_tokens.weight other than {shape.name}'s head "
            "leaves open which of the two is meant; store the head, or set tie_word_embeddings to false"
        )
    return target_head


def _vocabulary(
    path: Path,
    config: Mapping[str, Any],
    layer: Mapping[str, Any],
    tensors: dict[str, Tensor],
    shape: TargetShape,
) -> DraftVocabulary:
    """The draft vocabulary of ``d2t``, which is taken out of ``tensors`` together with ``t2d``."""
    vocab = _get(path, layer if "vocab_size" in layer else config, "vocab_size")
    if vocab != shape.vocab:
        raise UsageError(f"{path}: vocabulary {vocab}, but {shape.name} has {shape.vocab}")
    d2t, t2d = tensors.pop("d2t", None), tensors.pop("t2d", None)
    # Whatever tie_word_embeddings says: some configurations claim it beside a head of their own.
    rows = tensors[HEAD].shape[0]
    declared = config.get("draft_vocab_size") or rows
    if declared != rows:
        raise UsageError(f"{path}: draft_vocab_size {declared}, but lm_head.weight has {rows} rows")
    if rows == vocab:
        return DraftVocabulary(vocab)
    if d2t is None:
        raise UsageError(f"{path}: missing d2t for a draft vocabulary of {rows} out of {vocab}")
    if d2t.shape != (rows,):
        raise UsageError(f"{path}: d2t has shape {list(d2t.shape)}, lm_head.weight has {rows} rows")
    vocabulary = DraftVocabulary.from_offsets(d2t, vocab)
    if t2d is not None and t2d.nonzero().flatten().tolist() != vocabulary.ids.tolist():
        raise UsageError(f"{path}: t2d does not mark the ids that d2t maps to")
    return vocabulary


def _layer(path: Path, layer: Mapping[str, Any], tensors: Mapping[str, Tensor], hidden: int) -> LayerConfig:
    heads = _get(path, layer, "num_attention_heads")
    query = tensors.get("midlayer.self_attn.q_proj.weight")
    if query is None:
        raise UsageError(f"{path}: missing midlayer.self_attn.q_proj.weight")
    # The tensor decides: some writers ignored head_dim, others hidden_size / heads.
    head_dim, rest = divmod(query.shape[0], heads)
    if rest:
        raise UsageError(f"{path}: q_proj has {query.shape[0]} rows for {heads} heads")
    return LayerConfig(
        hidden=hidden,
        intermediate=_get(path, layer, "intermediate_size"),
        heads=heads,
        kv_heads=layer.get("num_key_value_heads") or heads,
        head_dim=head_dim,
        eps=_get(path, layer, "rms_norm_eps"),
        attention_input=2 * hidden,
        qk_norm=False,
    )


def _rope(layer: Mapping[str, Any]) -> dict[str, Any]:
    """rope_parameters in transformers' present form; without any theta 10000, the trainers' own."""
    rope = dict(layer.get("rope_parameters") or layer.get("rope_scaling") or {})
    kind = rope.pop("rope_type", None) or rope.pop("type", None)
    theta = rope.pop("rope_theta", None) or layer.get("rope_theta") or 10_000.0
    base = {"rope_type": kind or "default", "rope_theta": float(theta)}
    return base if kind in _NO_SCALING else base | rope


def _taps(path: Path, config: Mapping[str, Any], shape: TargetShape) -> tuple[int, ...]:
    """Residual-stream indices. Two conventions circulate: layer outputs, whose list starts with 1,
    and layer inputs, whose list starts with 2."""
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    ids = ids or (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if not ids:
        return default_taps(shape.num_layers)
    if ids[0] == 2 or max(ids) >= shape.num_layers:
        return tuple(ids)
    if ids[0] == 1:
        return tuple(i + 1 for i in ids)
    raise UsageError(
        f"{path.parent}/config.json: tap ids {ids} may mean layer inputs or outputs; "
        "give the residual-stream indices as taps"
    )
