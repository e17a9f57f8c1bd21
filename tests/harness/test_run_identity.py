"""A run's records are of one code: edits are refused, and kept apart with --fresh (check C36)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import fake_world
import pytest
from edited_code import Edited, edited
from torch.distributed import HashStore

from harness.cli import time_limit
from harness.cli.arguments import parse
from harness.execution import run_directory
from harness.execution.plan import make_plan
from harness.execution.sharding import Shard
from harness.records import identity
from harness.records.files import read_records
from harness.records.manifest import read_manifest
from harness.run import main
from methods.errors import UsageError
from methods.source_code.code import Code

LINE = ["--method", "mine", "--plugin", "mine_plugin", "--prompts", "2", "--max-new-tokens", "8"]
PLUGIN = """
from fake_world import FakeMethod
from methods.registry import register
from mine_helper import chosen

@register("mine")
class Mine(FakeMethod):
    calls = 0

    def token(self, prefix, sampling):
        {extra}
        return chosen(super().token(prefix, sampling), len(prefix))
"""
RIGHT = "from mine_deeper import shift\n\ndef chosen(token, place):\n    return token + shift(place)\n"
SOUND, WRONG = "def shift(place):\n    return 0\n", "def shift(place):\n    return place % 2\n"
STOP = "type(self).calls += 1\n        if self.calls > 40: raise KeyboardInterrupt"
Run = Callable[..., int]


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_world.install(monkeypatch.setattr)


@pytest.fixture
def files(tmp_path: Path, world: None) -> Iterator[Edited]:
    (tmp_path / "code").mkdir()
    with edited(tmp_path / "code") as files:
        files.write(mine_plugin=PLUGIN.format(extra=""), mine_helper=RIGHT, mine_deeper=SOUND)
        yield files


@pytest.fixture
def run(tmp_path: Path, files: Edited) -> Run:
    """The exit code of the same command, with other flags if given, after an edit if one is given."""

    def run(*flags: str, **edit: str) -> int:
        files.write(**edit)
        return main([*LINE, *flags, "--results", str(tmp_path / "run")])

    return run


def statuses(directory: Path) -> set[str]:
    return {record.lossless for record in read_records(directory)}


@pytest.mark.parametrize(("first", "then"), [(WRONG, SOUND), (SOUND, WRONG)], ids=["mended", "broken"])
def test_an_edited_plugin_never_shows_the_old_result(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str, then: str
) -> None:
    where = tmp_path / "run"
    codes = {SOUND: (0, {"exact"}), WRONG: (1, {"mismatch"})}
    assert (run(mine_deeper=first), statuses(where)) == codes[first]
    before = {path.name: path.read_bytes() for path in where.iterdir() if path.is_file()}
    capsys.readouterr()
    assert run(mine_deeper=then) == 2
    out, err = capsys.readouterr()
    there = read_manifest(where)["method_code"]["mine"]["sha256"][:8]
    here = identity.codes(["mine"], "decode")["mine"].sha256[:8]
    assert there != here and out == ""
    assert err == (
        f"error: {where} holds records of other code: mine is {there} there and {here} here "
        "(mine_deeper differs); --fresh keeps them aside and begins anew\n"
    )
    assert {path.name: path.read_bytes() for path in where.iterdir() if path.is_file()} == before
    assert (run("--fresh"), statuses(where)) == codes[then]
    (kept,) = (where / "earlier").iterdir()
    assert f"the earlier records are in {kept}" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == {
        name: data for name, data in before.items() if not name.startswith(".")
    }
    assert statuses(kept) == codes[first][1] and read_manifest(where)["resumed"] == []


def test_an_edit_in_the_middle_of_a_run_mixes_no_codes(run: Run, tmp_path: Path) -> None:
    where = tmp_path / "run"
    stops = PLUGIN.format(extra="import mine_stop; mine_stop.stop(self)")
    stop = f"def stop(self):\n        {STOP}\n"
    assert run(mine_plugin=stops, mine_stop=stop) == 130
    held = (where / "records.jsonl").read_bytes()
    assert 0 < len(read_records(where)) < 6 and "finished_at" not in read_manifest(where)
    for edit in ({"mine_stop": "def stop(self): pass"}, {"mine_plugin": PLUGIN.format(extra="")}):
        assert run(**edit) == 2
    assert (where / "records.jsonl").read_bytes() == held
    assert run(mine_plugin=stops, mine_stop=f"# its code is the same\n{stop}") == 0
    assert (where / "records.jsonl").read_bytes().startswith(held) and len(read_records(where)) == 6


def test_a_finished_run_says_when_and_decodes_nothing(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "run"
    assert run() == 0
    assert "nothing decoded" not in capsys.readouterr().err
    before = (where / "records.jsonl").read_bytes()
    date = read_manifest(where)["finished_at"]
    assert run(mine_deeper=f'"""Comments are no code."""\n{SOUND}') == 0
    when = f"{date[:10]} {date[11:16]} UTC"
    assert f"{where}: finished on {when} with this code: nothing decoded\n" in capsys.readouterr().err
    assert (where / "records.jsonl").read_bytes() == before and read_manifest(where)["finished_at"] == date


def test_a_failed_prompt_leaves_a_run_unfinished(run: Run, tmp_path: Path) -> None:
    assert run(mine_deeper="def shift(place):\n    return place // 0\n") == 1
    assert "finished_at" not in read_manifest(tmp_path / "run")


def test_runs_of_earlier_versions_are_not_taken_for_this_code(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["method_code"], manifest["finished_at"]
    path.write_text(json.dumps(manifest))
    assert run() == 2
    assert "holds records that do not say of which code they are (commit " in capsys.readouterr().err
    assert run("--fresh") == 0 and read_manifest(tmp_path / "run")["method_code"]


@pytest.mark.parametrize(
    "damage", [{"method_code": "x"}, {"method_code": {"mine": 1}}, {"finished_at": "soon"}]
)
def test_a_damaged_manifest_is_one_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: dict
) -> None:
    assert run() == 0
    path = tmp_path / "run" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | damage))
    assert run() == 2 and "is damaged" in capsys.readouterr().err
    assert run("--fresh") == 0 and (tmp_path / "run" / "earlier" / "damaged" / "records.jsonl").exists()


def test_plain_decoding_beside_a_method_has_a_code_too(run: Run, tmp_path: Path) -> None:
    assert run() == 0 and set(read_manifest(tmp_path / "run")["method_code"]) == {"mine", "autoregressive"}
    assert run("--fresh", "--no-baseline") == 0
    assert set(read_manifest(tmp_path / "run")["method_code"]) == {"mine"}


def test_a_checkpoint_that_its_method_says_nothing_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = tmp_path / "head"
    head.mkdir()
    (head / "weights.bin").write_bytes(b"1")
    (head / "config.json").write_text("{}")
    line = [
        "--method",
        "fake-draft",
        "--checkpoint",
        str(head),
        "--prompts",
        "1",
        "--results",
        str(tmp_path / "r"),
    ]
    assert main(line) == 0
    (head / "config.json").write_text('{"taps": 3}')
    assert main(line) == 2
    assert "checkpoint is " in (err := capsys.readouterr().err) and "(config.json differs)" in err


def test_a_cut_off_move_is_completed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = tmp_path / "run"
    assert run() == 0
    before = {path.name for path in where.iterdir() if path.is_file() and not path.name.startswith(".")}
    move, moved = Path.replace, []

    def killed(self: Path, to: Path) -> Path:
        if len(moved) == 2:
            raise KeyboardInterrupt
        moved.append(self.name)
        return move(self, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        assert run("--fresh") == 130
    assert "manifest.json" not in moved
    assert run("--fresh") == 0
    (kept,) = (where / "earlier").iterdir()
    assert {path.name for path in kept.iterdir()} == before


def test_twice_within_a_second_is_kept_twice(run: Run, tmp_path: Path) -> None:
    assert [run(), run("--fresh"), run("--fresh")] == [0, 0, 0]
    assert [len(read_records(kept)) for kept in (tmp_path / "run" / "earlier").iterdir()] == [6, 6]


def test_a_start_after_a_kill_goes_on_with_what_is_fresh(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard starts the same command again, --fresh included, after it killed a prompt that hung."""
    assert run("--fresh") == 0
    monkeypatch.setattr(time_limit, "_hung", ("a prompt",))
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    assert run("--fresh") == 0
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == before
    assert not (tmp_path / "run" / "earlier").exists()


