"""Every figure of the project as a pure function of records.

N = tokens emitted after the token of the prefill, L = the target's decoder layers. All functions
leave failed records out; ``failed`` counts them. Each ratio is an ``Estimate``: pooled over all
records, the mean of the prompts' own ratios, and bootstrap intervals of both.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.estimate import (
    Estimate,
    Floats,
    divide,
    estimate,
    prompt_of,
    ratio_of_ratios,
    ratio_of_sums,
)
from harness.records.record import Record


def s0(records: Sequence[Record], **bootstrap: int) -> Estimate | None:
    """S0 = N * L / sum(target_layers): the speedup if drafting were free. AR is 1."""
    rows = [[r.decoded * r.num_layers, r.total("target_layers")] for r in completed(records)]
    return estimate(completed(records), rows, ratio_of_sums, **bootstrap)


def s(records: Sequence[Record], **bootstrap: int) -> Estimate | None:
    """S = N * L / sum(target_layers + draft_layers): the speedup in layers on the critical path.

    ``draft_layers`` holds only what drafting adds to the target's own path, so S = S0 for a drafter
    that is hidden behind the target. For uniform stages this is the paper's S_eagle, S_ppsd, S_spd.
    """
    rows = [
        [r.decoded * r.num_layers, r.total("target_layers") + r.total("draft_layers")]
        for r in completed(records)
    ]
    return estimate(completed(records), rows, ratio_of_sums, **bootstrap)


def l_acc(records: Sequence[Record], **bootstrap: int) -> Estimate | None:
    """L_acc, the equivalent acceptance length: tokens per L target layers of critical path.

    L_acc = N * L / sum(target_layers). A draft-and-verify round costs L layers, so this is N /
    rounds (EAGLE-3, the target's own token included); a cycle of n uniform stages costs L / n, so
    this is n * N / cycles (SPD, PPSD); AR is 1. With uneven stages a cycle costs its largest
    stage, and only the layers tell. By this definition it is S0, under the paper's name.
    """
    return s0(records, **bootstrap)


def step_acceptance(records: Sequence[Record], **bootstrap: int) -> Estimate | None:
    """sum(accepted) / sum(depth): accepted share of the accept-or-reject decisions; None without any."""
    rows = [[r.total("accepted"), r.total("depth")] for r in completed(records)]
    return estimate(completed(records), rows, ratio_of_sums, **bootstrap)


def conditional_acceptance(records: Sequence[Record], depth: int, **bootstrap: int) -> Estimate | None:
    """Share of the steps that accepted depth - 1 and examined ``depth`` (from 1) which accepted it."""
    rows = []
    for record in completed(records):
        pairs = zip(record.steps.accepted, record.steps.depth, strict=True)
        reached = [kept for kept, examined in pairs if examined >= depth and kept >= depth - 1]
        rows.append([float(sum(kept >= depth for kept in reached)), float(len(reached))])
    return estimate(completed(records), rows, ratio_of_sums, **bootstrap)


def nodes_per_stage(records: Sequence[Record], **bootstrap: int) -> Estimate | None:
    """sum(nodes) / (stages * steps): tokens a stage runs per step on average, idle stages included.

    1 for AR; what a draft tree costs in target compute, which S0 and S leave out.
    """
    rows = [[r.total("nodes"), r.stages * r.total("steps")] for r in completed(records)]
    return estimate(completed(records), rows, ratio_of_sums, **bootstrap)


def tok_per_s(records: Sequence[Record], **bootstrap: int) -> Estimate | None:
    """N / sum(decode_s): decoded tokens per second, prefill outside. Outputs that are not timed, or that
    the prefill's token ends, have no speed; None without any other."""
    timed = [r for r in completed(records) if r.decode_s is not None and r.decoded]
    rows = [[float(r.decoded), r.decode_s or 0.0] for r in timed]
    return estimate(timed, rows, ratio_of_sums, **bootstrap)


def wallclock_speedup(
    records: Sequence[Record], baseline: Sequence[Record], **bootstrap: int
) -> Estimate | None:
    """AR decode seconds per token / the method's, over the prompts both arms completed.

    Paired on (benchmark, prompt_id, turn, temperature, repeat): pooled it is
    (sum AR decode_s / sum AR N) / (sum decode_s / sum N) of the pairs.
    """
    pairs = timed_pairs(records, baseline)
    return estimate(
        [r for r, _ in pairs], [_speedup_row(*pair) for pair in pairs], ratio_of_ratios, **bootstrap
    )


def speedup_ratio(
    first: Sequence[tuple[Record, Record]], second: Sequence[tuple[Record, Record]], **bootstrap: int
) -> Estimate | None:
    """Wall-clock speedup of ``second`` / that of ``first``, each against AR of its own run.

    Both are ``timed_pairs``; only prompts that are in both count, and a resample draws the same prompts
    for both runs. A machine that was slower for all of one run cancels out.
    """
    known = {record.unit: _speedup_row(record, ar) for record, ar in first}
    shared = [(record, ar) for record, ar in second if record.unit in known]
    rows = [[*_speedup_row(record, ar), *known[record.unit]] for record, ar in shared]
    return estimate([record for record, _ in shared], rows, _ratio_of_speedups, **bootstrap)


def phase_time(
    records: Sequence[Record], baseline: Sequence[Record], names: Sequence[str], **bootstrap: int
) -> Estimate | None:
    """Seconds per token in the phases ``names`` / decode seconds per token of AR beside the method."""
    pairs = timed_pairs(records, baseline)
    rows = [
        [
            sum(r.phases.get(name, 0.0) for name in names),
            float(r.decoded),
            ar.decode_s or 0.0,
            float(ar.decoded),
        ]
        for r, ar in pairs
    ]
    return estimate([r for r, _ in pairs], rows, ratio_of_ratios, **bootstrap)


def beside(records: Sequence[Record], baseline: Sequence[Record]) -> list[Record]:
    """The completed records of ``baseline`` for the prompts that ``records`` completed."""
    wanted = {record.unit for record in completed(records)}
    return [record for record in completed(baseline) if record.unit in wanted]


def timed_pairs(records: Sequence[Record], baseline: Sequence[Record]) -> list[tuple[Record, Record]]:
    """The timed records with AR's of the same prompt, turn, temperature and repeat, where it is timed."""
    reference = {ar.unit: ar for ar in completed(baseline) if ar.decode_s is not None}
    timed = [record for record in completed(records) if record.decode_s is not None]
    return [(r, reference[r.unit]) for r in timed if r.unit in reference]


def _speedup_row(record: Record, ar: Record) -> list[float]:
    return [ar.decode_s or 0.0, float(ar.decoded), record.decode_s or 0.0, float(record.decoded)]


def accuracy(records: Sequence[Record], **bootstrap: int) -> Estimate | None:
    """Mean score; None as soon as one completed record has no score (MT-Bench, programs not run), or
    scores of a benchmark were given by different scorers."""
    if any(len(names) > 1 for names in scorers(records).values()):
        return None
    scores = [record.score for record in completed(records)]
    rows = [[score, 1.0] for score in scores if score is not None]
    return (
        estimate(completed(records), rows, ratio_of_sums, **bootstrap) if len(rows) == len(scores) else None
    )


def scorers(records: Sequence[Record]) -> dict[str, set[str]]:
    """By benchmark, what the scores of the records were given by; "" in records that do not say."""
    found: dict[str, set[str]] = {}
    for record in completed(records):
        if record.score is not None:
            found.setdefault(record.benchmark, set()).add(record.scorer)
    return found


def completed(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.error is None]


def failed(records: Sequence[Record]) -> int:
    """Records that hold an error instead of an output."""
    return len(records) - len(completed(records))


def tokens(records: Sequence[Record]) -> int:
    """N over all records."""
    return sum(record.decoded for record in completed(records))


def prompts(records: Sequence[Record]) -> int:
    """Distinct prompts with a completed record."""
    return len({prompt_of(record) for record in completed(records)})


def cycles(records: Sequence[Record]) -> int:
    """Steps taken: AR steps, draft-and-verify rounds or pipeline cycles."""
    return sum(len(record.steps) for record in completed(records))


def flushes(records: Sequence[Record]) -> int:
    """Steps that ended in a rejection, after which what was in flight is thrown away."""
    return sum(
        kept < examined
        for record in completed(records)
        for kept, examined in zip(record.steps.accepted, record.steps.depth, strict=True)
    )


def _ratio_of_speedups(sums: Floats) -> Floats:
    """Of columns as two ``_speedup_row`` side by side: the left one's speedup / the right one's."""
    return divide(ratio_of_ratios(sums[..., :4]), ratio_of_ratios(sums[..., 4:]))
