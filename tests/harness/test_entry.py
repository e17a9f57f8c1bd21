"""How commands end: codes, one line on stderr, and arguments that mean nothing."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from harness import compare, project, soak
from harness.cli import entry
from harness.cli.entry import exit_code
from harness.report.__main__ import main as report
from harness.training.cli import parse as parse_training
from methods.errors import UsageError


def raising(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("no\n such thing"), 2, "error: no such thing\n"),
        (PermissionError(13, "Permission denied", "here"), 2, "error: here: Permission denied\n"),
        (OSError("no words from the system"), 2, "error: no words from the system\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_every_end_is_one_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    assert exit_code(raising(error)) == code
    assert capsys.readouterr().err == line


def test_faults_of_the_program_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        exit_code(raising(ZeroDivisionError()))


def test_a_reader_that_goes_away_leaves_no_traceback() -> None:
    program = "import sys; from harness.cli.entry import exit_code\n"
    program += "sys.exit(exit_code(lambda: [print('x' * 80) for _ in range(99999)] and 0))"
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None and writer.stderr is not None
    writer.stdout.readline()
    writer.stdout.close()
    assert writer.stderr.read() == b""
    assert writer.wait(60) == 1


@pytest.mark.parametrize(
    ("command", "argv", "message"),
    [
        (compare.main, ["", "run"], "argument RUN: must be a path, got an empty text"),
        (report, ["run", "--output", ""], "argument --output: must be a path, got an empty text"),
        (report, ["x" * 300], "File name too long"),
        (soak.main, ["--seed", "9" * 30], "argument --seed: must be a whole number from 0 to 2^32 - 1"),
        (project.main, ["--acceptance", "1", "--draft-ms", "1e308"], "must be a number from 0 to 1e9"),
        (project.main, ["--acceptance", "1", "--tokens", "0"], "must be a whole number >= 1, got 0"),
    ],
)
def test_arguments_that_mean_nothing(
    capsys: pytest.CaptureFixture[str], command: Callable[[Any], int], argv: list[str], message: str
) -> None:
    assert command(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and message in err


@pytest.mark.parametrize("text", ["²", "-1", "nan", "9" * 30, ""])
def test_seeds_of_training_fit_the_generators(text: str) -> None:
    with pytest.raises(UsageError, match="seed: must be a whole number from 0"):
        parse_training(["--head", "eagle3", "--out", "x", f"--seed={text}"])


@pytest.mark.parametrize("text", ["1e-320", "1e-7", "-1", "inf", "nan", "warm"])
def test_temperatures_that_leave_float32(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"^must be (0 or )?a number >= .*, got \S+$"):
        entry.temperature(text)


def test_a_soak_decodes_something(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--minutes", "1e-9"]) == 0
    assert '"prompts": 1,' in capsys.readouterr().out


def test_options_are_not_abbreviated() -> None:
    parser = entry.Parser()
    parser.add_argument("--output")
    parser.add_subparsers().add_parser("sub").add_argument("--longer")
    for line in (["--out", "here"], ["sub", "--long", "1"]):
        with pytest.raises(UsageError, match=r"unrecognized arguments|invalid choice"):
            parser.parse_args(line)
    assert parser.parse_args(["sub", "--longer", "1"]).longer == "1"
