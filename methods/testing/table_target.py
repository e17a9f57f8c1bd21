"""A target whose next-token laws are chosen, and whose output tells of every mistake in its state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from methods.models.block import Block
from methods.models.passes import PassLog
from methods.models.rotary import Rotary
from methods.models.shape import TargetShape
from methods.models.stages import Stage
from methods.models.state import LayerCache
from methods.models.target import Target

_MODULUS = (1 << 24) - 3
"""Prefix hashes are below it, so that float32 holds them exactly."""
_TOKEN, _CONTEXT, _HASH = 0, 1, 2
"""Channels of the residual stream; the others hold a random embedding of the token."""


@dataclass(frozen=True)
class LawTable:
    """Next-token logits [contexts, vocab] by context: the tokens since the last position that is a
    multiple of ``period``, where the past is forgotten.

    Forgetting makes blocks of ``period`` tokens independent and identically distributed, so one
    long decode call gives many draws of a joint law that is known exactly.
    """

    logits: Tensor
    period: int

    @classmethod
    def random(cls, vocab: int, period: int = 3, seed: int = 0, sharpness: float = 1.0) -> LawTable:
        """Independent normal logits for every context; ``sharpness`` 0 is flat, 8 nearly greedy."""
        contexts = sum(vocab**i for i in range(period))
        generator = torch.Generator().manual_seed(seed)
        return cls(sharpness * torch.randn(contexts, vocab, generator=generator), period)

    @classmethod
    def tied(cls, vocab: int, period: int = 3, seed: int = 3) -> LawTable:
        """Logits in steps of a half: most top-k and top-p boundaries fall between equal tokens."""
        table = cls.random(vocab, period, seed)
        return cls((table.logits * 2).round() / 2, period)

    @property
    def vocab(self) -> int:
        return self.logits.shape[1]

    def after(self, context: int, position: int, token: int) -> int:
        """The context behind ``token`` at ``position``; contexts are the nodes of a ``vocab``-ary tree."""
        return 0 if (position + 1) % self.period == 0 else context * self.vocab + 1 + token

    def context(self, tokens: Sequence[int]) -> int:
        """The context behind a whole sequence, its first token at position 0."""
        context = 0
        for position in range(len(tokens) - len(tokens) % self.period, len(tokens)):
            context = self.after(context, position, tokens[position])
        return context


class Prefix(NamedTuple):
    """The identity of a token sequence: its length, a hash, and its context in the law table."""

    length: int = 0
    hash: int = 1
    context: int = 0


class PrefixCache(LayerCache):
    """What a layer remembers of each slot: its prefix, and its own share of the prefix's hash."""

    def __init__(self) -> None:
        self.prefixes: list[Prefix] = []
        self.shares: list[int] = []

    def reserve(self, capacity: int) -> None:
        pass

    def truncate(self, length: int) -> None:
        del self.prefixes[length:], self.shares[length:]

    def gather(self, base: int, slots: Sequence[int]) -> None:
        self.prefixes[base:] = [self.prefixes[slot] for slot in slots]
        self.shares[base:] = [self.shares[slot] for slot in slots]

    def commit(self, length: int) -> None:
        pass

    def contents(self, length: int) -> list[Tensor]:
        return [torch.tensor(self.prefixes[:length]), torch.tensor(self.shares[:length])]


