"""The number a careful reader takes from an answer."""

from __future__ import annotations

import time
from decimal import Decimal

import pytest

from harness.benchmarks.scoring import gsm8k
from harness.benchmarks.scoring.stated_number import stated

FORMATS = {
    "\\boxed{2{,}500}": "2500",
    "\\boxed{2\\,500}": "2500",
    "\\boxed{2,\\!500}": "2500",
    "\\boxed{2~500}": "2500",
    "\\boxed{\\$45}": "45",
    "\\boxed{45\\%}": "45",
    "\\boxed{45 \\text{ pens in 3 boxes}}": "45",
    "\\boxed{\\text{\\$}2{,}500.50}": "2500.50",
    "\\boxed{\\frac{3}{4}}": "0.75",
    "\\boxed{y = 45}": "45",
    "\\boxed{5 \\times 9 = 45}": "45",
    "\\boxed 45": "45",
    "\\fbox{45}": "45",
    "Answer: 2 500": "2500",
    "Answer: 2\u00a0500": "2500",
    "Answer: 2\u202f500\u202f000": "2500000",
    "Answer: 2'500": "2500",
    "Answer: 2\u2019500": "2500",
    "Answer: 2_500": "2500",
    "Answer: 2,50,000": "250000",
    "Answer: 2.500.000": "2500000",
    "The answer is 2,500.75.": "2500.75",
    "the answer is \u201312.": "-12",
    "the answer is \u221212": "-12",
    "the answer is -$12": "-12",
    "the answer is $-12": "-12",
    "the answer is \u20ac45": "45",
    "the answer is .5": "0.5",
    "the answer is 3/4": "0.75",
    "the answer is 3 million": "3000000",
    "the answer is 2.5e3": "2500",
    "the answer is 2.5 \\times 10^{3}": "2500",
    "the answer is **45**": "45",
    "the answer is \\(45\\)": "45",
    "the answer is $45$": "45",
    "the answer is `45`": "45",
}


@pytest.mark.parametrize(("text", "value"), FORMATS.items())
@pytest.mark.parametrize("remark", ["", " It took 7 lines.", "\n\nNote: see page 7."])
def test_formats_of_a_stated_number(text, value, remark):
    end = "" if text.endswith((".", "}")) else "."
    assert Decimal(stated(text + end + remark)) == Decimal(value)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        ("So \\boxed{45}. I checked it in 7 ways.", "45"),
        ("First \\boxed{9}, then \\boxed{45} of 50.", "45"),
        ("\\boxed{} and so 45", "45"),
        ("cut at \\boxed{45", "45"),
        ("The answer is 45 (see line 7).", "45"),
        ("The answer is 12... no, the answer is 45. Line 7.", "45"),
        ("The answer to question 7 is 45. Page 8.", "45"),
        ("The answer is 40 + 5 = 45. Page 8.", "45"),
        ("So the answer is $x=45$. Page 8.", "45"),
        ("The answer is that they need $45 (page 8).\n\nPage 9.", "45"),
        ("The answer is thus 45, see page 8.", "45"),
        ("The correct answer is (B) 45. Not 8.", "45"),
        ("The answer is not 9 but 45", "45"),
        ("The answer is on page 7: they need 45", "45"),
        ("The final answer would be 45 euros, after 8 days.", "45"),
        ("**Answer:** 45 per day\n\nAsk me 2 more.", "45"),
        ("### Final Answer\n\n**45**\n\nPage 8.", "45"),
        ("The answer is:\n\n45\n\nPage 8.", "45"),
        ("<answer>45</answer> page 8", "45"),
        ("Answer:\nTom has 9 - 4 = 5 bags.\nThey hold 5 * 9 = 45.", "45"),
        ("Answer: Tom has 5 bags. They hold 5*9 = 45.", "45"),
        ("Answer:\n1. 9 - 4 = 5\n2. 5 * 9 = 45", "45"),
        ("To answer the question: 9 - 4 = 5. 5 * 9 = 45", "45"),
        ("<think>the answer is 8</think>So it is 45", "45"),
        ("<think>it is 45</think>\n", "45"),
        ("#### 45\nQuestion 2: more?\n#### 8", "45"),
        ("The answer is 45.\n\nQ: more?\nA: The answer is 8.", "45"),
        ("Question: how many?\nAnswer: 45\nQuestion: more?\nAnswer: 8", "45"),
        ("#### 1. Bags\nfive\n#### 2. Pens\n5 * 9 = 45", "45"),
        ("#### 1. Bags\nfive\n#### 45\nDone in 7.", "45"),
        ("Tom has 5 bags of 9 pens. He has $45", "45"),
        ("- 45 pens", "45"),
        ("pages 3\u201345", "45"),
        ("no number", None),
        ("", None),
        ("the answer is", None),
        ("the answer is 1e999999999", None),
    ],
)
def test_where_the_number_is_stated(answer, value):
    assert stated(answer) == value


def test_conventions_stay_as_they_were():
    answer = "So \\boxed{45}. I used 7 lines."
    assert (gsm8k.strict(answer), gsm8k.flexible(answer), gsm8k.stated(answer)) == (None, "7", "45")


@pytest.mark.parametrize(
    "unit", ["answer is ", "answer: 1 ", "\\boxed{", "1 000 ", "1,", "1 + ", "#### ", "\n"]
)
def test_long_answers_take_no_long_time(unit):
    started = time.monotonic()
    stated("answer is " + unit * 2000)
    assert time.monotonic() - started < 5
