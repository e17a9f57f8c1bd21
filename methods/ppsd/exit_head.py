"""PPSD's exit head: the residual stream after stage 1 to draft logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from methods.drafters.attention import causal_mask
from methods.drafters.decoder_layer import MLP, DecoderLayer, LayerConfig, RMSNorm
from methods.drafters.rotary import Rotary
from methods.drafters.session import RowSession
from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError

HeadClass = Literal["layer", "mlp", "linear"]


@dataclass(frozen=True, slots=True)
class ExitHeadConfig:
    """``exit_layers`` is the size of stage 1; ``window`` the attention span, None unbounded."""

    layer: LayerConfig
    exit_layers: int
    head_class: HeadClass = "layer"
    window: int | None = None

    def __post_init__(self) -> None:
        if self.head_class not in get_args(HeadClass):
            raise UsageError(f"unknown head class {self.head_class!r}; allowed: layer, mlp, linear")
        if self.window is not None and self.window < 1:
            raise UsageError(f"training span must be at least 1 position, got {self.window}")


class ExitHead(nn.Module):
    """One decoder layer ("layer"), a residual MLP ("mlp") or nothing ("linear"), norm and head.

    Row t is the raw residual stream after stage 1 at position t; the output there is the draft law
    of position t + 1. Unlike the pipeline draft module it owns its final norm.
    """

    def __init__(self, config: ExitHeadConfig, vocabulary: DraftVocabulary, rotary: Rotary) -> None:
        super().__init__()
        layer = config.layer
        self.config = config
        self.vocabulary = vocabulary
        self.rotary = rotary
        self.layers = nn.ModuleList([DecoderLayer(layer)] if config.head_class == "layer" else [])
        if config.head_class == "mlp":
            self.mlp_norm = RMSNorm(layer.hidden, layer.eps, layer.zero_centred_norm)
            self.mlp = MLP(layer.hidden, layer.intermediate)
        self.norm = RMSNorm(layer.hidden, layer.eps, layer.zero_centred_norm)
        self.lm_head = nn.Linear(layer.hidden, vocabulary.size, bias=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits [..., draft_vocab] of layer outputs [..., hidden]."""
        if self.config.head_class == "mlp":
            hidden = hidden + self.mlp(self.mlp_norm(hidden))
        return self.lm_head(self.norm(hidden))

    def stateless(
        self,
        features: Tensor,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        last: int | None = None,
    ) -> Tensor:
        """Draft logits [..., last, draft_vocab] of one plain pass, no cache; ``last`` None: all rows.

        ``features`` is [rows, hidden] or [batch, rows, hidden]; ``mask`` (bool [rows, rows]) and
        ``positions`` [rows] default to a causal chain from position 0. Differentiable.
        """
        hidden = features if features.dim() == 3 else features[None]
        count = hidden.shape[1]
        if positions is None:
            positions = torch.arange(count, device=hidden.device)
        if self.config.window is not None:
            if mask is None:
                mask = causal_mask(count, count, hidden.device)
            mask = mask & (positions[:, None] - positions < self.config.window)
        cos, sin = self.rotary(positions)
        for layer in self.layers:
            hidden, _ = layer(hidden, None, cos, sin, mask)
        out = self.logits(hidden if last is None else hidden[:, count - last :])
        return out if features.dim() == 3 else out[0]

    def session(self) -> ExitSession:
        """A new sequence's incremental pass."""
        return ExitSession(self)


class ExitSession:
    """The exit head along one sequence.

    Stage-1 features never change, so a chain keeps each row as soon as it is there (``final``) and
    rolls back on a flush. Nodes of a draft tree are passed as ``in_flight`` and not kept.
    """

    def __init__(self, head: ExitHead) -> None:
        self._head = head
        layers = [layer for layer in head.layers if isinstance(layer, DecoderLayer)]
        self._rows = RowSession(layers, head.rotary, head.config.window)

    @property
    def length(self) -> int:
        """Rows kept, which is the position of the next one."""
        return self._rows.length

    def rollback(self, length: int) -> None:
        """Forget rows from position ``length`` on."""
        self._rows.rollback(length)

    @torch.no_grad()
    def step(
        self,
        final: Tensor | None,
        in_flight: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        last: int = 1,
    ) -> Tensor:
        """Draft logits [last, draft_vocab] of the last ``last`` rows.

        ``final`` [rows, hidden] are kept at positions ``length`` on; ``in_flight`` [rows, hidden]
        are tree nodes with ``positions`` and ancestor ``mask``, as in the draft module's session.
        """
        parts = [part for part in (final, in_flight) if part is not None]
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        kept = 0 if final is None else final.shape[0]
        hidden = self._rows.advance(rows, kept, positions=positions, mask=mask, last=last)
        return self._head.logits(hidden)
