"""``python -m harness.run``: decode benchmark prompts, store records, print a table, and one JSON line where
stdout is no terminal.

Exit codes: 0 done, and the table says what was measured; 1 a prompt failed, a rank was lost, an output
differs from AR's or a method ended the process; 2 the input cannot be used; 130 interrupted, 143 ended by
SIGTERM (the same command continues).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.analysis.comparable import time_of
from harness.analysis.summary import brief, summary, table
from harness.cli.arguments import RunRequest, parse
from harness.cli.entry import exit_code, print_json
from harness.cli.guard import guarded
from harness.cli.options import typed
from harness.cli.time_limit import finished, started_again
from harness.execution.judge_answers import write_judge_answers
from harness.execution.plan import Plan, beside, make_plan
from harness.execution.sharding import ALONE, join
from harness.records.manifest import write_json
from harness.records.status import mismatches
from methods import registry
from methods.environment import environment_rank, under_launcher

if TYPE_CHECKING:
    from harness.execution.runner import Outcome

SUMMARY = "summary.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    without = " without --fresh" if "--fresh" in arguments else ""
    return exit_code(lambda: execute(arguments), f"interrupted; the same command{without} continues this run")


def execute(argv: Sequence[str]) -> int:
    """As ``main``, with exceptions passed through."""
    request = parse(argv)
    if started_again():
        request = replace(request, fresh=False)
    process_per_stage = "RANK" in os.environ and (request.emulate is not None or _has_ranks(request))
    if process_per_stage:
        from methods.pipeline.distributed.ranks import serve_as_rank

        if under_launcher() and environment_rank()[0] != 0:
            finished()
            serve_as_rank()  # a launcher started this process as one of the pipeline's ranks
    shard = ALONE if process_per_stage else join()
    with shard.first():
        plan = make_plan(request, shard)
    plan, outcome = _emulated(plan, argv) if request.emulate is not None else (plan, _recorded(plan, argv))
    if shard.rank:
        return 0  # what became of all prompts is for the first process to tell
    time = time_of(plan.config)
    result = summary(
        request.method, request.preset, str(plan.directory), time, outcome.records, outcome.baseline
    )
    write_json(plan.directory / SUMMARY, result)
    write_judge_answers(plan.directory, outcome.records)
    print(table(result["results"]))
    for line in mismatches(outcome.records, outcome.baseline):
        print(line)
    if not time.startswith("measured"):
        print(f"times: {time}")
    print(f"records: {plan.directory}")
    print_json(brief(result), request.json)
    return 0 if outcome.clean else 1


def _has_ranks(request: RunRequest) -> bool:
    for module in request.plugins:
        registry.load_plugin(module)
    method = registry.get(request.method)
    return method.has_ranks(method.Options(**typed(request.method, request.options)))


def _recorded(plan: Plan, argv: Sequence[str]) -> Outcome:
    from harness.execution import replay, runner  # torch comes with them

    return replay.run([plan], argv)[0] if plan.request.mode == "replay" else runner.run(plan, argv)


def _emulated(plan: Plan, argv: Sequence[str]) -> tuple[Plan, Outcome]:
    """The run itself and then its traces on the profile's devices. ``--results`` names the latter's
    directory; the run's own is beside it."""
    from harness.devices.device_runs import device_run
    from harness.devices.device_runs import run as run_on_devices

    request = plan.request
    assert request.emulate is not None
    source = beside(plan, replace(request, results=None, timings=False))
    job = device_run(source, "emulate", request.emulate, request.timings)
    if request.results is not None:
        job = replace(job, plan=replace(job.plan, directory=request.results))
    outcome = _recorded(source, argv)
    return job.plan, run_on_devices(job, outcome.records, argv)


if __name__ == "__main__":
    sys.exit(guarded(main, resumes=True))
