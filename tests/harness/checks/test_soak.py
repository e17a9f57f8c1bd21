"""``python -m harness.soak``: cases are functions of seed and index, and a fault is one command."""

from __future__ import annotations

import json

import pytest
import seeded_faults

import methods.decoding.rounds
from harness.checks.random_cases import Totals, draw, run_case
from harness.soak import main
from methods.decoding.prompt_lookup import Ngram


def test_cases_are_reproducible_and_cover_every_method_family_and_rule():
    cases = [draw(3, index) for index in range(300)]
    assert cases == [draw(3, index) for index in range(300)]
    assert len({str(case) for case in cases}) > 290
    assert {case.method for case in cases} == {"ngram", "eagle3", "ppsd", "spd"}
    assert {case.family for case in cases} == {"llama", "qwen3", "hybrid", "moe", "sliding", "table"}
    assert {case.options.get("schedule") for case in cases} >= {"pre-step", "post-step"}
    assert any(case.bfloat16 for case in cases) and any(case.stop_ids for case in cases)


def test_a_few_cases_pass():
    totals = Totals()
    assert [run_case(draw(5, index), totals) for index in range(12)] == [None] * 12
    assert totals.prompts == 12 and totals.compared > 0


def test_a_fault_is_one_command_that_repeats_it(monkeypatch, capsys):
    monkeypatch.setattr(methods.decoding.rounds, "verify", seeded_faults.accept_the_first_draft)
    assert main(["--minutes", "0.05", "--seed", "2"]) == 1
    out = capsys.readouterr().out
    result = json.loads(out.splitlines()[-1])
    command = result["failed"][0]
    assert f"failed: {command}" in out
    assert main(command.split()[3:]) == 1
    monkeypatch.undo()
    assert main(command.split()[3:]) == 0
    assert "no difference" in capsys.readouterr().out


def test_a_changed_target_is_a_fault_and_is_not_used_again(monkeypatch, capsys):
    index = next(i for i in range(100) if (case := draw(2, i)).method == "ngram" and case.family == "llama")
    with monkeypatch.context() as changed:
        changed.setattr(Ngram, "__init__", seeded_faults.round_a_weight)
        assert main(["--case", f"2:{index}"]) == 1
    assert "the target was changed: model.embed_tokens.weight was changed" in capsys.readouterr().out
    assert main(["--case", f"2:{index}"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--minutes 0", "--minutes must be a number > 0, got 0"),
        ("--minutes nan", "--minutes must be a number > 0, got nan"),
        ("--case 3", "--case expects SEED:INDEX, two whole numbers, got '3'"),
        ("--case 3:-1", "--case expects SEED:INDEX"),
        ("--seed x", "argument --seed: must be a whole number from 0 to 2^32 - 1, got x"),
    ],
)
def test_bad_input_is_one_line_and_code_2(capsys, arguments, message):
    assert main(arguments.split()) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
