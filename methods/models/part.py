"""Which layers and ends of a target one process holds."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Layers ``first`` to ``last`` (exclusive), the token embedding, the head. The final norm, which
    is small, is always there."""

    first: int = 0
    last: int = 0
    embedding: bool = False
    head: bool = False

    def holds(self, key: str, tied: bool) -> bool:
        """Whether the tensor a checkpoint names ``key`` belongs to this part."""
        layer = re.search(r"(?:^|\.)layers\.(\d+)\.", key)
        if layer is not None:
            return self.first <= int(layer[1]) < self.last
        if "embed_tokens" in key:
            return self.embedding or (self.head and tied)
        return self.head if "lm_head" in key else key.endswith("norm.weight")
