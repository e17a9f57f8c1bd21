"""GSM8K: which number an answer gives, and when it is the right one."""

from __future__ import annotations

from decimal import Decimal

import pytest

from harness.benchmarks import scoring
from harness.benchmarks.scoring import gsm8k
from methods.errors import UsageError


@pytest.mark.parametrize(
    ("answer", "strict", "flexible"),
    [
        ("3 + 4 = 7\n#### 7", "7", "7"),
        ("#### 1,234.50 dollars, or 20 bills", "1,234.50", "20"),
        ("####-5", "-5", "-5"),
        ("#### $18", "$18", "$18"),
        ("#### 7\nQuestion 2 ...\n#### 9", "7", "9"),
        ("The answer is **18**.", None, "18"),
        ("He pays $1,234,567.", None, "$1,234,567"),
        ("so \\boxed{42}", None, "42"),
        ("pages 3-5", None, "5"),
        ("(2)-1", None, "1"),
        ("it fell to -3.5 degrees", None, "-3.5"),
        ("it fell to \u22123", None, "-3"),
        ("a loss of -$20", None, "-$20"),
        ("half is .5", None, ".5"),
        ("items 1,2,3", None, "3"),
        ("1234,567", None, "567"),
        ("no number", None, None),
        ("", None, None),
        ("####", None, None),
    ],
)
def test_filters(answer, strict, flexible):
    assert gsm8k.strict(answer) == strict
    assert gsm8k.flexible(answer) == flexible


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1,000", "1000"),
        ("$18", "18"),
        ("18.", "18"),
        ("18.00", "18"),
        (" -2.50 ", "-2.5"),
        ("-$20", "-20"),
        (".5", "0.5"),
    ],
)
def test_normalise(written, value):
    assert gsm8k.normalise(written) == Decimal(value)


@pytest.mark.parametrize("written", ["", "seven", "1e5", "NaN", "--3", "1.2.3"])
def test_normalise_refuses_what_is_no_number(written):
    assert gsm8k.normalise(written) is None


def test_metric_needs_no_hub_and_reports_every_filter():
    answers = ["#### 7", "it is 1,000.", "The answer is 4 (of 6).", "none"]
    found = gsm8k.GSM8KAccuracy().compute(predictions=answers, references=["7", "1000", "4", "5"])
    assert found["accuracy"] == found["accuracy_stated"] == 0.75
    assert (found["accuracy_strict"], found["accuracy_flexible"]) == (0.25, 0.5)
    assert found["correct"] == [True, True, True, False]


def test_the_headline_is_named_with_its_version():
    assert gsm8k.HEADLINE in gsm8k.FILTERS
    assert str(scoring.scorer("gsm8k")) == "stated v2"
    assert scoring.scorer("mt_bench") is scoring.scorer("humaneval") is None
    assert str(scoring.scorer("humaneval", execute_code=True)) == "pass@1 v2"


def test_unusable_input_is_a_usage_error():
    with pytest.raises(UsageError, match="reference 'x' is not a number"):
        gsm8k.GSM8KAccuracy().compute(predictions=["1"], references=["x"])
    with pytest.raises(UsageError, match="at least one answer"):
        gsm8k.GSM8KAccuracy().compute(predictions=[], references=[])


def test_score_skips_prompts_without_reference():
    score = scoring.score("gsm8k", ["1", "2", "3"], ["1", None, "4"])
    assert score is not None
    assert (score.accuracy, score.correct) == (0.5, (True, None, False))
    assert score.details == {"accuracy_strict": 0.0, "accuracy_flexible": 0.5, "accuracy_stated": 0.5}


def test_no_score_where_none_can_be_given():
    assert scoring.score("gsm8k", ["1"], [None]) is None
    assert scoring.score("mt_bench", ["text"], [("reference",)]) is None
    with pytest.raises(UsageError, match="2 answers do not match 1 references"):
        scoring.score("gsm8k", ["1", "2"], ["1"])
