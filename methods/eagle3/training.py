"""EAGLE-3's training-time test: the head unrolled on its own outputs, all slots at once.

Slot t at step k reads the embedding of token t + 1 + k and its own output of step k - 1, sits at
position t + k, and drafts token t + 2 + k. It sees the true-feature keys of slots <= t (step 0) and
its own keys of later steps: what a round that starts at slot t sees. Only slots from which a round
can start are unrolled: token t + 1 is the assistant's. A step counts while tokens t + 1 + k and
t + 2 + k are still of the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from methods.drafters.decoder_layer import KeyValues
from methods.drafters.initialise import build_seeded, copy_layers, set_head
from methods.drafters.layouts import layer_config
from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3 import checkpoint
from methods.eagle3.head import Eagle3Config, Eagle3Head, Eagle3Layer, default_taps, rotary_for
from methods.models.target import Target
from methods.training.attention import attend_cycles
from methods.training.initialise import set_norm
from methods.training.observation import Observed
from methods.training.task import HeadTask

STEPS = 7
STEP_DECAY = 0.8


def initial_head(target: Target, vocabulary: DraftVocabulary, window: int | None, seed: int) -> Eagle3Head:
    """A head to start from: fc passes the deepest feature through, the layer is the target's last
    one on the feature and its first one on the embedding, norm and head rows are the target's."""
    shape = target.shape
    layer = layer_config(shape, streams=2, qk_norm=False)
    rope = dict(getattr(target.config, "rope_parameters", None) or {})
    simple = {"rope_type": "default", "rope_theta": rope.get("rope_theta", 10_000.0)}
    config = Eagle3Config(layer, shape.hidden, default_taps(shape.num_layers), simple, window)
    rotary = rotary_for(config, torch.float32)

    def embed(ids: Tensor) -> Tensor:
        return torch.nn.functional.embedding(ids, target.embedding)

    head = build_seeded(lambda: Eagle3Head(config, vocabulary, embed, rotary), seed)
    _from_target(head, target)
    set_head(head.lm_head, vocabulary, target.head_weight.float())
    return head.to(target.device)


@torch.no_grad()
def _from_target(head: Eagle3Head, target: Target) -> None:
    hidden = head.config.layer.hidden
    head.fc.weight.zero_()
    head.fc.weight[:, -hidden:].fill_diagonal_(1.0)
    set_norm(head.norm, target.final_norm.weight)
    first, last = target.hf.model.layers[0], target.hf.model.layers[-1]
    copy_layers([head.midlayer], [last])
    set_norm(head.midlayer.input_layernorm, target.layers[0].input_norm.weight)
    set_norm(head.midlayer.hidden_norm, target.layers[-1].input_norm.weight)
    set_norm(head.midlayer.post_attention_layernorm, target.layers[-1].post_norm.weight)
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = getattr(head.midlayer.self_attn, name).weight
        for source, half in ((first, weight[:, :hidden]), (last, weight[:, hidden:])):
            given = getattr(getattr(source, "self_attn", None), name, None)
            if given is not None and given.weight.shape == half.shape:
                half.copy_(given.weight)


class Eagle3Task(HeadTask):
    """The EAGLE-3 head in training; ``steps`` unrolled, step k weighed ``decay`` ** k."""

    method = "eagle3"
    decay = STEP_DECAY

    def __init__(self, label: str, head: Eagle3Head, steps: int = STEPS) -> None:
        super().__init__(label, head, tuple(dict.fromkeys(head.config.taps)))
        self.module: Eagle3Head = head
        self._steps = steps

    def logits(self, hidden: Tensor) -> Tensor:
        return self.module.logits(hidden)

    def outputs(self, seen: Observed, draws: torch.Generator | None) -> list[Tensor]:
        head, layer = self.module, self.module.midlayer
        slots = seen.supervised - 1
        features = head.fuse(torch.cat([seen.taps[tap] for tap in head.config.taps], -1))[None]
        inputs, residual = _mixed(layer, features, head.embed(_shifted(seen.ids, 1))[None])
        cos, sin = head.rotary(seen.positions)
        prefix = layer.self_attn.keys_values(inputs, cos, sin)
        inputs, residual = inputs[:, slots], residual[:, slots]
        own: list[KeyValues] = []
        outputs: list[Tensor] = []
        for step in range(self._steps):
            cos, sin = head.rotary(seen.positions[slots] + step)
            if step:
                ids = _shifted(seen.ids, 1 + step)[slots]
                inputs, residual = _mixed(layer, outputs[-1][None], head.embed(ids)[None])
                own.append(layer.self_attn.keys_values(inputs, cos, sin))
            query, gate = layer.self_attn.queries(inputs, cos, sin)
            attended = _attend(seen, query, prefix, own)
            out = layer.add_mlp(residual + layer.self_attn.output(attended, gate))[0]
            outputs.append(head.norm(out) if head.config.norm_output else out)
        return outputs

    def save(self, directory: Path, target: Target, training: Mapping[str, Any]) -> str:
        return checkpoint.save(directory, self.module, target.shape, training)


def _shifted(ids: Tensor, by: int) -> Tensor:
    """``ids[i + by]`` per row; past the end whatever is there, for rows that no loss sees."""
    return torch.cat((ids[by:], ids[:by]))[: len(ids)]


def _mixed(layer: Eagle3Layer, feature: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """What attention reads [1, rows, 2 * hidden] and the residual [1, rows, hidden]."""
    normed = layer.hidden_norm(feature)
    both = torch.cat((layer.input_layernorm(embedding.to(normed.dtype)), normed), -1)
    return both, normed if layer.norm_before_residual else feature


def _attend(seen: Observed, query: Tensor, prefix: KeyValues, own: list[KeyValues]) -> Tensor:
    bounds = seen.positions[seen.supervised]  # slot t = p - 1 sees slots 0 .. t
    mine, visible = None, None
    if own:
        # [cycles, steps, kv_heads, head_dim]
        keys, values = (torch.stack([step[i][0] for step in own], 2).permute(1, 2, 0, 3) for i in (0, 1))
        mine = keys, values
        visible = torch.ones(len(bounds), 1, len(own), dtype=torch.bool, device=bounds.device)
    parts = [
        attend_cycles(
            query[0, first:last, None],
            (prefix[0][0, :, start:end], prefix[1][0, :, start:end]),
            bounds[first:last],
            None if mine is None else (mine[0][first:last], mine[1][first:last]),
            None if visible is None else visible[first:last],
        )
        for start, end, first, last in seen.spans
    ]
    return torch.cat(parts).transpose(0, 1)
