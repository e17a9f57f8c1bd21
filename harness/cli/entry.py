"""How a command begins and ends: arguments that are refused with one line, and the exit code."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from methods.core import check_temperature
from methods.errors import RunFailure, UsageError


class HelpShown(SystemExit):
    """The help was asked for and printed: there is nothing else to do."""


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``UsageError`` for a wrong command line. Options are not
    abbreviated: what is short for one today could be short for two tomorrow."""

    def __init__(self, **given: Any) -> None:
        super().__init__(allow_abbrev=False, **given)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpShown(status)


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Adds "(default: ...)" where there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


def exit_code(command: Callable[[], int], interrupted: str = "interrupted") -> int:
    """What ``command`` returns, or what ended it: 2 after one line on stderr for input that cannot be
    used and for files that the system refuses, 130 after Ctrl-C.

    A reader of the output that is gone (``| head``) ends the command with 1 and no words. So does, with
    a line, code that calls ``sys.exit`` where nobody expects it: the command has not done its work.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit flushes once more
        return 1
    except UsageError as error:
        print("error:", *str(error).split(), file=sys.stderr)
        return 2
    except OSError as error:
        # Where a message can say more than the system does, it is raised at that place.
        file = f"{error.filename}: " if error.filename is not None else ""
        print(f"error: {file}{error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    except HelpShown:
        return 0
    except RunFailure:
        raise
    except SystemExit as error:
        print(f"error: ended by sys.exit({error.code!r}) before the work was done", file=sys.stderr)
        return 1


def add_json_flag(group: Any) -> None:
    """``--json``, for ``print_json``."""
    group.add_argument("--json", action="store_true", help="print the last line, JSON, on a terminal, too")


def print_json(result: Any, wanted: bool) -> None:
    """``result`` as a command's last line, for programs: not on a terminal, unless ``wanted``."""
    if wanted or not sys.stdout.isatty():
        print(json.dumps(result, allow_nan=False), flush=True)


def number(text: str, kind: Callable[[str], Any], ok: Callable[[Any], bool], allowed: str) -> Any:
    """``text`` as a finite number of ``kind`` that is ``ok``; else ``allowed`` goes into the message."""
    try:
        value = kind(text)
        good = abs(value) < 1 << 63 if isinstance(value, int) else math.isfinite(value)
    except ValueError:
        good = False
    if not good or not ok(value):
        raise argparse.ArgumentTypeError(f"must be {allowed}, got {text}")
    return value


def path(text: str) -> Path:
    if not text:  # an unset variable must not become the current directory
        raise argparse.ArgumentTypeError("must be a path, got an empty text")
    return Path(text)


def positive(text: str) -> int:
    return number(text, int, lambda value: value >= 1, "a whole number >= 1")


def natural(text: str) -> int:
    return number(text, int, lambda value: value >= 0, "a whole number >= 0")


def temperature(text: str) -> float:
    try:
        return check_temperature(not_negative(text))
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("temperature ")) from error


def seed(text: str) -> int:
    return number(text, int, lambda value: 0 <= value < 2**32, "a whole number from 0 to 2^32 - 1")


def not_negative(text: str) -> float:
    return number(text, float, lambda value: value >= 0, "a number >= 0")


def seconds(text: str) -> float:
    return number(text, float, lambda value: 0 < value <= 1e6, "a number > 0, 1e6 at most")


def milliseconds(text: str) -> float:
    return number(text, float, lambda value: 0 <= value <= 1e9, "a number from 0 to 1e9")


def share(text: str) -> float:
    return number(text, float, lambda value: 0 < value <= 1, "in (0, 1]")
