"""Whole runs of the entry point, on a fake target with fake methods."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import fake_world
import pytest

from harness.analysis.summary import rows
from harness.execution.arm import prompt_seed
from harness.execution.losslessness import Doubt, Verdict
from harness.records.files import read_baseline, read_records
from harness.records.manifest import read_manifest
from harness.run import main
from methods.core import Step

TIE = Verdict("tie", Doubt(position=3, token=1, best=2, logit=1.0, gap=0.125, allowed=0.5))


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_world.install(monkeypatch.setattr)


def run(results: Path, line: str = "") -> int:
    return main([*line.split(), "--max-new-tokens", "16", "--results", str(results)])


def test_autoregressive_gives_six_records_a_table_and_a_json_line(tmp_path: Path, capsys) -> None:
    assert run(tmp_path / "r", "--method autoregressive --prompts 2") == 0
    out, err = capsys.readouterr()
    last = json.loads(out.splitlines()[-1])
    assert {key: last[key] for key in ("method", "preset", "run")} == {
        "method": "autoregressive",
        "preset": "smollm2-135m",
        "run": str(tmp_path / "r"),
    }
    assert [line["benchmark"] for line in last["results"]] == ["mt_bench", "gsm8k", "humaneval", "overall"]
    stored = json.loads((tmp_path / "r" / "summary.json").read_text())
    for line, full in zip(last["results"], stored["results"], strict=True):
        assert line.items() <= full.items()
        assert set(full) - set(line) == {key for key in full if "_prompt_mean" in key}
    assert "tok/s" in out.splitlines()[1] and "tok/s" in err
    records = read_records(tmp_path / "r")
    assert len({record.key for record in records}) == len(records) == 6
    assert not (tmp_path / "r" / "baseline.jsonl").exists()
    overall = last["results"][-1]
    assert [overall[key] for key in ("L_acc", "S0", "S", "wallclock_speedup")] == [1.0] * 4
    assert (overall["step_acceptance"], overall["lossless"]) == (None, "exact")
    assert [line["accuracy"] for line in last["results"]] == [None, 1.0, None, None]
    assert [line["accuracy_by"] for line in last["results"]] == [None, {"gsm8k": "stated v2"}, None, None]


def test_speculative_run_has_a_baseline_a_speedup_and_a_status(tmp_path: Path, capsys) -> None:
    assert run(tmp_path, "--method fake-draft --benchmark gsm8k --temperature 0 --temperature 1") == 0
    lines = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert [(line["temperature"], line["benchmark"], line["lossless"]) for line in lines] == [
        (0.0, "gsm8k", "exact"),
        (0.0, "overall", "exact"),
        (1.0, "gsm8k", "sampled"),
        (1.0, "overall", "sampled"),
    ]
    assert all(line["wallclock_speedup"] == pytest.approx(3.0) for line in lines)
    rebuilt = rows(read_records(tmp_path), read_baseline(tmp_path))
    assert json.loads((tmp_path / "summary.json").read_text())["results"] == json.loads(json.dumps(rebuilt))
    assert {record.method for record in read_baseline(tmp_path)} == {"autoregressive"}
    assert len(read_baseline(tmp_path)) == len(read_records(tmp_path)) == 8


def test_record_content(tmp_path: Path) -> None:
    run(tmp_path, "--method fake-draft --benchmark mt_bench --prompts 1 --seed 5")
    (record,) = read_records(tmp_path)
    prompt_ids = fake_world.render(None, [{"role": "user", "content": "question 0"}])
    assert record.key == ("mt_bench", "mt_bench/0", 1, 0.0, 1, 0)
    assert record.prompt_ids == prompt_ids
    assert len(record.output_ids) == 16 and record.finish_reason == "length"
    assert record.output_ids == read_baseline(tmp_path)[0].output_ids
    assert (record.prefill_s, record.decode_s) == (0.25, pytest.approx(15 / 3 / 100))
    assert record.steps.emitted == [3] * 5 and record.phases == {"target": pytest.approx(0.005)}
    assert (record.method, record.category, record.turn_policy) == ("fake-draft", "any", "first")
    assert (record.template_hash, record.thinking, record.num_layers) == ("template", False, 8)
    assert record.seed == prompt_seed(5, "mt_bench", "mt_bench/0", 1, 0)
    assert record.text == " ".join(map(str, record.output_ids))


def test_seed_is_stable_and_depends_on_every_part() -> None:
    assert prompt_seed(0, "gsm8k", "1", 1, 0) == 225284159
    parts = [(0, "gsm8k", "1", 1, 0), (1, "gsm8k", "1", 1, 0), (0, "mt", "1", 1, 0)]
    parts += [(0, "gsm8k", "2", 1, 0), (0, "gsm8k", "1", 2, 0), (0, "gsm8k", "1", 1, 1)]
    assert len({prompt_seed(*part) for part in parts}) == len(parts)


def test_sampled_repeats_differ_and_greedy_ones_do_not(tmp_path: Path) -> None:
    run(tmp_path, "--benchmark gsm8k --prompts 1 --repeats 2 --temperature 0 --temperature 1")
    outputs = {(r.temperature, r.repeat): tuple(r.output_ids) for r in read_records(tmp_path)}
    assert outputs[0.0, 0] == outputs[0.0, 1]
    assert outputs[1.0, 0] != outputs[1.0, 1]


def test_second_turn_contains_the_first_answer_of_autoregressive(tmp_path: Path) -> None:
    run(tmp_path, "--method fake-wrong --benchmark mt_bench --prompts 1 --turns all")
    first, second = read_baseline(tmp_path)
    messages = [
        {"role": "user", "content": "question 0"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "then 0"},
    ]
    assert second.prompt_ids == fake_world.render(None, messages)
    assert [r.turn for r in read_records(tmp_path)] == [1, 2]
    assert read_records(tmp_path)[1].prompt_ids == second.prompt_ids
    assert second.turn_policy == "all"


def test_each_width_is_an_arm_of_its_own(tmp_path: Path) -> None:
    assert run(tmp_path, "--method fake-draft --benchmark gsm8k --prompts 2 --width 1 4") == 0
    assert sorted({r.width for r in read_records(tmp_path)}) == [1, 4]
    assert len(read_records(tmp_path)) == 4 and len(read_baseline(tmp_path)) == 2
    assert read_manifest(tmp_path)["config"]["widths"]["4"]["options"]["width"] == 4


def test_wrong_output_is_a_mismatch_and_an_exit_code(tmp_path: Path, capsys) -> None:
    assert run(tmp_path, "--method fake-wrong --benchmark gsm8k --prompts 2") == 1
    assert {r.lossless for r in read_records(tmp_path)} == {"mismatch"}
    assert {str(r.doubt) for r in read_records(tmp_path)} == {"{'position': 3, 'gap': 0.5, 'allowed': 0.25}"}
    assert {r.doubt for r in read_baseline(tmp_path)} == {None}
    *shown, last = capsys.readouterr().out.splitlines()
    assert all(row["lossless"] == "mismatch" for row in json.loads(last)["results"])
    for row in json.loads(last)["results"]:
        assert row["S0"] is row["S"] is row["wallclock_speedup"] is row["wallclock_speedup_interval"] is None
    (first, _), (ar, _) = read_records(tmp_path), read_baseline(tmp_path)
    place = next(i for i, token in enumerate(ar.output_ids) if first.output_ids[i] != token)
    wanted = f"mismatch: gsm8k {first.prompt_id}, turn 1, T = 0, width 1: at output position {place} expected"
    wanted += f" token {ar.output_ids[place]}, got token {first.output_ids[place]}"
    assert [line.startswith(wanted) for line in shown if line.startswith("mismatch")] == [True, False]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("flag", ["", "--json"])
def test_a_terminal_gets_json_only_when_asked(
    tmp_path: Path, monkeypatch, capsys, terminal: bool, flag: str
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    assert run(tmp_path, f"--benchmark gsm8k --prompts 1 {flag}") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("{") == (not terminal or bool(flag))
    assert (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_difference_is_measured_before_it_is_judged(tmp_path: Path, monkeypatch, dtype: str) -> None:
    monkeypatch.setattr("harness.execution.losslessness.judge", lambda target, prompt, ar, ids: TIE)
    assert run(tmp_path, f"--method fake-wrong --benchmark gsm8k --prompts 1 --dtype {dtype}") == 0
    assert [(r.lossless, r.doubt) for r in read_records(tmp_path)] == [
        ("tie", {"position": 3, "gap": 0.125, "allowed": 0.5})
    ]


def test_check_that_cannot_be_made_stays_open_and_is_made_later(tmp_path: Path, monkeypatch, capsys) -> None:
    def no_model(*_):
        raise RuntimeError("no model to ask")

    line = "--method fake-wrong --benchmark gsm8k --prompts 1 --dtype bfloat16"
    monkeypatch.setattr("harness.execution.losslessness.judge", no_model)
    run(tmp_path, line)
    assert [r.lossless for r in read_records(tmp_path)] == ["unchecked"]
    assert "lossless check of gsm8k gsm8k/0: RuntimeError: no model to ask" in capsys.readouterr().err
    monkeypatch.setattr("harness.execution.losslessness.judge", lambda *_: TIE)
    run(tmp_path, line)
    assert [r.lossless for r in read_records(tmp_path)] == ["tie"]


def test_without_baseline_nothing_is_claimed(tmp_path: Path, capsys) -> None:
    assert run(tmp_path, "--method fake-draft --benchmark gsm8k --prompts 2 --no-baseline") == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])["results"][-1]
    assert (line["wallclock_speedup"], line["lossless"]) == (None, "unchecked")
    assert read_baseline(tmp_path) == []


def test_failed_prompts_are_records_and_the_run_goes_on(tmp_path: Path, capsys) -> None:
    assert run(tmp_path, "--method fake-broken --benchmark gsm8k") == 1
    records = read_records(tmp_path)
    failed = [r for r in records if r.error]
    assert len(records) == 4 and len(failed) == 2
    assert re.fullmatch(r"RuntimeError: odd prompt second line \(fake_world\.py:\d+\)", failed[0].error)
    assert failed[0].output_ids == [] and failed[0].prompt_ids and failed[0].lossless == "unchecked"
    assert len([r for r in read_baseline(tmp_path) if r.error is None]) == 4, "the other arm is untouched"
    line = json.loads(capsys.readouterr().out.splitlines()[-1])["results"][-1]
    assert (line["prompts"], line["failed"], line["lossless"]) == (2, 2, "exact")


def test_failed_prompts_are_retried_by_the_next_start(tmp_path: Path, monkeypatch) -> None:
    run(tmp_path, "--method fake-broken --benchmark gsm8k")
    lines = (tmp_path / "records.jsonl").read_bytes().count(b"\n")
    monkeypatch.setattr(fake_world.FakeBroken, "decode", fake_world.FakeMethod.decode)
    assert run(tmp_path, "--method fake-broken --benchmark gsm8k") == 0
    records = read_records(tmp_path)
    assert [(r.error, r.lossless) for r in records] == [(None, "exact")] * 4
    assert (tmp_path / "records.jsonl").read_bytes().count(b"\n") == lines + 2, "only the failed ones"


def fail_on_odd(self, prompt_ids, *args, **kwargs):
    if prompt_ids[-1] % 2:
        raise RuntimeError("odd prompt")
    return fake_world.FakeMethod.decode(self, prompt_ids, *args, **kwargs)


def test_failed_baseline_leaves_the_method_unchecked_until_it_succeeds(tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(fake_world.FakeAR, "decode", fail_on_odd)
        assert run(tmp_path, "--method fake-draft --benchmark gsm8k") == 1
    statuses = [r.lossless for r in read_records(tmp_path)]
    assert sorted(statuses) == ["exact", "exact", "unchecked", "unchecked"]
    assert run(tmp_path, "--method fake-draft --benchmark gsm8k") == 0
    assert [r.lossless for r in read_records(tmp_path)] == ["exact"] * 4


def test_trace_that_contradicts_the_output_is_a_failure(tmp_path: Path) -> None:
    assert run(tmp_path, "--method fake-miscount --benchmark gsm8k --prompts 1") == 1
    (record,) = read_records(tmp_path)
    assert record.error == "TraceError: steps emit 14 tokens, the output holds 15 after the prefill's"


def steps(**changes):
    """Every step claims these."""
    return lambda r: replace(r, steps=[replace(step, **changes) for step in r.steps])


def merged(steps):
    """One step that did the work of all, for the price of one."""
    count = sum(step.emitted for step in steps)
    return replace(steps[0], drafted=count, depth=count, accepted=count - 1, emitted=count, nodes=(count,))


RESULTS = {
    "too many": (
        lambda r: replace(r, tokens=r.tokens * 2),
        "TraceError: the output holds 32 tokens, the cap",
    ),
    "none": (lambda r: None, "TraceError: decode returned NoneType, not a DecodeResult"),
    "nan": (lambda r: replace(r, decode_s=float("nan")), "TraceError: decode_s is nan, not a number"),
    "negative": (lambda r: replace(r, prefill_s=-1.0), "TraceError: prefill_s is -1.0, not a number"),
    "no time": (
        lambda r: replace(r, decode_s=0.0),
        "TraceError: decode_s is 0.0000, but the target's passes",
    ),
    "all prefill": (
        lambda r: replace(r, prefill_s=r.prefill_s + r.decode_s - 0.01, decode_s=0.01),
        "TraceError: decode_s is 0.0100, but the target's passes",
    ),
    "more time": (lambda r: replace(r, decode_s=60.0), "TraceError: prefill_s + decode_s are 60.2500 s of a"),
    "no layers": (steps(target_layers=0), "TraceError: target_layers of the steps, times the stages"),
    "half the layers": (steps(target_layers=4), "TraceError: target_layers of the steps, times the stages"),
    "nan layers": (steps(target_layers=float("nan")), "TraceError: step 0 has layers or seconds that are no"),
    "nodes": (steps(nodes=(4,)), "TraceError: the nodes of the trace sum to 20; the target ran 15 tokens"),
    "stages": (steps(nodes=(3,) * 8, target_layers=1), "TraceError: step 0 emits a token that has not been"),
    "undrafted": (steps(accepted=0), "TraceError: step 0 emits 3 tokens; 0 were accepted, and the target"),
    "merged": (lambda r: replace(r, steps=[merged(r.steps)]), "TraceError: target_layers sum to 8; the"),
    "phases": (
        steps(phases={"target": 1.0}),
        "TraceError: the phases of the steps sum to 5.0000 s, decode_s",
    ),
    "reason": (lambda r: replace(r, finish_reason="stop"), "TraceError: the finish reason is 'stop', and"),
    "text": (lambda r: replace(r, tokens=["a"] * len(r.tokens)), "ValueError: invalid literal"),
    "depth": (
        lambda r: replace(r, steps=[Step(1, 1, len(r.tokens) - 1, target_layers=8, draft_layers=0)]),
        "TraceError: step 0 accepts 1 tokens at depth 0; give Step its depth",
    ),
    "object": (lambda r: replace(r, finish_reason=object()), "TraceError: the finish reason is <object"),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("baseline", ["", "--no-baseline"])
def test_a_result_that_breaks_the_contract_is_that_prompts_failure(
    tmp_path: Path, monkeypatch, name: str, baseline: str
) -> None:
    spoil, message = RESULTS[name]
    decode = fake_world.FakeDraft.decode
    monkeypatch.setattr(fake_world.FakeDraft, "decode", lambda self, *given: spoil(decode(self, *given)))
    line = f"--method fake-draft --benchmark gsm8k --prompts 1 --warmup 0 {baseline}"
    assert run(tmp_path, line) == 1
    (record,) = read_records(tmp_path)
    assert record.error is not None and record.error.startswith(message) and not record.output_ids


def test_tokens_after_a_stop_id_are_a_failure_at_any_temperature(tmp_path: Path, monkeypatch) -> None:
    decode = fake_world.FakeMethod.decode
    monkeypatch.setattr(fake_world.FakeTarget, "stop_ids", tuple(range(fake_world.VOCAB)))
    monkeypatch.setattr(
        fake_world.FakeDraft, "decode", lambda self, ids, sampling, cap, _: decode(self, ids, sampling, cap)
    )
    assert run(tmp_path, "--method fake-draft --benchmark gsm8k --prompts 1 --temperature 1 --warmup 0") == 1
    (record,) = read_records(tmp_path)
    assert record.error == "TraceError: the output goes on after a stop id"


def test_a_record_of_another_run_is_named(tmp_path: Path, capsys) -> None:
    line = "--benchmark gsm8k --prompts 1"
    assert run(tmp_path, line) == 0
    file = tmp_path / "records.jsonl"
    file.write_text(file.read_text().replace('"benchmark": "gsm8k"', '"benchmark": "other"'))
    assert run(tmp_path, line) == 2
    assert "holds a record that is not of this run: other" in capsys.readouterr().err


def calls(monkeypatch) -> list[tuple[str, int]]:
    """(method, cap) of every decode from now on."""
    made: list[tuple[str, int]] = []
    decode = fake_world.FakeMethod.decode

    def spy(self, prompt_ids, sampling, max_new_tokens, stop_ids=()):
        made.append((self.name, max_new_tokens))
        return decode(self, prompt_ids, sampling, max_new_tokens, stop_ids)

    monkeypatch.setattr(fake_world.FakeMethod, "decode", spy)
    return made


def test_arms_are_interleaved_and_change_places(tmp_path: Path, monkeypatch) -> None:
    made = calls(monkeypatch)
    run(tmp_path, "--method fake-draft --benchmark gsm8k --prompts 2 --repeats 2 --warmup 0")
    short = {"autoregressive": "A", "fake-draft": "D"}
    assert [short[name] for name, _ in made] == ["A", "D", "D", "A", "D", "A", "A", "D"]


def test_warm_up_leaves_no_record_and_is_left_out_when_all_is_done(tmp_path: Path, monkeypatch) -> None:
    made = calls(monkeypatch)
    line = "--method fake-draft --benchmark gsm8k --prompts 3 --warmup 2"
    run(tmp_path, line)
    assert len(made) == 2 * (2 + 3)
    assert len(read_records(tmp_path)) == 3
    run(tmp_path, line)
    assert len(made) == 2 * (2 + 3), "nothing is decoded again"


def test_failing_warm_up_does_not_end_the_run(tmp_path: Path) -> None:
    assert run(tmp_path, "--method fake-broken --benchmark gsm8k --warmup 4") == 1
    assert len(read_records(tmp_path)) == 4


def test_interrupt_keeps_what_is_done(tmp_path: Path, monkeypatch, capsys) -> None:
    decode, left = fake_world.FakeMethod.decode, [3]

    def interrupted(self, *args, **kwargs):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return decode(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(fake_world.FakeMethod, "decode", interrupted)
        assert run(tmp_path, "--benchmark gsm8k --warmup 0") == 130
    assert len(read_records(tmp_path)) == 3
    assert run(tmp_path, "--benchmark gsm8k --warmup 0") == 0
    assert len(read_records(tmp_path)) == 4


def test_manifest_precedes_the_first_token(tmp_path: Path, monkeypatch) -> None:
    seen = []
    decode = fake_world.FakeMethod.decode

    def spy(self, *args, **kwargs):
        seen.append(read_manifest(tmp_path)["config"]["method"])
        return decode(self, *args, **kwargs)

    monkeypatch.setattr(fake_world.FakeMethod, "decode", spy)
    run(tmp_path, "--benchmark gsm8k --prompts 1")
    assert seen == ["autoregressive"] * 2


def test_manifest_content(tmp_path: Path) -> None:
    run(tmp_path, "--method fake-draft --n 2 --benchmark gsm8k --prompts 1 --turns all --temperature 1")
    manifest = read_manifest(tmp_path)
    config = manifest["config"]
    assert config["widths"]["1"] == {
        "options": {
            "n": 2,
            "width": 1,
            "rate": 0.5,
            "anchors": [0, 4],
            "checkpoint": None,
            "untrained": False,
        },
        "facts": {"checkpoint": None},
    }
    assert config["target"] == {"name": "fake", "weights": "f" * 64}
    assert config["template"] == {"name": None, "template_sha256": "template", "thinking": False}
    assert config["benchmarks"]["gsm8k"]["version"] == 3
    assert config["benchmarks"]["gsm8k"]["source_sha256"] == "5" * 64
    assert config["benchmarks"]["gsm8k"]["scorer"] == read_records(tmp_path)[0].scorer == "stated v2"
    assert (config["turns"], config["temperatures"], config["top_k"]) == ("all", [1.0], 50)
    assert (config["dtype"], config["attention"], config["stop_ids"]) == ("float32", "none", [0])
    assert "nowhere" not in json.dumps(config), "where a file lies changes nothing"
    assert manifest["prompt_sources"]["gsm8k"]["location"] == "nowhere"
    assert manifest["argv"][:2] == ["--method", "fake-draft"]


CHANGES = [
    ("--n 2", "widths.1.options.n"),
    ("--width 4", "widths.1 "),
    ("--seed 1", "seed"),
    ("--temperature 1", "temperatures"),
    ("--top-p 0.5", "top_p"),
    ("--prompts 1", "benchmarks.gsm8k.prompts"),
    ("--turns all", "turns"),
    ("--dtype bfloat16", "dtype"),
    ("--repeats 2", "repeats"),
    ("--no-baseline", "baseline"),
    ("--execute-code", "execute_code"),
    ("--template vicuna", "template.name"),
]


@pytest.mark.parametrize(("change", "field"), CHANGES)
def test_changed_configuration_is_refused_in_the_same_directory(
    tmp_path: Path, capsys, change: str, field: str
) -> None:
    base = "--method fake-draft --benchmark gsm8k"
    assert run(tmp_path, base) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    capsys.readouterr()
    assert run(tmp_path, f"{base} {change}") == 2
    assert f"holds another configuration: {field}" in one_line(capsys)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_preset_names_a_checkpoint_unless_another_is_asked_for(tmp_path: Path) -> None:
    asked = {"": "preset.safetensors", "--checkpoint mine.pt": "mine.pt", "--untrained": None}
    for number, (flags, expected) in enumerate(asked.items()):
        results = tmp_path / str(number)
        run(results, f"--method fake-stored --benchmark gsm8k --prompts 1 {flags}")
        config = read_manifest(results)["config"]
        assert config["widths"]["1"]["options"]["checkpoint"] == expected


def test_target_that_is_not_the_presets_is_refused(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(fake_world.FakeTarget, "num_layers", 6)
    assert run(tmp_path, "--preset smollm2-135m --target other") == 2
    assert "target 'other' has 6 layers, preset 'smollm2-135m' is for 8" in one_line(capsys)
    assert run(tmp_path, "--target other --benchmark gsm8k --prompts 1") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["preset"] is None


def test_default_directory_is_named_by_the_configuration(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = ["--method", "fake-draft", "--n", "2", "--benchmark", "gsm8k", "--prompts", "1"]
    for seed in ("0", "1", "0"):
        assert main([*base, "--seed", seed]) == 0
    found = sorted(Path("results/runs").iterdir())
    assert len(found) == 2
    for path in found:
        digits = read_manifest(path)["fingerprint"][:8]
        assert path.name == f"smollm2-135m-fake-draft-n2-{digits}"


def one_line(capsys) -> str:
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("error: ")
    return err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--method nonsense", "unknown method 'nonsense'; known: autoregressive, fake-broken, fake-draft"),
        ("--preset gpt-9", "unknown preset 'gpt-9'; known: smollm2-135m"),
        ("--benchmark mmlu", "unknown benchmark 'mmlu'; known: mt_bench, gsm8k, humaneval"),
        ("--method autoregressive --n 4", "method 'autoregressive' has no option 'n'; allowed: none"),
        ("--method autoregressive --width 4", "method 'autoregressive' has no option 'width'"),
        ("--method fake-draft --option colour=red", "'fake-draft' has no option 'colour'; allowed: n, width"),
        ("--method fake-draft --n 9", "n must be in 1..8, got 9"),
        ("--method fake-draft --n 0", "argument --n: must be a whole number >= 1, got 0"),
        ("--method fake-draft --n 9", "n must be in 1..8, got 9"),
        ("--method fake-draft --option n=x", "option n expects int, got 'x'"),
        ("--temperature -0.5", "must be a number >= 0, got -0.5"),
        ("--top-p 1.01", "must be in (0, 1], got 1.01"),
        ("--plugin no.such.module", "plugin module 'no.such.module' cannot be imported"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(tmp_path: Path, capsys, line: str, message: str) -> None:
    assert run(tmp_path / "r", line) == 2
    assert message in one_line(capsys)
    assert not (tmp_path / "r").exists(), "nothing is written for a run that cannot start"


def test_prompt_longer_than_the_context_is_refused_by_name(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(fake_world.FakeTarget, "context", 10)
    assert run(tmp_path, "--benchmark gsm8k") == 2
    assert "prompt gsm8k/0 of gsm8k has 11 tokens; the target's context is 10" in one_line(capsys)


def test_unwritable_results_are_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file" / "run") == 2
    assert "is not writable" in one_line(capsys)


def test_malformed_line_stops_the_next_start(tmp_path: Path, capsys) -> None:
    run(tmp_path, "--benchmark gsm8k --prompts 1")
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write("oops\n")
    capsys.readouterr()
    assert run(tmp_path, "--benchmark gsm8k --prompts 1") == 2
    error = one_line(capsys)
    assert "records.jsonl:2: not a line of JSON" in error
    assert "delete this line and repeat the run's command" in error


def test_a_damaged_line_that_is_deleted_is_decoded_again(tmp_path: Path, capsys) -> None:
    run(tmp_path, "--benchmark gsm8k --prompts 3")
    lines = (tmp_path / "records.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_bytes(lines[0] + lines[1][:40] + b"\n" + lines[2])
    assert run(tmp_path, "--benchmark gsm8k --prompts 3") == 2
    (tmp_path / "records.jsonl").write_bytes(lines[0] + lines[2])
    assert run(tmp_path, "--benchmark gsm8k --prompts 3") == 0
    assert [record.error for record in read_records(tmp_path)] == [None] * 3


@pytest.mark.parametrize("broken", ["__init__", "describe"])
def test_plugin_that_cannot_be_set_up_is_one_line(tmp_path: Path, monkeypatch, capsys, broken: str) -> None:
    (tmp_path / f"broken{broken}.py").write_text(
        "from fake_world import FakeDraft\nfrom methods.registry import register\n"
        f"@register('broken{broken}')\nclass Mine(FakeDraft):\n"
        f"    def {broken}(self, *given, **named):\n        raise ValueError('no such table')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    line = f"--plugin broken{broken} --method broken{broken} --n 3 --benchmark gsm8k --prompts 1"
    assert run(tmp_path / "r", line) == 2
    wanted = (
        f"method 'broken{broken}' cannot be set up for fake: ValueError: no such table (broken{broken}.py:6)"
    )
    assert wanted in one_line(capsys)


def test_plugin_module_brings_its_method(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "my_plugin.py").write_text(
        "from methods.registry import register\nfrom fake_world import FakeDraft\n\n\n"
        "@register('from-a-plugin')\nclass Mine(FakeDraft):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    line = "--plugin my_plugin --method from-a-plugin --n 3 --benchmark gsm8k --prompts 1"
    assert run(tmp_path / "r", line) == 0
    assert read_records(tmp_path / "r")[0].method == "from-a-plugin"
