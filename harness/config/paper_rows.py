"""What the SPD paper compares: the drafting methods and options of its Table 1 (arXiv 2605.30852)."""

from __future__ import annotations

from collections.abc import Mapping

PAPER_ROWS: tuple[tuple[str, Mapping[str, int]], ...] = (
    *(("eagle3", {"m": m}) for m in (3, 7, 15)),
    *(("ppsd", {"n": n}) for n in (4, 8, 16)),
    *(("spd", {"n": n, "draft_layers": layers}) for n, layers in ((4, 4), (8, 4), (8, 3), (8, 2), (16, 2))),
)
