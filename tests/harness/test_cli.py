"""The command line is an interface: its flags are frozen here, its refusals are one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import fake_world
import pytest

from harness.cli import options
from harness.cli.arguments import BENCHMARKS, parse, parser
from methods.errors import UsageError

FLAGS = """
--benchmark --checkpoint --data-dir --draft-layers --dtype --emulate --execute-code --fresh --help --json
--layout --m --max-new-tokens --method --mode --n --no-baseline --option --plugin --preset --prompts
--proposal
--repeats --results --runtime --schedule --seed --target --temperature --template --timeout --timings --top-k
--top-p --turns --untrained --warmup --width
"""


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_world.install(monkeypatch.setattr)


def test_flags_are_frozen() -> None:
    found = {name for action in parser()._actions for name in action.option_strings if name.startswith("--")}
    assert found == set(FLAGS.split())


def test_defaults_are_frozen() -> None:
    request = parse([])
    assert (request.method, request.preset, request.target) == ("autoregressive", "smollm2-135m", None)
    assert request.benchmarks == ("mt_bench", "gsm8k", "humaneval")
    assert (request.prompts, request.turns, request.temperatures) == (None, "first", (0.0,))
    assert (request.top_k, request.top_p, request.max_new_tokens, request.seed) == (50, 1.0, 512, 0)
    assert (request.dtype, request.repeats, request.warmup) == (None, 1, 1)
    assert (request.data_dir, request.results, request.execute_code, request.baseline) == (
        None,
        None,
        False,
        True,
    )
    assert (request.options, request.widths, request.plugins) == ({}, (), ())
    assert (request.emulate, request.timings, request.timeout) == (None, False, None)


FULL = """
--method spd --preset qwen3.5-4b --target /models/q --n 8 --draft-layers 3 --m 5 --width 1 4
--proposal argmax --schedule pre --checkpoint c.pt --untrained --option tree-size=60
--benchmark gsm8k --benchmark mt_bench --prompts 2 --turns all --temperature 0 --temperature 1
--top-k 0 --top-p 0.9 --max-new-tokens 32 --seed 7 --dtype bfloat16 --repeats 3 --warmup 0
--data-dir data --results out --execute-code --fresh --no-baseline --template vicuna --plugin a.b
"""


def test_full_command_line() -> None:
    request = parse(FULL.split())
    assert request.options == {
        "n": "8",
        "draft_layers": "3",
        "m": "5",
        "proposal": "argmax",
        "schedule": "pre",
        "checkpoint": "c.pt",
        "untrained": "true",
        "tree_size": "60",
    }
    assert (request.widths, request.benchmarks) == ((1, 4), ("gsm8k", "mt_bench"))
    assert (request.temperatures, request.top_p, request.seed) == ((0.0, 1.0), 0.9, 7)
    assert (request.preset, request.target, request.results) == ("qwen3.5-4b", "/models/q", Path("out"))
    assert (request.execute_code, request.baseline, request.plugins) == (True, False, ("a.b",))


def test_target_alone_uses_no_preset() -> None:
    assert parse(["--target", "org/model"]).preset is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--temperature -1", "argument --temperature: must be a number >= 0, got -1"),
        ("--temperature nan", "must be a number >= 0"),
        ("--top-p 0", r"argument --top-p: must be in \(0, 1\], got 0"),
        ("--top-p 1.5", r"must be in \(0, 1\]"),
        ("--top-k -1", "argument --top-k: must be a whole number >= 0"),
        ("--prompts 0", "argument --prompts: must be a whole number >= 1"),
        ("--prompts two", "got two"),
        ("--repeats 0", "argument --repeats"),
        ("--width 0", "argument --width"),
        ("--dtype float16", "argument --dtype: invalid choice: 'float16'"),
        ("--turns second", "argument --turns: invalid choice"),
        ("--colour red", "unrecognized arguments: --colour red"),
        ("--max-new 3", "unrecognized arguments"),
        ("--method", "argument --method: expected one argument"),
        ("--temperature 0 --temperature 0.0", r"argument --temperature: 0.0 is given twice"),
        ("--benchmark gsm8k --benchmark gsm8k", "argument --benchmark: gsm8k is given twice"),
        ("--width 4 4", "argument --width: 4 is given twice"),
        ("--option n", "--option expects KEY=VALUE, got 'n'"),
        ("--option a=1 --option a=2", "option a is given twice"),
        ("--n 4 --option n=8", "option n is given both as a flag and by --option"),
        ("--option width=4", "the width is given by --width"),
    ],
)
def test_wrong_command_line_is_refused_in_one_line(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(line.split())
    assert "\n" not in str(caught.value)


def test_options_get_the_declared_types() -> None:
    texts = {"n": "8", "rate": "0.25", "anchors": "0, 8,16", "checkpoint": "a.pt", "untrained": "yes"}
    values = options.typed("fake-draft", texts)
    assert values == {"n": 8, "rate": 0.25, "anchors": (0, 8, 16), "checkpoint": "a.pt", "untrained": True}
    assert options.typed("fake-draft", {"checkpoint": "none", "untrained": "0"}) == {
        "checkpoint": None,
        "untrained": False,
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"m": "3"}, r"method 'fake-draft' has no option 'm'; allowed: n, width, rate, anchors"),
        ({"n": "four"}, "option n expects int, got 'four'"),
        ({"n": "4.5"}, "option n expects int"),
        ({"untrained": "maybe"}, "option untrained expects true or false"),
        ({"anchors": "0,x"}, "option anchors expects int, got 'x'"),
    ],
)
def test_options_that_do_not_fit_are_refused(texts: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options.typed("fake-draft", texts)


def test_method_without_options_says_so() -> None:
    with pytest.raises(UsageError, match="'autoregressive' has no option 'n'; allowed: none"):
        options.typed("autoregressive", {"n": "4"})


def test_literals_unions_and_lists() -> None:
    assert options.convert("rule", "sample", Literal["argmax", "sample"]) == "sample"
    with pytest.raises(UsageError, match="option rule is 'best'; allowed: argmax, sample"):
        options.convert("rule", "best", Literal["argmax", "sample"])
    assert options.convert("size", "3", int | str) == 3
    assert options.convert("size", "auto", int | str) == "auto"
    assert options.convert("layers", "1,2", list[int] | None) == [1, 2]
    with pytest.raises(UsageError, match="option size expects int"):
        options.convert("size", "x", int | None)


def test_default_benchmarks_are_all_there_are() -> None:
    benchmarks = pytest.importorskip("harness.benchmarks")
    assert sorted(BENCHMARKS) == sorted(benchmarks.names())
