"""The pipeline draft module (PDM): target features at uneven depths to draft logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from methods.drafters.attention import causal_mask
from methods.drafters.decoder_layer import DecoderLayer, LayerConfig
from methods.drafters.rotary import Rotary
from methods.drafters.session import RowSession
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError
from methods.spd.aggregation import Aggregation


@dataclass(frozen=True, slots=True)
class DraftModuleConfig:
    """What defines a draft module besides its weights. ``window``: attention span, None unbounded."""

    layer: LayerConfig
    aggregation: Aggregation
    draft_layers: int
    window: int | None = None

    def __post_init__(self) -> None:
        if self.draft_layers < 1:
            raise UsageError(f"draft layers must be at least 1, got {self.draft_layers}")
        if self.window is not None and self.window < 1:
            raise UsageError(f"training span must be at least 1 position, got {self.window}")


class DraftModule(nn.Module):
    """Aggregation projections, decoder layers and a head over the draft vocabulary.

    The row of a position at depth d is ``aggr_projs[f(d)]`` of its residual-stream taps at anchors
    0 .. f(d), concatenated: raw, without norm, bias or activation. A causal pass over the rows,
    the target's own final norm and ``lm_head`` give, at position t, the draft law of t + 1.

    Taps are tensors [..., rows, anchors, hidden]; entries of anchors a row has not reached yet are
    never read. ``final_norm`` and ``rotary`` are the target's and no part of this module's
    parameters or checkpoint.
    """

    def __init__(
        self,
        config: DraftModuleConfig,
        vocabulary: DraftVocabulary,
        final_norm: Callable[[Tensor], Tensor],
        rotary: Rotary,
    ) -> None:
        super().__init__()
        hidden = config.layer.hidden
        self.config = config
        self.vocabulary = vocabulary
        self.aggr_projs = nn.ModuleList(
            nn.Linear((i + 1) * hidden, hidden, bias=False) for i in range(len(config.aggregation.anchors))
        )
        self.spec_layers = nn.ModuleList(DecoderLayer(config.layer) for _ in range(config.draft_layers))
        self.lm_head = nn.Linear(hidden, vocabulary.size, bias=False)
        # In a tuple, or a norm that is a module would join the parameters.
        self._frozen = (final_norm, rotary)

    @property
    def rotary(self) -> Rotary:
        return self._frozen[1]

    def aggregate(self, taps: Tensor, depths: Sequence[int]) -> Tensor:
        """Input rows [..., rows, hidden] of ``taps`` [..., rows, anchors, hidden] at ``depths``."""
        if len(depths) != taps.shape[-3]:
            raise ValueError(f"{len(depths)} depths for {taps.shape[-3]} rows")
        kinds = [self.config.aggregation.types[depth] for depth in depths]
        pieces, start = [], 0
        for kind, run in groupby(kinds):
            end = start + sum(1 for _ in run)
            pieces.append(self.aggr_projs[kind](taps[..., start:end, : kind + 1, :].flatten(-2)))
            start = end
        return torch.cat(pieces, dim=-2)

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits [..., draft_vocab] of layer outputs [..., hidden]."""
        return self.lm_head(self._frozen[0](hidden))

    def stateless(
        self,
        taps: Tensor,
        depths: Sequence[int],
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        last: int = 1,
    ) -> Tensor:
        """Draft logits [..., last, draft_vocab] of one plain pass over all rows, no cache.

        ``taps`` is [rows, anchors, hidden] or [batch, rows, anchors, hidden]. ``mask`` (bool [rows,
        rows]) and ``positions`` [rows] default to a causal chain from position 0. This is the
        definition of the drafter (and differentiable); ``session`` computes the same from a cache.
        """
        rows = self.aggregate(taps, depths)
        hidden = rows if rows.dim() == 3 else rows[None]
        count = rows.shape[-2]
        if positions is None:
            positions = torch.arange(count, device=rows.device)
        if self.config.window is not None:
            if mask is None:
                mask = causal_mask(count, count, rows.device)
            mask = mask & (positions[:, None] - positions < self.config.window)
        cos, sin = self.rotary(positions)
        for layer in self.spec_layers:
            hidden, _ = layer(hidden, None, cos, sin, mask)
        out = self.logits(hidden[:, count - last :])
        return out if rows.dim() == 3 else out[0]

    def session(self) -> DraftSession:
        """A new sequence's incremental pass."""
        return DraftSession(self)


class DraftSession:
    """The draft module along one sequence: completed rows cached, in-flight rows recomputed.

    A completed row (depth n) depends on earlier completed rows only, so it is computed once. A row
    in flight gains features every cycle, so its keys and values are dropped after the pass.
    """

    def __init__(self, module: DraftModule) -> None:
        self._module = module
        self._rows = RowSession(
            [layer for layer in module.spec_layers if isinstance(layer, DecoderLayer)],
            module.rotary,
            module.config.window,
        )

    @property
    def length(self) -> int:
        """Completed rows cached, which is the position of the next one."""
        return self._rows.length

    def rollback(self, length: int) -> None:
        """Forget completed rows from position ``length`` on."""
        self._rows.rollback(length)

    @torch.no_grad()
    def step(
        self,
        completed: Tensor | None,
        in_flight: Tensor | None = None,
        depths: Sequence[int] = (),
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        last: int = 1,
    ) -> Tensor:
        """Draft logits [last, draft_vocab] of the last ``last`` rows.

        ``completed`` [rows, anchors, hidden] are the rows that reached depth n since the last call,
        from position ``length`` on. ``in_flight`` [rows, anchors, hidden] are at ``depths``, oldest
        first: each a chain's next position, or a tree's nodes with ``positions`` [in flight] and an
        ancestor ``mask`` (bool [in flight, in flight], each node sees itself). A prompt is one call
        with its rows completed.
        """
        n = self._module.config.aggregation.n
        parts = [part for part in (completed, in_flight) if part is not None]
        final = 0 if completed is None else completed.shape[0]
        taps = parts[0] if len(parts) == 1 else torch.cat(parts)
        rows = self._module.aggregate(taps, [n] * final + list(depths))
        hidden = self._rows.advance(rows, final, positions=positions, mask=mask, last=last)
        return self._module.logits(hidden)
