"""The page: what each token's colour means, the curves, and that nothing is fetched."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import fake_world
import pytest

from harness.records import Record, StepArrays
from harness.report import __main__ as cli
from harness.report import charts, trace
from harness.report.charts import Series
from harness.report.page import _drafters
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


def test_bar_lengths_follow_the_values() -> None:
    svg = charts.bars(["a", "b"], [Series("S", [(0.0, 1.0, "1.00"), (1.0, 2.0, "2.00")])], mark=1.0)
    widths = [float(width) for width in re.findall(r'<rect class="c0"[^>]* width="([\d.]+)"', svg)]
    assert widths[1] == pytest.approx(2 * widths[0], rel=0.01)
    assert charts.bars(["a"], [Series("S", [])]) == charts.lines([], "x") == ""


def test_long_names_of_bars_have_room_or_are_cut() -> None:
    def drawn(name: str) -> str:
        return charts.bars([name], [Series("S", [(0, 1.0, "1")])])

    assert 'x="162"' in drawn("short") and ">short</text>" in drawn("short")
    name = "AR beside eagle3 m=3 (1b39b2ae)"
    assert f'x="{4 + 7 * len(name)}"' in drawn(name) and f">{name}</text>" in drawn(name)
    assert f">{39 * 'a'}…</text>" in drawn(60 * "a") and 'x="284"' in drawn(60 * "a")


@pytest.mark.parametrize("last", [1, 2, 4, 24])
def test_depths_have_whole_ticks(last: int) -> None:
    points = [(float(x), 0.5, "") for x in range(1, last + 1)]
    ticks = re.findall(r'class="below"[^>]*>([^<]*)<', charts.lines([Series("S", points)], "depth", 1.0))[:-1]
    assert ticks[0] == "1" or last > 8
    assert all(tick.isdigit() for tick in ticks), ticks


class Page(HTMLParser):
    """Collects tags, attributes that could make a request, and unclosed tags."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [
            f"{tag} {name}={value}" for name, value in attributes if name in ("src", "href", "srcset")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, tag


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    fake_world.install(monkeypatch.setattr)
    for method in ("fake-draft", "fake-wrong"):
        argv = f"--method {method} --temperature 0 --temperature 1 --max-new-tokens 16"
        run_main([*argv.split(), "--results", str(tmp_path / method)])
    monkeypatch.setattr(cli, "load_tokenizer", lambda name: fake_world.FakeTokenizer())
    output = tmp_path / "report.html"
    argv = [
        str(tmp_path / "fake-draft"),
        str(tmp_path / "fake-wrong"),
        "--output",
        str(output),
        "--texts",
        "3",
    ]
    assert cli.main(argv) == 0
    return output.read_text(encoding="utf-8")


def test_the_page_is_whole_and_asks_nobody(page: str) -> None:
    found = Page(page)
    assert found.open == [] and found.links == []
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert "url(" not in page and "@import" not in page and "http://" not in page and "https://" not in page
    assert "$" not in re.sub(r"<div class=\"answer\">.*?</div>", "", page), "a placeholder was left"


def test_the_page_says_what_matters(page: str) -> None:
    for text in (
        "fake-draft n=4",
        "AR beside",
        "wall-clock",
        "T = 1",
        "prefers-color-scheme: dark",
        "sampled",
        "prompts: ",
        "chat template: the tokenizer&#x27;s own",
    ):
        assert text in page, text
    assert 'class="text bad">mismatch' in page
    assert page.count("<details") == 3
    assert 'class="draft"' in page and 'class="plain"' in page


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


def test_the_header_names_the_drafter() -> None:
    def config(**facts: object) -> dict[str, object]:
        return {"widths": {"1": {"facts": facts}}}

    assert _drafters(config()) == []
    assert _drafters(config(checkpoint=None, untrained=True)) == ["drafter: random"]
    shipped = config(checkpoint="shipped:a/b", checkpoint_sha256="0123456789abcdef", untrained=False)
    assert _drafters(shipped) == ["drafter: shipped:a/b 0123456789ab"]
