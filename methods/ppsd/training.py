"""Training of PPSD's exit head: teacher-forced, one step, on the stage-1 features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from methods.drafters.decoder_layer import DecoderLayer
from methods.drafters.initialise import build_seeded, copy_layers, set_head
from methods.drafters.layouts import default_layout, layer_config
from methods.drafters.vocabulary import DraftVocabulary
from methods.models.partition import split_layers
from methods.models.target import Target
from methods.ppsd import checkpoint
from methods.ppsd.exit_head import ExitHead, ExitHeadConfig, HeadClass
from methods.training.attention import attend_cycles
from methods.training.initialise import as_in_target, set_norm
from methods.training.observation import Observed
from methods.training.task import HeadTask


def initial_head(
    target: Target,
    n: int,
    vocabulary: DraftVocabulary,
    window: int | None,
    seed: int,
    head_class: HeadClass = "layer",
) -> ExitHead:
    """An exit head to start from: the target's last layer, its final norm and its head rows."""
    exit_layers = split_layers(target.num_layers, n)[0]
    shape = target.shape
    layer = as_in_target(layer_config(shape, default_layout(shape)), target)
    config = ExitHeadConfig(layer, exit_layers, head_class, window)
    head = build_seeded(lambda: ExitHead(config, vocabulary, target.rotary.at), seed)
    if head_class == "layer":
        copy_layers(list(head.layers), [target.hf.model.layers[-1]])
    set_norm(head.norm, target.final_norm.weight)
    set_head(head.lm_head, vocabulary, target.head_weight.float())
    return head.to(target.device)


class PpsdTask(HeadTask):
    """The exit head in training."""

    method = "ppsd"

    def __init__(self, label: str, head: ExitHead, stage_layers: Sequence[int]) -> None:
        super().__init__(label, head, (head.config.exit_layers,))
        self.module: ExitHead = head
        self._stage_layers = list(stage_layers)

    def outputs(self, seen: Observed, draws: torch.Generator | None) -> list[Tensor]:
        features = seen.taps[self.taps[0]][None]
        places = seen.supervised
        hidden = features[:, places]
        cos, sin = self.module.rotary(seen.positions)
        for layer in self.module.layers:  # one or none
            assert isinstance(layer, DecoderLayer)
            x = layer.input_layernorm(features)
            query, gate = layer.self_attn.queries(x[:, places], cos[places], sin[places])
            keys, values = layer.self_attn.keys_values(x, cos, sin)
            attended = [
                attend_cycles(
                    query[0, first:last, None],
                    (keys[0, :, start:end], values[0, :, start:end]),
                    seen.positions[places[first:last]] + 1,
                )
                for start, end, first, last in seen.spans
            ]
            out = torch.cat(attended).transpose(0, 1)
            hidden = layer.add_mlp(hidden + layer.self_attn.output(out, gate))
        return [hidden[0]]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.module.logits(hidden)

    def save(self, directory: Path, target: Target, training: Mapping[str, Any]) -> str:
        return checkpoint.save(directory, self.module, target.shape, self._stage_layers, training)
