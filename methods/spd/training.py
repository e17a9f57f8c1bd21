"""Training of the pipeline draft module: for every supervised position the cycle that drafts after it.

Drafting after position p, the tokens p, p - 1, ... in flight are at depths 0, 1, ... and everything
older is complete (depth n). So one training pass needs, per supervised position, ``fill`` rows of its
own (the cycle), and the complete rows that all cycles of a sequence share: exactly the layout of
``DraftModule.stateless``, and nothing that cannot reach the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from methods.drafters.attention import attend
from methods.drafters.decoder_layer import DecoderLayer
from methods.drafters.initialise import build_seeded, copy_layers, set_head
from methods.drafters.layouts import default_layout, layer_config
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.models.partition import split_layers
from methods.models.target import Target
from methods.spd import checkpoint
from methods.spd.aggregation import choose_anchors
from methods.spd.draft_module import DraftModule, DraftModuleConfig
from methods.training.attention import attend_cycles
from methods.training.initialise import as_in_target
from methods.training.observation import Observed
from methods.training.task import HeadTask

Schedule = str


def initial_module(
    target: Target, n: int, draft_layers: int, vocabulary: DraftVocabulary, window: int | None, seed: int
) -> DraftModule:
    """A draft module to start from: the target's own last ``draft_layers`` layers, norm and head rows.

    The deepest anchor is their input, and every projection starts as the identity on the deepest
    anchor it has: complete rows begin as the target's own, shallower ones as an early exit.
    """
    if not 1 <= draft_layers < target.num_layers:
        raise UsageError(f"draft layers must be 1 to {target.num_layers - 1}, got {draft_layers}")
    deepest = target.num_layers - draft_layers
    aggregation = choose_anchors(split_layers(target.num_layers, n), deepest=deepest)
    shape = target.shape
    layer = as_in_target(layer_config(shape, default_layout(shape)), target)
    config = DraftModuleConfig(layer, aggregation, draft_layers, window)
    module = build_seeded(lambda: DraftModule(config, vocabulary, target.final_norm, target.rotary.at), seed)
    with torch.no_grad():
        for projection in module.aggr_projs:
            weight = projection.weight
            assert isinstance(weight, Tensor)
            weight.zero_()
            weight[:, -shape.hidden :].fill_diagonal_(1.0)
    copy_layers(list(module.spec_layers), target.hf.model.layers[deepest:])
    set_head(module.lm_head, vocabulary, target.head_weight.float())
    return module.to(target.device)


@dataclass(frozen=True, slots=True)
class _Cycles:
    """Rows of one batch. Input rows are the complete ones [rows], then each cycle's [cycles * fill].

    ``home`` [cycles, fill] is the row (position) of each in-flight token, newest first; ``bounds``
    [cycles] the complete rows a cycle sees, counted in its own example; ``visible`` [cycles, fill,
    fill] which of its own rows each row sees.
    """

    home: Tensor
    bounds: Tensor
    visible: Tensor


class SpdTask(HeadTask):
    """The draft module in training, for the pre-step or the post-step schedule."""

    method = "spd"

    def __init__(self, label: str, module: DraftModule, schedule: Schedule = "pre-step") -> None:
        super().__init__(label, module, module.config.aggregation.anchors)
        self.module: DraftModule = module
        self.schedule = schedule
        self.n = module.config.aggregation.n

    @cached_property
    def _layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.module.spec_layers if isinstance(layer, DecoderLayer)]

    def fill(self, draws: torch.Generator | None) -> int:
        """Tokens in flight: n with probability 1/2, else uniform on 1 .. n - 1; n without ``draws``."""
        if draws is None or self.n == 1 or float(torch.rand((), generator=draws)) < 0.5:
            return self.n
        return int(torch.randint(1, self.n, (), generator=draws))

    def outputs(self, seen: Observed, draws: torch.Generator | None) -> list[Tensor]:
        return [self.rows(seen, self.fill(draws))]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.module.logits(hidden)

    def rows(self, seen: Observed, fill: int) -> Tensor:
        """Outputs [supervised, hidden] of the newest rows of all cycles at ``fill``."""
        cycles = _cycles(seen, fill)
        complete = len(seen.positions)
        hidden = self._inputs(seen, cycles, fill)[None]
        positions = torch.cat((seen.positions, seen.positions[cycles.home].flatten()))
        cos, sin = self.module.rotary(positions)
        for layer in self._layers[:-1]:
            x = layer.input_layernorm(hidden)
            query, gate = layer.self_attn.queries(x, cos, sin)
            attended = _attend(seen, cycles, query, layer.self_attn.keys_values(x, cos, sin), fill)
            hidden = layer.add_mlp(hidden + layer.self_attn.output(attended, gate))
        last = self._layers[-1]
        newest = complete + torch.arange(0, cycles.home.numel(), fill, device=hidden.device)
        x = last.input_layernorm(hidden)
        query, gate = last.self_attn.queries(x[:, newest], cos[newest], sin[newest])
        attended = _attend(seen, cycles, query, last.self_attn.keys_values(x, cos, sin), 1)
        return last.add_mlp(hidden[:, newest] + last.self_attn.output(attended, gate))[0]

    def _inputs(self, seen: Observed, cycles: _Cycles, fill: int) -> Tensor:
        types = self.module.config.aggregation.types
        first = int(self.schedule == "post-step")
        kinds = [types[first + distance] for distance in range(fill)]
        taps = torch.stack([seen.taps[anchor] for anchor in self.taps], 1)
        # Each projection once over all positions: cheaper than once per depth and cycle.
        projected = {
            kind: self.module.aggr_projs[kind](taps[:, : kind + 1].flatten(1)) for kind in {*kinds, types[-1]}
        }
        flight = [projected[kind][cycles.home[:, distance]] for distance, kind in enumerate(kinds)]
        return torch.cat((projected[types[-1]], torch.stack(flight, 1).flatten(0, 1)))

    def save(self, directory: Path, target: Target, training: Mapping[str, Any]) -> str:
        about = {**training, "schedule": self.schedule}
        return checkpoint.save(directory, self.module, target.shape, about)


def _cycles(seen: Observed, fill: int) -> _Cycles:
    distance = torch.arange(fill, device=seen.ids.device)
    # A prompt is complete from the start, so no more tokens are in flight than were generated.
    flying = distance < seen.generated[:, None].clamp(max=fill)
    home = torch.where(flying, seen.supervised[:, None] - distance, seen.supervised[:, None])
    bounds = seen.positions[seen.supervised] + 1 - flying.sum(1)
    older = distance[:, None] <= distance
    itself = distance[:, None] == distance
    return _Cycles(home, bounds, older & flying[:, None] | itself)


def _attend(
    seen: Observed, cycles: _Cycles, query: Tensor, keys_values: tuple[Tensor, Tensor], rows: int
) -> Tensor:
    """Attention output [1, query rows, heads, head_dim] for the first ``rows`` rows of every cycle,
    after the complete rows where ``query`` has them."""
    complete, fill = len(seen.positions), cycles.home.shape[1]
    keys, values = (tensor[0] for tensor in keys_values)  # [kv_heads, complete + cycles * fill, head_dim]
    shared = query.shape[1] > rows * len(seen.supervised)
    flight_query = query[0, complete if shared else 0 :].unflatten(0, (-1, rows))
    own = [t[:, complete:].unflatten(1, (-1, fill)).permute(1, 2, 0, 3) for t in (keys, values)]
    dense, flights = [], []
    for start, end, first, last in seen.spans:
        prefix = keys[:, start:end], values[:, start:end]
        if shared:
            dense.append(attend(query[:, start:end], prefix[0][None], prefix[1][None], None)[0])
        flights.append(
            attend_cycles(
                flight_query[first:last],
                prefix,
                cycles.bounds[first:last],
                (own[0][first:last], own[1][first:last]),
                cycles.visible[first:last, :rows],
            )
        )
    return torch.cat([*dense, torch.cat(flights).flatten(0, 1)])[None]
