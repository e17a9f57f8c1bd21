"""What the tables measure: their rows and columns, and how many prompts and tokens each size takes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from harness.cli.arguments import METHOD_FLAGS
from harness.config.paper_rows import PAPER_ROWS
from harness.execution.plan import AR
from harness.records.record import Mode
from methods.errors import UsageError
from paper_tables.published import ALL_CELLS, MODELS

Option = int | str | bool
_LONGEST = 40
"""Characters of an option's value in a file name."""


@dataclass(frozen=True)
class Size:
    """Prompts per benchmark for each temperature, and the cap on new tokens; ``folder`` keeps its
    records, that of its name by default."""

    prompts: Mapping[float, int]
    max_new_tokens: int
    folder: str | None = None

    @property
    def temperatures(self) -> tuple[float, ...]:
        return tuple(self.prompts)


SIZES = {
    # Six minutes on two CPU cores: AR's outputs are decoded once, in batches, and rows are replayed.
    "quick": Size(prompts={0.0: 8, 1.0: 8}, max_new_tokens=128),
    "paper": Size(prompts={0.0: 80, 1.0: 80}, max_new_tokens=512),
}

TREE_SIZES = {
    # A pipeline's draft tree cannot be replayed: fewer prompts, decoded with AR beside them.
    "quick": Size(prompts={0.0: 4, 1.0: 2}, max_new_tokens=64, folder="quick-trees"),
    "paper": SIZES["paper"],
}

TIMED_SIZES = {
    # Nothing is replayed where times are wanted, and a pipeline whose stages take turns runs a token
    # for half a second: less of everything, for seven minutes on the same two cores.
    "quick": Size(prompts={0.0: 1, 1.0: 1}, max_new_tokens=16, folder="quick-timed"),
    "paper": SIZES["paper"],
}


@dataclass(frozen=True)
class Row:
    """One row of a table: a registered method with its options."""

    label: str
    method: str
    options: tuple[tuple[str, Option], ...] = ()

    @classmethod
    def of(cls, label: str, method: str, **options: Option) -> Row:
        return cls(label, method, tuple(options.items()))

    @property
    def slug(self) -> str:
        """The row as part of a file name."""
        parts = [_as_name(self.method)]
        for name, value in self.options:
            parts.append(name.replace("_", "-") + ("" if value is True else _as_name(str(value))))
        return "-".join(parts)

    def with_options(self, mark: str, **options: Option) -> Row:
        return replace(self, label=f"{self.label}{mark}", options=(*self.options, *options.items()))

    def flags(self) -> list[str]:
        """The method and its options as ``harness.run`` takes them."""
        argv = ["--method", self.method]
        for name, value in self.options:
            if name == "untrained" and value is False:
                continue
            if name not in (*METHOD_FLAGS, "width"):
                argv += ["--option", f"{name}={value}"]
            else:
                argv += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
        return argv


def _as_name(value: str) -> str:
    """``value`` as part of a file name. What does not fit is left out, and a hash tells it from others."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", value.rpartition("/")[2])[-_LONGEST:]
    return name if name == value else f"{name}-{hashlib.sha256(value.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Spec:
    """One table. ``columns`` are result-row names of ``harness.analysis.summary``; ``published`` those
    of them that the paper prints too. ``mode`` "replay" lets rows that can be replayed be replayed;
    ``printed_for`` names the columns of published figures: models, or ``ALL_CELLS``;
    ``profile`` the devices of its emulated and projected columns."""

    number: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[str, ...]
    published: tuple[str, ...]
    mode: Mode = "replay"
    width: int = 1
    printed_for: tuple[str, ...] = MODELS
    profile: str | None = None
    sizes: Mapping[str, Size] = field(default_factory=lambda: SIZES)


_AR = Row.of("AR", AR)
_NGRAM = Row.of("n-gram", "ngram")
_LABELS = {"eagle3": "EAGLE-3 m={m}", "ppsd": "PPSD n={n}", "spd": "SPD n={n} Ls={draft_layers}"}


def _labelled(method: str, own: Mapping[str, int], mark: str = "", **options: Option) -> Row:
    return Row.of(_LABELS[method].format_map(own) + mark, method, **own, **options)


def _spd(n: int, draft_layers: int, mark: str = "", **options: Option) -> Row:
    return _labelled("spd", {"n": n, "draft_layers": draft_layers}, mark, **options)


def _paper_rows(mark: str = "", **options: Option) -> tuple[Row, ...]:
    return tuple(_labelled(method, own, mark, **options) for method, own in PAPER_ROWS)


TABLE1 = (_AR, *_paper_rows(), _spd(16, 1), _NGRAM)
"""The paper's rows with their Ls, the draft of one layer that stages of a shallow target leave time for,
and the n-gram drafter, which needs no training."""

_TABLE3 = tuple(
    row
    for n, draft_layers in ((4, 4), (8, 3), (16, 2))
    for row in (
        _spd(n, draft_layers, " pre-step"),
        _spd(n, draft_layers, " post-step", schedule="post-step"),
    )
)
_TABLE4 = tuple(_spd(n, draft_layers) for n in (4, 8, 16) for draft_layers in (1, 2, 3, 4))

_RANKS = Row.of("SPD n=2, a process per stage", "spd", n=2, runtime="distributed", layout="n")
"""As many processes as two cores can carry: the drafter works beside stage 1."""

SPECS = {
    spec.number: spec
    for spec in (
        Spec("1", "S0 and S", TABLE1, ("S0", "S"), ("S0", "S")),
        Spec(
            "2",
            "wall-clock",
            (*TABLE1, _RANKS),
            (
                "tok_per_s",
                "ar_tok_per_s",
                "wallclock_speedup",
                "ranks_wallclock_speedup",  # one row's: one process and many never share a column
                "emulated_wallclock_speedup",
                "projected_wallclock_speedup",
            ),
            ("wallclock_speedup",),
            mode="decode",
            profile="qwen3.5-4b",
            sizes=TIMED_SIZES,
        ),
        Spec(
            "3",
            "pre-step against post-step drafting",
            _TABLE3,
            ("step_acceptance", "S0", "S"),
            ("S0", "S"),
            printed_for=(*MODELS, ALL_CELLS),
        ),
        Spec("4", "draft layers and pipeline stages", _TABLE4, ("step_acceptance", "S0", "S"), ("S",)),
        Spec(
            "5",
            "draft trees",
            _paper_rows(" W=4", width=4),
            ("S0", "nodes_per_stage", "S"),
            ("S0", "S"),
            width=4,
            sizes=TREE_SIZES,
        ),
    )
}


def spec(number: str) -> Spec:
    """Table ``number``; ``UsageError`` lists what exists."""
    if number not in SPECS:
        raise UsageError(f"unknown table {number!r}; known: {', '.join(SPECS)}")
    return SPECS[number]


def size(name: str, of: Spec) -> Size:
    """A table's size called ``name``; ``UsageError`` lists what exists."""
    if name not in of.sizes:
        raise UsageError(f"unknown size {name!r}; known: {', '.join(of.sizes)}")
    return of.sizes[name]
