"""The bench: arms take turns, ratios are of neighbours, the last line is JSON with every repeat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from conftest import random_ids, tiny

from harness import bench, speed
from harness.config.presets import load_preset
from harness.speed import autoregressive, distributed, emulation, replay, rounds, targets, timing
from harness.speed.result import Ratio, Result, Settings
from methods import registry
from methods.errors import TargetChanged
from methods.models import load_target
from methods.testing.scripted import sometimes


def test_arms_take_turns_after_one_unrecorded_call() -> None:
    called: list[str] = []

    def arm(name: str, seconds: float) -> timing.Timed:
        def run() -> float:
            called.append(name)
            return seconds

        return run

    times = timing.interleaved({"a": arm("a", 1.0), "b": arm("b", 2.0), "c": arm("c", 3.0)}, 4)
    assert "".join(called) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert times == {"a": [1.0] * 4, "b": [2.0] * 4, "c": [3.0] * 4}


def result() -> Result:
    # The machine is ten times slower in the second repeat; the ratio of neighbours does not see it.
    seconds = {"old": [2.0, 20.0, 3.0], "new": [1.0, 10.0, 1.0]}
    return Result("subject", "a case", "token", seconds, (Ratio("gain", "old", "new", 1.5),))


def test_ratio_is_the_median_of_neighbours() -> None:
    assert result().values(result().ratios[0]) == [2.0, 2.0, 3.0]
    assert result().as_json() == {
        "subject": "subject",
        "case": "a case",
        "unit": "token",
        "median_s": {"old": 3.0, "new": 1.0},
        "ratios": {"gain": {"median": 2.0, "aim": 1.5, "at_most": None}},
        "raw_s": {"old": [2.0, 20.0, 3.0], "new": [1.0, 10.0, 1.0]},
    }


def test_entry_prints_a_table_and_a_json_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    asked: list[Settings] = []

    def measure(settings: Settings) -> Iterator[Result]:
        asked.append(settings)
        yield result()

    monkeypatch.setattr(speed, "import_module", lambda name: SimpleNamespace(measure=measure))
    assert bench.main(["autoregressive", "--dtype", "float32", "--repeats", "3", "--tokens", "5"]) == 0
    out = capsys.readouterr().out
    assert asked == [Settings(dtypes=("float32",), tokens=5, repeats=3)]
    assert "subject, a case" in out and "2.000" in out and ">= 1.5" in out
    last = json.loads(out.splitlines()[-1])
    assert last["results"] == [result().as_json()]
    assert {"cpu", "cores", "torch_threads", "versions", "code"} <= set(last["machine"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sorting", "unknown measurement 'sorting'; known: autoregressive"),
        ("--tokens 1", "tokens must be >= 2"),
        ("--repeats 0", "argument --repeats: must be a whole number >= 1, got 0"),
        ("--dtype float8", "argument --dtype: invalid choice: 'float8'"),
        ("--preset gpt-9", "unknown preset 'gpt-9'; known:"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(capsys, line: str, message: str) -> None:
    assert bench.main(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err


def test_limits_are_shown_on_either_side() -> None:
    assert Ratio("a", "b", "c", 0.9, 1.1).wished == ">= 0.9, <= 1.1"
    assert Ratio("a", "b", "c", at_most=1.05).wished == "<= 1.05" and Ratio("a", "b", "c").wished == ""


@pytest.mark.parametrize("subject", speed.SUBJECTS)
def test_every_subject_has_a_measurement(subject: str) -> None:
    assert callable(speed.get(subject))


def test_arms_of_autoregressive_do_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny("qwen3")
    monkeypatch.setattr(targets, "load_target", lambda name, dtype: target)
    monkeypatch.setattr(targets, "first_turns", lambda *_: [random_ids(9)])
    (found,) = autoregressive.measure(Settings(dtypes=("float32",), tokens=6, repeats=2))
    assert set(found.seconds) == {"AR", "generate", "floor"}
    assert all(len(times) == 2 and min(times) > 0 for times in found.seconds.values())
    assert [ratio.aim for ratio in found.ratios] == [1.05, 0.85]


def test_a_method_that_changes_the_target_ends_the_measurement(monkeypatch, capsys) -> None:
    target = tiny("llama")
    monkeypatch.setattr(targets, "load_target", lambda name, dtype: target)
    monkeypatch.setattr(targets, "first_turns", lambda *_: [random_ids(9)])
    monkeypatch.setattr(autoregressive, "generate_arm", lambda target, *_: lambda: spoil(target))
    with pytest.raises(TargetChanged, match=r"smollm2-135m float32, .* lm_head.weight was changed"):
        bench.main(["autoregressive", "--dtype", "float32", "--tokens", "2", "--repeats", "1"])
    assert "{" not in capsys.readouterr().out


def spoil(target) -> float:
    target.hf.lm_head.weight.data.mul_(1.25)
    return 1.0


@pytest.mark.slow
def test_two_ranks_are_told_what_to_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny("llama")
    monkeypatch.setattr(targets, "load_target", lambda name, dtype: target)
    monkeypatch.setattr(targets, "first_turns", lambda *_: [random_ids(9)])
    (found,) = distributed.measure(Settings(dtypes=("float32",), tokens=30, repeats=2))
    assert "stages of 3;5 layers" in found.case
    assert {len(times) for times in found.seconds.values()} == {2}
    by_name = {ratio.name: found.values(ratio)[0] for ratio in found.ratios}
    right = [sometimes(distributed.RIGHT)(index) for index in range(1, 30)]
    # a cycle costs the larger stage, a wrong draft another cycle
    assert by_name["S"] == pytest.approx(8 / 5 / (2 - sum(right) / 29), rel=0.1)
    # Times of a busy machine: this only tells a wrong unit or a cycle counted twice.
    assert 0.02 < by_name["projected / measured"] < 2


def test_stages_are_balanced_with_head_and_drafter() -> None:
    target = tiny("llama")
    layer = sum(matrix.numel() for matrix in target.layers[0].matrices())
    head = target.head_weight.numel()
    assert distributed.balanced(target, draft_weights=head) == 4
    assert distributed.balanced(target, draft_weights=head + 4 * layer) == 2
    assert distributed.balanced(target, draft_weights=100 * layer) == 1


@pytest.mark.slow
def test_emulated_cycles_are_held_against_the_slowest_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "_TOKENS", 30)
    monkeypatch.setattr(emulation, "CYCLE_LIMITS", {4: (1.05, 1.10)})
    monkeypatch.setattr(emulation, "STAGES", 4)
    cycles, speedup = emulation.measure(Settings(tokens=30, repeats=1))
    median, mean = (cycles.values(ratio)[0] for ratio in cycles.ratios)
    assert median >= 0.99 and mean >= 0.99, "no cycle is shorter than its slowest stage"
    assert cycles.seconds["slowest stage"] == [0.0079]
    gain, bare, model = (speedup.values(ratio)[0] for ratio in speedup.ratios)
    assert 0 < gain < 4
    assert bare < 1.02 and bare < model, "messages take time"


@pytest.mark.parametrize("family", ["llama", "qwen3", "hybrid"])
def test_floor_reads_every_weight_once(family: str) -> None:
    """All parameters but the norms, the embedding (one row is read) and the small recurrent ones."""
    target = tiny(family)
    matrices = autoregressive.weight_matrices(target)
    places = {(m.untyped_storage().data_ptr(), m.storage_offset()) for m in matrices}
    assert len(places) == len(matrices)
    every = [module.weight.numel() for module in target.hf.modules() if isinstance(module, torch.nn.Linear)]
    assert sum(matrix.numel() for matrix in matrices) == sum(every)


def test_replay_is_timed_on_the_tokens_that_were_decoded() -> None:
    target, prompt = tiny("llama"), random_ids(6)
    methods = [
        registry.create(name, target, options)
        for name, options in (
            ("ngram", {}),
            ("eagle3", {"untrained": True}),
            ("ppsd", {"n": 2, "untrained": True}),
        )
    ]
    found = replay.compared(target, methods, prompt, Settings(tokens=12, repeats=2), "tiny")
    assert found.case == "tiny, 3 rows"
    assert all(len(times) == 2 and min(times) > 0 for times in found.seconds.values())
    assert [ratio.aim for ratio in found.ratios] == [20.0]


def test_replayed_rows_have_the_shipped_drafters() -> None:
    """Others of Table 1 are left out, not replaced by random ones."""
    target = load_target(load_preset("smollm2-135m").target, "float32")
    found = replay.rows(target, load_preset("smollm2-135m"))
    assert {method.name for method in found} == {"eagle3", "ppsd", "spd", "ngram"}
    assert all(not method.describe().get("untrained") for method in found)


def test_a_scripted_round_learns_what_its_method_answers() -> None:
    target, prompt = tiny("llama"), random_ids(6)
    method = rounds.ScriptedEagle3(target, 3, [0] * 24)
    lost = sum(step.accepted for step in method.decode(prompt, rounds.GREEDY, 24).steps)
    method.learn(prompt, 24)
    result = method.decode(prompt, rounds.GREEDY, 24)
    assert method.output == result.tokens
    right = sometimes(rounds.RIGHT)
    expected = sum(right(i) for i in range(1, 24))
    assert sum(step.accepted for step in result.steps) > max(lost, expected // 2)
