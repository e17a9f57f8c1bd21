"""The report's parts: what each token's colour means, the curves and bars, and input that is none."""

from __future__ import annotations

import re
from pathlib import Path

import fake_world
import pytest

from harness.records.record import Record, StepArrays
from harness.report import __main__ as cli
from harness.report import charts, trace
from harness.report.charts import Point, Series
from harness.report.runs import _drafter
from harness.run import main as run_main
from methods.errors import UsageError


def record(accepted, depth, emitted, stages=1, acceptance=None):
    size = len(emitted)
    steps = StepArrays(depth, accepted, emitted, [4.0] * size, [0.0] * size, depth, [1] * size)
    return Record(
        *("gsm8k", "0", 1, 0.0, 1, 0, [1], list(range(1 + sum(emitted))), "length", 0.1, 1.0),
        *(steps, "exact", None),
        num_layers=4,
        stages=stages,
        acceptance=acceptance,
    )


def test_origins_of_a_round_method() -> None:
    """Two accepted and a correction; a draft of two accepted whole and the target's own; no draft; a
    draft that is cut at the end of the answer."""
    found = trace.origins(record([2, 2, 0, 2], [3, 2, 0, 2], [3, 3, 1, 2]))
    first, second, cut = ["draft", "draft", "correction"], ["draft", "draft", "plain"], ["draft", "draft"]
    assert found == ["plain", *first, *second, "plain", *cut]


def test_origins_of_a_pipeline() -> None:
    found = trace.origins(record([0, 0, 1, 0], [0, 0, 1, 1], [0, 0, 1, 1], stages=3))
    assert found == ["plain", "draft", "correction"]


def test_acceptance_by_depth_starts_again_where_the_method_does() -> None:
    rounds = record([2, 0], [3, 1], [3, 1])
    assert trace.by_depth([rounds]) == [(1, 0.5, 2), (2, 1.0, 1), (3, 0.0, 1)]
    pipeline = record([0, 1, 1, 0, 1], [0, 1, 1, 1, 1], [0, 1, 1, 1, 1], stages=2)
    assert trace.by_depth([pipeline]) == [(1, 1.0, 2), (2, 1.0, 1), (3, 0.0, 1)]


def test_acceptance_by_position() -> None:
    rounds = record([2, 0], [3, 1], [3, 1])
    assert trace.by_position([rounds], width=2) == [(1, 1.0, 2), (3, 0.0, 2)]
    exact = record([1], [1], [1], acceptance=[0.25])
    assert trace.by_position([exact]) == [(1, 0.25, 1)]


class Bytes:
    """A tokenizer of UTF-8 bytes."""

    def decode(self, ids, skip_special_tokens=False):
        return bytes(ids).decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["plain", "Größe ≤ 5 €", "日本語 🙂 end", ""])
def test_pieces_join_to_the_text(text: str) -> None:
    ids = list(text.encode())
    parts = trace.pieces(Bytes(), ids)
    assert len(parts) == len(ids) and "".join(parts) == text


def test_without_a_tokenizer_ids_are_shown() -> None:
    assert trace.pieces(None, [5, 70]) == ["5 ", "70 "]


def test_bar_lengths_and_whiskers_follow_the_values() -> None:
    points = [Point(0.0, 1.0, "1.00", (0.5, 1.25)), Point(1.0, 2.0, "2.00", (1.5, 2.5))]
    svg = charts.bars(["a", "b"], [Series("S", points)], mark=1.0)
    widths = [float(width) for width in re.findall(r'<rect class="c0"[^>]* width="([\d.]+)"', svg)]
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01)
    ends = re.findall(r'<path class="whisker" d="M([\d.]+) [\d.]+H([\d.]+)', svg)
    for point, (low, high) in zip(points, ends, strict=True):
        wanted = [end * widths[0] for end in point.interval or ()]
        assert [float(low), float(high)] == pytest.approx(wanted, rel=0.01)
    mark = float(re.findall(r'class="mark" x1="([\d.]+)"', svg)[0])
    assert mark == pytest.approx(widths[0], rel=0.01)
    assert "whisker" not in charts.bars(["a"], [Series("S", [Point(0.0, 1.0, "1.00")])], mark=1.0)
    assert charts.bars(["a"], [Series("S", [])], mark=1.0) == charts.lines([], "x") == ""


def test_parts_of_a_bar_add_up_to_its_total() -> None:
    parts = [Series(name, [Point(0.0, y, "")]) for name, y in (("draft", 0.5), ("target", 1.5))]
    svg = charts.stacked(["a"], parts, [Point(0.0, 2.0, "2.00 x AR", (1.5, 2.5))], mark=1.0)
    (_, first), (left, second) = re.findall(r'<rect[^>]* x="([\d.]+)"[^>]* width="([\d.]+)"', svg)
    assert first == left and float(second) == pytest.approx(3 * float(first), rel=0.01)
    assert svg.count('class="whisker"') == 1 and ">2.00 x AR</text>" in svg
    assert charts.stacked(["a"], [], [Point(0.0, 0.0, "-")]) == ""


def test_long_names_of_bars_are_whole_or_cut() -> None:
    def drawn(name: str) -> str:
        return charts.bars([name], [Series("S", [Point(0, 1.0, "1")])], mark=1.0)

    name = "spd n=8 Ls=3 schedule=post-step W=4 (1b39b2ae)"
    assert f">{name}</text>" in drawn(name) and f">{51 * 'a'}…</text>" in drawn(60 * "a")


@pytest.mark.parametrize("last", [1, 2, 4, 24])
def test_depths_have_whole_ticks(last: int) -> None:
    points = [Point(float(x), 0.5, "") for x in range(1, last + 1)]
    ticks = re.findall(r'class="below"[^>]*>([^<]*)<', charts.lines([Series("S", points)], "depth", 1.0))[:-1]
    assert ticks[0] == "1" or last > 8
    assert all(tick.isdigit() for tick in ticks), ticks


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for argv in ([], [str(tmp_path / "none")], [str(tmp_path), "--texts", "x"]):
        assert cli.main(argv) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1


def test_without_its_tokenizer_the_page_still_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    fake_world.install(monkeypatch.setattr)
    run_main(f"--method fake-draft --prompts 1 --max-new-tokens 8 --results {tmp_path / 'r'}".split())

    def fail(name: str) -> object:
        raise UsageError("no network")

    monkeypatch.setattr(cli, "load_tokenizer", fail)
    assert cli.main([str(tmp_path / "r"), "--output", str(tmp_path / "p.html")]) == 0
    assert "shown as token ids: no network" in capsys.readouterr().err


def test_a_run_names_its_drafter() -> None:
    def config(**facts: object) -> dict[str, object]:
        return {"widths": {"1": {"facts": facts}}}

    assert _drafter(config()) == ""
    assert _drafter(config(checkpoint=None, untrained=True)) == "random"
    shipped = config(checkpoint="shipped:a/b", checkpoint_sha256="0123456789abcdef", untrained=False)
    assert _drafter(shipped) == "shipped:a/b 0123456789ab"
