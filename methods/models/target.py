"""The frozen language model whose output every method must reproduce."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from methods.errors import UsageError
from methods.models.fused import RMSNorm
from methods.models.layer import build_layers
from methods.models.part import Part
from methods.models.passes import PassLog
from methods.models.rotary import Rotary
from methods.models.shape import TargetShape
from methods.models.stages import Stage
from methods.models.state import State

PREFILL_CHUNK = 512
"""Tokens per prefill pass: bounds the attention mask, and is the same on every machine."""


@dataclass(slots=True)
class Forward:
    """``hidden`` [batch, count, hidden] before the final norm, and the residual stream at the taps."""

    hidden: Tensor
    taps: dict[int, Tensor]


class Target:
    """A transformers causal LM behind the rollback state and the layer split of this project.

    ``hf`` stays a working transformers model on the same weights. ``source`` is how another process
    obtains the same target, None if it exists in this one only. Of a target loaded in part
    (``methods.models.parts``) only the loaded layers, embedding or head can be used.
    """

    def __init__(
        self,
        hf: Any,
        tokenizer: Any = None,
        name: str = "in-memory",
        hashes: dict[str, str] | None = None,
        source: TargetSource | None = None,
    ) -> None:
        self.hf: Any = hf.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name = name
        self.config = self.hf.config.get_text_config()
        body = self.hf.model
        self._hashes = hashes
        self.source = source
        self.passes = PassLog(body.layers)
        self.layers = build_layers(body, self.config, self.passes)
        self.num_layers = len(self.layers)
        self.hidden_size: int = self.config.hidden_size
        self.vocab_size: int = self.config.vocab_size
        self.context: int = self.config.max_position_embeddings
        self.embedding: Tensor = body.embed_tokens.weight
        self.head_weight: Tensor = self.hf.lm_head.weight
        self.final_norm = RMSNorm(body.norm)
        self.dtype, self.device = self.embedding.dtype, body.norm.weight.device
        self.rotary = Rotary(body.rotary_emb, self.dtype, self.device)
        self._like = torch.empty(0, dtype=self.dtype, device=self.device)
        self._whole = self.stage(0, self.num_layers)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """End-of-sequence ids of the generation config (several where it lists several)."""
        ids = getattr(self.hf, "generation_config", None)
        ids = ids.eos_token_id if ids is not None else None
        ids = self.config.eos_token_id if ids is None else ids
        return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)

    def stage(self, first: int, last: int) -> Stage:
        """Layers ``first`` to ``last`` (exclusive) as a pipeline stage."""
        return Stage(self.layers, first, last, self.rotary, self._like, self.passes)

    def new_state(self, batch: int = 1, pad: Tensor | None = None) -> State:
        """An empty state of all layers."""
        return self._whole.new_state(batch, pad)

    def embed(self, ids: Tensor | Sequence[int]) -> Tensor:
        """Token ids [count] or [batch, count] -> [batch, count, hidden]."""
        ids = torch.as_tensor(ids, device=self.device)
        return F.embedding(ids if ids.dim() == 2 else ids[None], self.embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [..., vocab] of the residual stream after the last layer [..., hidden]."""
        return F.linear(self.final_norm(hidden), self.head_weight)

    def forward(
        self,
        ids: Tensor | Sequence[int],
        state: State,
        parents: Sequence[int] | None = None,
        record: bool = False,
        taps: Collection[int] = (),
    ) -> Forward:
        """Run new tokens through all layers; see ``Stage.forward``."""
        return Forward(*self._whole.forward(self.embed(ids), state, parents, record, taps))

    def prefill(self, prompt_ids: Sequence[int], state: State, taps: Collection[int] = ()) -> Forward:
        """Run a prompt in chunks. ``hidden`` is that of the last token [1, 1, hidden]; the taps are
        of the whole prompt [1, prompt, hidden]. ``UsageError`` if empty or longer than the context."""
        self.check_prompt(prompt_ids)
        parts = [
            self.forward(prompt_ids[start : start + PREFILL_CHUNK], state, taps=taps)
            for start in range(0, len(prompt_ids), PREFILL_CHUNK)
        ]
        whole = {tap: torch.cat([part.taps[tap] for part in parts], 1) for tap in taps}
        return Forward(parts[-1].hidden[:, -1:], whole)

    def check_prompt(self, prompt_ids: Sequence[int]) -> None:
        """``UsageError`` unless the prompt has tokens of this vocabulary and leaves room for one more."""
        if not len(prompt_ids):
            raise UsageError("the prompt is empty; at least one token is needed")
        if len(prompt_ids) >= self.context:
            raise UsageError(
                f"the prompt has {len(prompt_ids)} tokens; {self.name} has a context of {self.context}, "
                f"so at most {self.context - 1} are allowed"
            )
        if not (min(prompt_ids) >= 0 and max(prompt_ids) < self.vocab_size):
            raise UsageError(
                f"a prompt token is outside the vocabulary of {self.name} (0..{self.vocab_size - 1})"
            )

    def room(self, prompt_ids: Sequence[int], max_new_tokens: int) -> int:
        """``max_new_tokens``, or less where the context ends before."""
        return min(max_new_tokens, self.context - len(prompt_ids))

    @cached_property
    def hashes(self) -> dict[str, str]:
        """sha256 of the weights and of the tokenizer."""
        from methods.models.hashing import module_sha256, tokenizer_sha256

        if self._hashes is not None:
            return self._hashes
        return {"sha256": module_sha256(self.hf), "tokenizer_sha256": tokenizer_sha256(self.tokenizer)}

    @property
    def shape(self) -> TargetShape:
        """Sizes and identity, as a drafter's checkpoint must match them."""
        return TargetShape.from_config(self.config, self.name, **self.hashes)

    def fingerprint(self) -> dict[str, Any]:
        """What identifies this target in a record or a drafter's checkpoint."""
        return {"target": self.name, **self.hashes, "dtype": str(self.dtype).removeprefix("torch.")}


class TargetSource(Protocol):
    """How another process obtains the same target. It must pickle."""

    def load(self, part: Part, device: torch.device) -> Target:
        """A target of which only ``part`` has weights; everything else is on the meta device.

        Raises ``UsageError`` if the files are missing or are not those of this source.
        """