def test_another_process_of_a_launcher_with_other_code_is_refused(tmp_path: Path, run: Run) -> None:
    store, argv = HashStore(), [*LINE, "--results", str(tmp_path / "shared")]
    plans = [make_plan(parse(argv)) for _ in range(2)]
    plans[1] = replace(plans[1], code=plans[1].code | {"mine": Code({"mine_plugin": "0"})})
    with ExitStack() as stack:
        for rank, plan in enumerate(plans):
            shared = replace(plan, shard=Shard(rank, 2, store))
            if rank:
                with pytest.raises(UsageError, match="holds records of other code: mine is"):
                    run_directory.enter(stack, shared, argv)
            else:
                run_directory.enter(stack, shared, argv)


def test_the_same_command_in_processes_of_its_own(tmp_path: Path) -> None:
    """With nothing replaced but target and prompts."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "mine_helper.py").write_text(RIGHT)
    (folder / "mine_plugin.py").write_text(PLUGIN.format(extra=""))
    root, here = Path(__file__).resolve().parents[2], Path(__file__).parent

    def start(deeper: str, *flags: str) -> tuple[int, str, str]:
        (folder / "mine_deeper.py").write_text(deeper)
        done = subprocess.run(
            [
                sys.executable,
                str(here / "fake_run.py"),
                "0",
                *LINE,
                *flags,
                "--results",
                str(tmp_path / "run"),
            ],
            env={"PYTHONPATH": f"{root}:{here}:{folder}", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    assert start(WRONG)[0] == 1
    code, out, err = start(SOUND)
    assert (code, out, err.count("\n")) == (2, "", 1) and "(mine_deeper differs); --fresh" in err
    code, out, _ = start(SOUND, "--fresh")
    assert code == 0 and '"lossless": "exact"' in out
