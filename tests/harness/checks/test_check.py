"""``python -m harness.check``: what it prints, its exit codes, and methods from outside the tree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.check import main
from harness.checks import checks_for, output
from harness.checks.catalogue import CHECKS, IDS
from harness.checks.cli import builtin
from methods import registry
from methods.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "plain_method" / "plain_method.py"
CHEAP = "C1,C6,C7,C8,C11,C12"


def run(capsys, *arguments: str) -> tuple[int, dict, str]:
    code = main(["--size", "smallest", *arguments])
    out = capsys.readouterr().out
    return code, json.loads(out.splitlines()[-1]), out


def test_a_line_per_check_and_json_last(capsys):
    code, result, out = run(capsys, "--method", "ngram", "--only", "C1,C3,C10,C22")
    assert code == 0 and result["passed"]
    assert [(one["check"], one["status"]) for one in result["checks"]] == [
        ("C1", "passed"),
        ("C3", "passed"),
        ("C10", "not applicable"),
        ("C22", "not applicable"),
    ]
    assert "C1   passed  greedy identity with plain decoding: 3 outputs, 304 tokens" in out
    assert "C10  not applicable: drafts are point masses" in out


@pytest.mark.parametrize("every_s", [0.0, 30.0])
def test_progress_and_time_left_of_every_check_on_stderr(capsys, monkeypatch, every_s):
    monkeypatch.setattr(output, "EVERY_S", every_s)
    assert main(["--size", "smallest", "--method", "autoregressive", "--only", "C1,C6"]) == 0
    err = capsys.readouterr().err
    if every_s:  # nothing that is over before
        assert err == ""
        return
    assert "C1 greedy identity with plain decoding, autoregressive:" in err
    assert "C6 trace identities, autoregressive:" in err and "100 %" in err
    shares = [int(share) for share in re.findall(r"(\d+) %", err)]
    assert len(set(shares)) > 3 and shares == sorted(shares)
    assert re.search(r"\d\d:\d\d, about \d\d:\d\d left", err)


def test_several_widths_are_several_subjects(capsys):
    _, result, out = run(capsys, "--method", "eagle3", "--width", "1", "3", "--option", "m=2", "--only", "C6")
    assert [one["subject"] for one in result["checks"]] == ["eagle3 m=2 width=1", "eagle3 m=2 width=3"]
    assert "C6   passed on 2 of 2" in out


def test_the_table_of_checks_is_whole():
    assert tuple(f"C{number}" for number in range(1, 36)) == IDS
    assert all((check.of_method is None) != (check.of_harness is None) for check in CHECKS)


def test_the_built_in_subjects_are_chains_and_trees_of_every_method():
    found = {(subject.method, subject.width, subject.options.get("schedule")) for subject in builtin()}
    assert {("autoregressive", 1, None), ("ngram", 1, None), ("eagle3", 1, None), ("eagle3", 4, None)} < found
    for name, schedule in (("ppsd", None), ("spd", None), ("spd", "post-step")):
        assert {(name, 1, schedule), (name, 4, schedule)} < found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--method nope", "unknown method 'nope'; known: autoregressive"),
        ("--method ngram --n 3", "method 'ngram' has no option 'n'; allowed: m, longest"),
        ("--method ngram --option m=0", "m must be >= 1, got 0"),
        ("--method spd --n 99", "n = 99 stages for 8 target layers; allowed: 1 to 8"),
        ("--method spd --width 0", "argument --width: must be a whole number >= 1, got 0"),
        ("--method spd --width 2 --option width=2", "option width is given both as a flag and by --option"),
        ("--only C1,C77", "unknown check C77; allowed: C1, C2"),
        ("--size huge", "unknown size 'huge'; allowed: smallest, quick, full"),
        ("--n 3", "--n needs --method NAME; known: autoregressive"),
        ("--method spd --checkpoint x", "--checkpoint belongs to a real target: give --real as well"),
        ("--plugin no_such_module", "plugin module 'no_such_module' cannot be imported"),
        ("--frobnicate", "unrecognized arguments: --frobnicate"),
    ],
)
def test_bad_input_is_one_line_and_code_2(capsys, arguments, message):
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {message}") and err.count("\n") == 1


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Writes the example under another name, changed, where Python finds it; returns the module's name."""
    monkeypatch.setattr(registry, "_methods", {name: registry.get(name) for name in registry.names()})
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(module: str, *changes: tuple[str, str]) -> str:
        source = EXAMPLE.read_text().replace('"plain"', f'"{module}"')
        for old, new in changes:
            assert source.count(old) == 1, old
            source = source.replace(old, new)
        (tmp_path / f"{module}.py").write_text(source)
        return module

    return write


