"""The page as a reader's browser has it: what stands where, in words and in figures, on wide and on narrow
screens, and that nothing is fetched."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

import fake_world
import pytest

from harness.records.files import read_records
from harness.records.line import to_line
from harness.records.record import BASELINE, RECORDS
from harness.report import __main__ as cli
from harness.report import trace
from harness.report.panels import _counts
from harness.run import main as run_main


@dataclass
class Node:
    """An element: ``parts`` are its texts and elements in order."""

    tag: str
    attributes: dict[str, str]
    parts: list[str | Node] = field(default_factory=list)

    def all(self, tag: str, css: str = "") -> list[Node]:
        """The elements of ``tag`` below, in order, of the class ``css``."""
        found = []
        for part in (each for each in self.parts if isinstance(each, Node)):
            if part.tag == tag and (not css or css in part.attributes.get("class", "").split()):
                found.append(part)
            found += part.all(tag, css)
        return found

    @property
    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)


class Page(HTMLParser):
    """The tree of a page; a tag that is not closed, or closed in another's place, is an error."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.root = Node("", {})
        self.open = [self.root]
        self.feed(text)
        assert self.open == [self.root]

    def handle_starttag(self, tag, attributes):
        node = Node(tag, {name: value or "" for name, value in attributes})
        self.open[-1].parts.append(node)
        if tag not in self.VOID:
            self.open.append(node)

    def handle_startendtag(self, tag, attributes):
        self.open[-1].parts.append(Node(tag, {name: value or "" for name, value in attributes}))

    def handle_endtag(self, tag):
        assert len(self.open) > 1 and self.open.pop().tag == tag, tag

    def handle_data(self, data):
        self.open[-1].parts.append(data)


def parsed(text: str) -> Node:
    return Page(text).root


def every(node: Node) -> Iterator[Node]:
    for part in node.parts:
        if isinstance(part, Node):
            yield part
            yield from every(part)


def lines_of(table: Node) -> list[dict[str, str]]:
    """The rows of a table, text by heading."""
    headings = [cell.text for cell in table.all("th")]
    return [
        dict(zip(headings, (cell.text for cell in row.all("td")), strict=True))
        for row in table.all("tbody")[0].all("tr")
    ]


def figure(page: Node, title: str) -> Node:
    (found,) = [each for each in page.all("figure") if each.all("figcaption")[0].parts[0] == title]
    return found


