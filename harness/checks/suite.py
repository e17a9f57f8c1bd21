"""The checks as test cases for any test runner."""

from __future__ import annotations

import unittest
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.checks import sizes
from harness.checks.catalogue import Check, chosen, run_check
from harness.checks.output import line
from harness.checks.sizes import Sizes
from harness.checks.subject import Subject
from methods import registry


@dataclass(frozen=True)
class Case:
    """One check of one method. Calling it raises ``AssertionError`` with the fault, or
    ``unittest.SkipTest`` with the reason where the check does not apply."""

    check: Check
    subject: Subject
    size: Sizes

    def __str__(self) -> str:
        return f"{self.check.id} {self.check.title}, {self.subject.label}"

    def __call__(self) -> None:
        outcome = run_check(self.check, self.subject, self.size)
        if outcome.status == "not applicable":
            raise unittest.SkipTest(f"{outcome.check}: {outcome.reason}")
        if outcome.status == "failed":
            raise AssertionError(line(outcome).strip())


def checks_for(
    method: str,
    *,
    plugin: str | None = None,
    size: str = "quick",
    only: Iterable[str] | None = None,
    **options: Any,
) -> list[Case]:
    """The checks of the registered ``method`` with ``options``; ``plugin`` is a module that registers it.

    ``size`` and ``only`` are those of ``harness.check``. Raises ``UsageError`` for unknown names.
    """
    if plugin is not None:
        registry.load_plugin(plugin)
    subject = Subject.of(method, options)
    checks = [check for check in chosen(only) if check.of_method is not None]
    return [Case(check, subject, sizes.named(size)) for check in checks]