DRAWN = "target_token(logits, sampling, draws, len(tokens))"
STOPPED = "stopped = tokens[-1] in stop_ids"
PLANTED = {
    "C1": ("fifth_token_made_up", DRAWN, f"1 if len(tokens) == 5 else {DRAWN}"),
    "C6": ("bonus_counted_twice", "emitted=1", "emitted=2"),
    "C7": ("past_the_stop_id", STOPPED, f"{STOPPED} and len(tokens) > 6"),
    "C8": ("one_too_many", "len(tokens) < max_new_tokens", "len(tokens) <= max_new_tokens"),
    "C11": ("silently_greedy", DRAWN, "int(logits.argmax())"),
    "C12": ("unseeded", "Draws(sampling.seed)", "Draws(int(perf_counter() * 1e9))"),
}


@pytest.mark.parametrize("check", PLANTED)
def test_a_fault_planted_in_a_method_from_outside_is_found(capsys, outside, check):
    name, old, new = PLANTED[check]
    module = outside(name, (old, new))
    code, result, out = run(capsys, "--plugin", module, "--method", module, "--only", CHEAP)
    assert code == 1 and not result["passed"]
    (found,) = [one for one in result["checks"] if one["check"] == check]
    assert found["status"] == "failed" and found["reason"]
    assert f"{check:4} failed" in out


def test_a_method_from_outside_without_a_fault_passes(capsys, outside):
    module = outside("plain_copy")
    code, result, _ = run(capsys, "--plugin", module, "--method", module, "--only", CHEAP)
    assert code == 0 and result["counts"] == {"passed": 6, "failed": 0, "not applicable": 0}


def test_a_method_that_raises_fails_its_checks(capsys, outside):
    module = outside("raising", ("start = first", "1 / 0; start = first"))
    code, result, _ = run(capsys, "--plugin", module, "--method", module, "--only", "C1")
    assert code == 1
    assert result["checks"][0]["reason"] == "ZeroDivisionError: division by zero (raising.py:21)"


def test_a_method_that_hangs_is_not_asked_again(capsys, outside):
    module = outside("hanging", ("start = first", "while len(prompt_ids) > 500: pass\n        start = first"))
    code, result, _ = run(capsys, "--plugin", module, "--method", module, "--only", CHEAP, "--timeout", "1")
    assert code == 1
    reasons = [one["reason"] for one in result["checks"]]
    assert reasons[0] == "took too long: no result within 1 s"
    assert set(reasons[1:]) == {"not run, since C1 took too long"}


def test_a_method_that_changes_the_target_fails_whatever_looks_at_it_and_nothing_else(capsys, outside):
    spoil = "hasattr(self.target, 'hf') and self.target.hf.get_input_embeddings().weight.data[3].add_(1)"
    module = outside("mutating", ("start = first", f"{spoil}; start = first"))
    code, result, _ = run(capsys, "--plugin", module, "--method", module, "--only", "C1,C32")
    assert code == 1
    reasons = {one["reason"] for one in result["checks"]}
    assert reasons == {"the target was changed: model.embed_tokens.weight was changed"}
    assert run(capsys, "--method", "ngram", "--only", "C1,C32")[0] == 0


def test_a_divergence_shows_tokens_logits_gap_and_what_was_in_flight(capsys, outside):
    wrong = f"63 if len(tokens) == 5 and logits.numel() == 64 else {DRAWN}"
    module = outside("diverging", (DRAWN, wrong))
    _, result, _ = run(capsys, "--plugin", module, "--method", module, "--only", "C1,C2")
    for one in result["checks"]:
        assert one["status"] == "failed"
        for part in ("token 5 is 63 (logit", "AR's", "gap", "a tie up to", "in flight: step 3 drafted 0"):
            assert part in one["reason"]
    assert "1 mismatches" in result["checks"][1]["figure"]


def test_the_readme_recipe_for_another_projects_tests(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    (recipe,) = [block for block in blocks if "checks_for" in block]
    asked = 'plugin="plain_method"'
    assert asked in recipe
    few = recipe.replace(asked, f'{asked}, size="smallest", only=["C1", "C3"]')
    (tmp_path / "test_plain.py").write_text(few)
    (tmp_path / "plain_method.py").write_text(EXAMPLE.read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(tmp_path)]
    path = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=path, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert "C3: needs a RoundMethod (methods.decoding.rounds) or a pipeline" in done.stdout


def test_cases_name_the_fault(outside):
    module = outside("late", ("len(tokens) < max_new_tokens", "len(tokens) <= max_new_tokens"))
    (case,) = checks_for(module, plugin=module, size="smallest", only=["C8"])
    assert str(case) == "C8 caps, late"
    with pytest.raises(AssertionError, match="C8   failed  caps"):
        case()
    with pytest.raises(UsageError, match="has no option 'depth'"):
        checks_for("ngram", depth=3)