def report(tmp_path: Path, *runs: Path, texts: int = 3) -> str:
    output = tmp_path / "report.html"
    assert cli.main([*map(str, runs), "--output", str(output), "--texts", str(texts)]) == 0
    return output.read_text(encoding="utf-8")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_world.install(monkeypatch.setattr)
    monkeypatch.setattr(cli, "load_tokenizer", lambda name: fake_world.FakeTokenizer())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, one of them not lossless, and the page about them."""
    made = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch)
        for method in ("fake-draft", "fake-wrong"):
            argv = f"--method {method} --temperature 0 --temperature 1 --max-new-tokens 16"
            run_main([*argv.split(), "--results", str(made / method)])
        report(made, made / "fake-draft", made / "fake-wrong")
    return made


@pytest.fixture(scope="module")
def html(folder: Path) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html: str) -> Node:
    return parsed(html)


def test_the_page_is_whole_and_asks_nobody(html: str) -> None:
    nodes = list(every(parsed(html)))
    assert not {"script", "link", "img", "iframe"} & {node.tag for node in nodes}
    assert not [node for node in nodes if {"src", "href", "srcset"} & node.attributes.keys()]
    assert "url(" not in html and "@import" not in html and "http://" not in html and "https://" not in html
    assert "$" not in re.sub(r"<div class=\"answer\">.*?</div>", "", html), "a placeholder was left"


def test_the_page_says_what_matters(html: str) -> None:
    for text in ("fake-draft n=4", "wall-clock", "T = 1", "prefers-color-scheme: dark", "sampled"):
        assert text in html, text
    assert '<span class="bad">mismatch' in html
    assert html.count("<details") == 3
    assert 'class="draft"' in html and 'class="plain"' in html


def test_figures_come_before_how_the_runs_were_made(page: Node) -> None:
    """Before the first table a few lines; what all runs share is said once, and then what they do not."""
    (body,) = page.all("body")
    before = body.text[: body.text.index("method")]
    assert len(before.split()) < 60 and "chat template" not in before
    headings = [each.text for each in page.all("h2")]
    assert headings[-1] == "How the runs were made"
    shared = dict(zip([e.text for e in page.all("dt")], [e.text for e in page.all("dd")], strict=True))
    assert shared["chat template"] == "the tokenizer's own" and shared["prompts"].count("(dir)") == 3
    assert body.text.count("the tokenizer's own") == body.text.count("float32") == 1
    assert lines_of(page.all("table", "cards")[-1]) == [
        {"run": "fake-draft", "method": "fake-draft n=4"},
        {"run": "fake-wrong", "method": "fake-wrong"},
    ]


def test_runs_that_differ_say_in_what(tmp_path: Path, world: None) -> None:
    runs = [tmp_path / "one", tmp_path / "two"]
    for seed, run in enumerate(runs):
        argv = f"--method fake-draft --prompts 1 --max-new-tokens 8 --seed {seed} --results {run}"
        run_main(argv.split())
    lines = lines_of(parsed(report(tmp_path, *runs)).all("table", "cards")[-1])
    assert [line["seed"] for line in lines] == ["0", "1"] and list(lines[0]) == ["run", "method", "seed"]
    single = parsed(report(tmp_path, runs[0])).all("dl", "words")[-1]
    assert [each.text for each in single.all("dd")][:2] == ["one", "fake-draft n=4"]


def test_ar_is_a_column_and_a_line_and_no_method(page: Node) -> None:
    names = {"fake-draft n=4", "fake-wrong"}
    tables = [table for table in page.all("table", "cards") if "S0" in table.text]
    assert len(tables) == 2
    for table in tables:
        lines = lines_of(table)
        assert {line["method"] for line in lines} == names and len(lines) == 4 * len(names)
        # Every token of the fakes' AR takes a hundredth of a second.
        assert all(line["AR's tok/s"].startswith("100.0") for line in lines)
    assert {each.text for each in page.all("text", "name")} == names
    assert page.all("line", "mark")


def test_an_ar_run_is_a_line_of_its_own(tmp_path: Path, world: None) -> None:
    run_main(f"--method autoregressive --max-new-tokens 8 --results {tmp_path / 'ar'}".split())
    (line, *_) = lines_of(parsed(report(tmp_path, tmp_path / "ar")).all("table", "cards")[0])
    assert (line["method"], line["lossless"]) == ("AR", "reference")
    assert line["measured wall-clock"].startswith("1.00") and line["tok/s"] == line["AR's tok/s"]


def test_every_bar_of_a_ratio_has_its_whisker(page: Node) -> None:
    drawn = [each for each in page.all("figure") if each.all("rect") and "L_acc by answer" not in each.text]
    assert [each.all("figcaption")[0].parts[0] for each in drawn[:2]] == ["Speedups", "Where the time goes"]
    for each in drawn:
        assert len(each.all("path", "whisker")) == len(each.all("rect")) > 0


def test_acceptance_by_depth_has_its_counts(page: Node, folder: Path) -> None:
    records = [r for r in read_records(folder / "fake-draft") if r.temperature == 0]
    found = trace.by_depth(records)
    assert len(found) == 2
    for title, place, wanted in (
        ("Acceptance by depth", "depth", found),
        ("Acceptance by position in the answer", "position", trace.by_position(records)),
    ):
        (table,) = figure(page.all("div", "charts")[0], title).all("table", "counts")
        shown = [(line[place], line["fake-draft n=4"]) for line in lines_of(table)]
        assert shown == [(str(x), f"{share:.2f} of {count}") for x, share, count in wanted]


def test_deep_trees_have_their_tail_of_counts_behind_a_click() -> None:
    shares = {"spd": [(depth, 0.5, 100 - depth) for depth in range(1, 13)]}
    node = parsed(_counts(shares, "depth"))
    first, rest = node.all("table", "counts")
    assert (len(lines_of(first)), len(lines_of(rest))) == (8, 4) and "4 more" in node.text
    assert lines_of(rest)[-1] == {"depth": "12", "spd": "0.50 of 88"}


def test_headings_are_explained_in_the_page(page: Node) -> None:
    meanings = page.all("dl", "words")[0]
    words = dict(zip([e.text for e in meanings.all("dt")], [e.text for e in meanings.all("dd")], strict=True))
    assert {"AR", "S0", "S", "measured wall-clock", "tok/s", "step acceptance", "lossless"} <= words.keys()
    assert "target layers" in words["S0"] and "draft's layers" in words["S"]
    assert words["accuracy"].startswith("accuracy of GSM8K: ")
    explained = words.keys() | {"AR's tok/s", "method", "benchmark", "prompts", "tokens"}
    assert {cell.text for cell in page.all("table", "cards")[0].all("th")} <= explained


def test_a_wide_table_fits_1280_pixels(page: Node) -> None:
    """Text is 13.9 pixels high and bold: at most 8.7 a letter; intervals, on a line of their own, 7.8."""
    widest = {"S0": "12.34", "tok/s": "123.4", "AR's tok/s": "123.4", "accuracy": "0.12"}
    (style,) = page.all("style")
    assert re.search(r"td small {[^}]*display: block", style.text)
    for table in page.all("table", "cards"):
        total = 0.0
        for heading in table.all("th"):
            cells = [c for c in table.all("td") if c.attributes["data-label"] == heading.text]
            words = [*heading.text.split(), widest.get(heading.text, "")]
            words += [w for c in cells for w in c.text.replace("[", " ").split() if not w.endswith("]")]
            figures = max(8.7 * len(word) for word in words)
            interval = max(
                (7.8 * len(small.text) for cell in cells for small in cell.all("small")), default=0
            )
            total += max(figures, interval) + 2 * 0.45 * 16
        assert total <= 1280 - 2 * 20


def test_a_narrow_screen_gets_cards_and_charts_of_its_width(page: Node) -> None:
    (viewport,) = [m for m in page.all("meta") if m.attributes.get("name") == "viewport"]
    assert viewport.attributes["content"] == "width=device-width, initial-scale=1"
    (style,) = page.all("style")
    narrow = style.text[style.text.index("@media (max-width: 40rem)") :]
    assert "content: attr(data-label)" in narrow and re.search(r"\.cards tr {[^}]*display: grid", narrow)
    for table in page.all("table", "cards"):
        headings = [cell.text for cell in table.all("th")]
        for row in table.all("tbody")[0].all("tr"):
            assert [cell.attributes["data-label"] for cell in row.all("td")] == headings
            assert row.all("td")[0].text, "a card without a name"
    size = float(re.findall(r"svg text {[^}]*font-size: (\d+)px", style.text)[0])
    for drawing in page.all("svg"):
        width = float(drawing.attributes["viewbox"].split()[2])
        assert size * (400 - 2 * 12 - 2 * 16) / width >= 11


def slowed(run: Path, to: Path, factor: float) -> Path:
    """A copy of ``run`` as on a machine that was busier: all seconds times ``factor``, AR's too."""
    shutil.copytree(run, to)
    for stem in (RECORDS, BASELINE):
        later = [
            replace(
                each,
                decode_s=(each.decode_s or 0) * factor,
                phases={name: factor * seconds for name, seconds in each.phases.items()},
            )
            for each in read_records(run, stem)
        ]
        (to / f"{stem}.jsonl").write_bytes(b"".join(map(to_line, later)))
    return to