class PrefixLayer:
    """Works out who each new token's predecessors are, in the two ways real layers do, and compares.

    Like a recurrent layer it extends the parent slot's prefix; like attention it sums what the mask
    shows. The first layer writes the prefix into the residual stream, the others check that theirs
    is the same. Any disagreement is written there as an unrelated context, so the law is wrong.
    """

    def __init__(self, table: LawTable, index: int, passes: PassLog) -> None:
        self._table = table
        self._index, self._passes = index, passes

    def new_cache(self, batch: int, like: Tensor) -> PrefixCache:
        return PrefixCache()

    def __call__(self, x: Tensor, block: Block, cache: PrefixCache) -> Tensor:
        """Residual stream [1, count, hidden] -> the same with the prefix in it."""
        self._passes.ran(self._index, block.start, x.shape[1])
        streams = x[0, :, : _HASH + 1].tolist()
        owns = [
            self._extend(cache, block, offset, int(token)) for offset, (token, _, _) in enumerate(streams)
        ]
        out = x
        for offset, (visible, own) in enumerate(zip(self._visible(cache, block), owns, strict=True)):
            _, context, found = streams[offset]
            written = Prefix(own.length, round(found * (1 << 24)), int(context))
            if visible % _MODULUS == own.hash and (own == written or not found):
                mark = own
            else:
                mark = self._unrelated(own, written, visible)
            if mark != written:
                out = x.clone() if out is x else out
                out[0, offset, _CONTEXT], out[0, offset, _HASH] = mark.context, mark.hash / (1 << 24)
        return out

    def _visible(self, cache: PrefixCache, block: Block) -> list[int]:
        """What the mask shows each new slot: the sum of the shares, and 1."""
        if block.visible is None:
            return [1 + sum(cache.shares[: block.end])] * block.count
        shares = torch.tensor(cache.shares[: block.end])
        return (1 + (block.visible[0, :, : len(shares)] * shares).sum(-1)).tolist()

    def _extend(self, cache: PrefixCache, block: Block, offset: int, token: int) -> Prefix:
        parent = block.parents[offset]
        before = cache.prefixes[parent] if parent >= 0 else Prefix()
        share = (before.length + 1) * 2654435761 * (token + 1) % _MODULUS
        prefix = Prefix(
            before.length + 1,
            (before.hash + share) % _MODULUS,
            self._table.after(before.context, before.length, token),
        )
        slot = block.start + offset
        # Overwrites what a faulty rollback left there, as a real cache would.
        cache.prefixes[slot : slot + 1], cache.shares[slot : slot + 1] = [prefix], [share]
        return prefix

    def _unrelated(self, own: Prefix, written: Prefix, visible: int) -> Prefix:
        mixed = (own.hash * 31 + written.hash * 17 + visible * 7) % _MODULUS or 1
        return Prefix(own.length, mixed, mixed % len(self._table.logits))


class TableTarget(Target):
    """The surface of ``Target`` on a ``LawTable``; the rollback state is the real one.

    ``logits_dtype`` rounds what the methods see as logits. Hidden states are float32.
    """

    def __init__(
        self, table: LawTable, layers: int = 4, context: int = 4096, logits_dtype: torch.dtype = torch.float32
    ) -> None:
        hidden, generator = 16, torch.Generator().manual_seed(0)
        self.table = table
        self.tokenizer = None
        self.source = None
        self.name = "table"
        self.passes = PassLog()
        self.layers: list[Any] = [PrefixLayer(table, index, self.passes) for index in range(layers)]
        self.num_layers, self.hidden_size = layers, hidden
        self.vocab_size, self.context = table.vocab, context
        self.embedding = torch.randn(table.vocab, hidden, generator=generator)
        self.embedding[:, : _HASH + 1] = 0.0
        self.embedding[:, _TOKEN] = torch.arange(table.vocab)
        self.head_weight = torch.randn(table.vocab, hidden, generator=generator)
        self.final_norm: Any = lambda x: F.rms_norm(x, (hidden,))
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.source, self._like = None, torch.empty(0)
        self.rotary = Rotary(_Angles(), self.dtype, self.device)
        self.logits_dtype = logits_dtype
        self._logits = table.logits.to(logits_dtype)
        self._whole = self.stage(0, layers)

    def stage(self, first: int, last: int) -> Stage:
        return Stage(self.layers, first, last, self.rotary, self.embedding, self.passes)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return ()

    @property
    def hashes(self) -> dict[str, str]:
        return {"sha256": "", "tokenizer_sha256": ""}

    @property
    def shape(self) -> TargetShape:
        return TargetShape(
            name=self.name,
            **self.hashes,
            num_layers=self.num_layers,
            hidden=self.hidden_size,
            intermediate=24,
            heads=2,
            kv_heads=1,
            head_dim=8,
            vocab=self.vocab_size,
            eps=1e-6,
            rotary_dim=8,
            model_type="table",
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """The table's row of the context in the residual stream [..., hidden] -> [..., vocab]."""
        return self._logits[hidden[..., _CONTEXT].long()]


class _Angles(nn.Module):
    """Rotary angles of 8 dimensions, theta 1e4, for drafters that attend."""

    def forward(self, like: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = 1e4 ** -(torch.arange(0, 8, 2) / 8)
        angles = position_ids[..., None] * torch.cat((frequencies, frequencies))
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)