def test_a_busier_machine_is_no_slower_method(tmp_path: Path, world: None) -> None:
    quiet = tmp_path / "quiet"
    run_main(f"--method fake-draft --max-new-tokens 16 --results {quiet}".split())
    page = parsed(report(tmp_path, quiet, slowed(quiet, tmp_path / "busy", 5)))
    times = figure(page, "Where the time goes")
    widths = [rect.attributes["width"] for rect in times.all("rect")]
    assert len(widths) == 2 and widths[0] == widths[1] and " ms" not in times.text
    totals = [each.text for each in times.all("text") if each.text.endswith(" x AR")]
    assert len(totals) == 2 and totals[0] == totals[1]
    (note,) = page.all("p", "note")[:1]
    assert (
        "do not compare at T = 0: AR ran at 100.0 [100.0, 100.0] tok/s beside fake-draft n=4 (quiet)"
        in note.text
    )
    lines = lines_of(page.all("table", "cards")[0])
    speeds = {line["method"]: line["AR's tok/s"].split()[0] for line in lines}
    assert speeds == {"fake-draft n=4 (quiet)": "100.0", "fake-draft n=4 (busy)": "20.0"}
    alone = parsed(report(tmp_path, quiet))
    assert not [note for note in alone.all("p", "note") if "compare" in note.text]


def test_milliseconds_only_of_one_run_without_ar(tmp_path: Path, world: None) -> None:
    """Where no AR says how fast the machine was, one run's times have no other to be held against."""
    runs = [tmp_path / "one", tmp_path / "two"]
    for run in runs:
        run_main(f"--method fake-draft --max-new-tokens 16 --no-baseline --results {run}".split())
    assert " ms" in figure(parsed(report(tmp_path, runs[0])), "Where the time goes").text
    both = figure(parsed(report(tmp_path, *runs)), "Where the time goes").text
    assert " ms" not in both and "No run has AR beside it" in both
