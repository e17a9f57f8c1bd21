"""The one place where the tables touch the harness: run what a table lacks, read what was recorded."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness import benchmarks
from harness.analysis.comparable import machine, machines
from harness.analysis.summary import TITLES
from harness.analysis.summary import rows as summary_rows
from harness.cli.arguments import BENCHMARKS, parse
from harness.config.profiles import load_profile, profile_facts
from harness.execution import replay, runner
from harness.execution.plan import AR, Plan, make_plan
from harness.execution.runner import Outcome
from harness.execution.sharding import ALONE, Shard
from harness.records.manifest import canonical, read_manifest
from harness.records.record import Mode, Record
from methods import registry
from methods.errors import UsageError
from paper_tables import stored
from paper_tables.current import drafter, other_code, says_no_code, training_of
from paper_tables.measured import ON_DEVICES, Measured, Origin, from_summary, with_devices
from paper_tables.plan import Row, Size, Spec
from paper_tables.stored import Stored


@dataclass(frozen=True)
class Sheet:
    """A table's size, target and place: ``folder`` holds the committed records, ``runs`` the full ones.
    Processes of a launcher share the prompts of its runs as ``shard``; the first keeps the records."""

    spec: Spec
    size_name: str
    size: Size
    preset: str
    folder: Path
    runs: Path
    plugins: tuple[str, ...] = ()
    shard: Shard = ALONE

    def arguments(self, row: Row, temperature: float) -> list[str]:
        """The command line of ``python -m harness.run`` for one row, without its mode."""
        argv = [*row.flags(), "--preset", self.preset, "--temperature", f"{temperature:g}"]
        argv += ["--prompts", str(self.size.prompts[temperature])]
        argv += ["--max-new-tokens", str(self.size.max_new_tokens)]
        for name in BENCHMARKS:
            argv += ["--benchmark", name]
        return argv

    def on_devices(self, row: Row, temperature: float, mode: Mode) -> Path:
        """Where the records of a cell on the devices of the table's profile are."""
        return stored.file_of(self.folder, row, self.size_name, temperature, mode, self.spec.profile)

    def find(self, row: Row, temperature: float) -> Stored | None:
        """What is stored for a cell: records of the table's mode, or of the other where that is not
        "decode"; for a row that could not be run its reason."""
        found = None
        for mode in _modes(self.spec.mode):
            path = stored.file_of(self.folder, row, self.size_name, temperature, mode)
            if path.exists():
                found = stored.read(path)
                if found.reason is None:
                    return found
        return found


def _modes(mode: Mode) -> tuple[Mode, ...]:
    # Decoded records say all that replayed ones do; the reverse is not true of times.
    return ("replay", "decode") if mode == "replay" else ("decode",)


def measured(sheet: Sheet, rows: Sequence[Row]) -> tuple[list[Measured], dict[Row, str]]:
    """The cells of stored records, and for each row without any the reason: nothing is run."""
    cells: list[Measured] = []
    reasons: dict[Row, str] = {}
    for row in rows:
        for temperature in sheet.size.temperatures:
            found = sheet.find(row, temperature)
            if found is None:
                continue
            if found.reason is not None:
                reasons[row] = f"{row.label}: {found.reason}"  # tables with other labels share the file
                continue
            lines = summary_rows(found.records, found.baseline)
            width = found.records[0].width if found.records else 1
            own = from_summary(row, lines, width=width, origin=_origin(found))
            cells += _with_devices(sheet, row, temperature, found.header, own)
    return cells, reasons


def _with_devices(
    sheet: Sheet, row: Row, temperature: float, header: Mapping[str, Any], cells: list[Measured]
) -> list[Measured]:
    """``cells`` with the figures on the profile's devices, where they are of this very measurement."""
    if sheet.spec.profile is None:
        return cells
    asked = {
        "argv": header["argv"],
        "drafter": header.get("drafter"),
        "profile": profile_facts(sheet.spec.profile, load_profile(sheet.spec.profile)),
        "method_code": header.get("method_code"),
    }
    for mode in ON_DEVICES:
        found = found_on_devices(sheet, row, temperature, mode, asked)
        if found is not None and not any(record.error for record in found.records):
            lines = summary_rows(found.records, found.baseline)
            cells = [with_devices(cell, mode, lines) for cell in cells]
    return cells


def found_on_devices(
    sheet: Sheet, row: Row, temperature: float, mode: Mode, asked: Mapping[str, Any]
) -> Stored | None:
    """What is stored of a cell on the profile's devices, if it was made of what is ``asked``."""
    path = sheet.on_devices(row, temperature, mode)
    if not path.exists():
        return None
    found = stored.read(path)
    made = {name: found.header.get(name) for name in asked}
    if "device_code" not in found.header:  # by an earlier version
        made |= {name: value for name, value in asked.items() if name == "device_code"}
    return found if canonical(made) == canonical(asked) else None


def _origin(found: Stored) -> Origin:
    """What stored records say of how they were measured."""
    header = found.header
    lacking = [name for name in ("argv", "machine", "target", "torch") if name not in header]
    if lacking:
        raise UsageError(f"stored records of {header.get('label')!r} do not say their {', '.join(lacking)}")
    request = parse(header["argv"])
    processes = header.get("processes", 1)
    places = header.get("machines") or [machine(header["machine"], header["torch"])]
    shared = [f"{processes} processes at a time"] if processes > 1 else []
    return Origin(
        target=header["target"]["target"],
        dtype=header["target"]["dtype"],
        machine=", ".join([" and ".join(places), *shared]),
        max_new_tokens=request.max_new_tokens,
        top_k=request.top_k,
        top_p=request.top_p,
        training=_in_words(header.get("training")),
        subset=_not_the_papers(found.records),
    )


def _not_the_papers(records: Sequence[Record]) -> str | None:
    """Which benchmarks' prompts are not the paper's, because a source without some of them was used."""
    parts = []
    for name in dict.fromkeys(record.benchmark for record in records):
        used = {r.prompt_id for r in records if r.benchmark == name and r.error is None}
        papers = used & set(benchmarks.get(name).paper_ids() or used)
        if papers != used:
            parts.append(f"{TITLES[name]}: {len(papers)} of {len(used)} of them in the paper's subset")
    return "; ".join(parts) or None


def _in_words(training: Mapping[str, Any] | None) -> str | None:
    if training is None:
        return None
    return f"{training['tokens']:,} supervised tokens of data {training['data'][:12]}"


def fill(sheet: Sheet, rows: Sequence[Row]) -> None:
    """Run what is not stored yet and store it. Rows that can be replayed are, all together.

    A row that is refused (unknown method, no checkpoint for this target, more stages than layers)
    is stored with its reason and tried again the next time; AR refusing is an error of the whole
    table and raises ``UsageError``.
    """
    for temperature in sheet.size.temperatures:
        todo = sheet.shard.agreed(partial(_missing, sheet, rows, temperature))
        if any(todo):
            _fill(sheet, [row for row, missing in zip(rows, todo, strict=True) if missing], temperature)


def _missing(sheet: Sheet, rows: Sequence[Row], temperature: float) -> list[bool]:
    found = [sheet.find(row, temperature) for row in rows]
    unknown = [row.label for row, each in zip(rows, found, strict=True) if each and says_no_code(each, row)]
    if unknown:
        print(
            f"T = {temperature:g}: these stored records do not say of which code they are, and are kept "
            f"(delete them in {sheet.folder / stored.FOLDER / sheet.size_name} to measure again): "
            f"{', '.join(unknown)}",
            file=sys.stderr,
        )
    pairs = zip(rows, found, strict=True)
    return [not _done(sheet, row, temperature, each) for row, each in pairs]


def _done(sheet: Sheet, row: Row, temperature: float, found: Stored | None) -> bool:
    if found is None or found.reason is not None:
        return False
    same_drafter = found.header.get("drafter") == drafter(sheet.preset, row)
    if not (same_drafter and found.header.get("argv") == sheet.arguments(row, temperature)):
        return False
    if (other := other_code(found, row)) is not None:
        print(f"T = {temperature:g}: {row.label} is measured again: {other}", file=sys.stderr)
    return other is None


def tell_other_code(sheet: Sheet, rows: Sequence[Row]) -> None:
    """Say which stored records are of other code than what would run now."""
    for temperature in sheet.size.temperatures:
        for row in rows:
            found = sheet.find(row, temperature)
            if found is not None and found.reason is None and (other := other_code(found, row)) is not None:
                print(f"T = {temperature:g}: {row.label}: {other}", file=sys.stderr)


def _fill(sheet: Sheet, rows: Sequence[Row], temperature: float) -> None:
    replayed: dict[Row, Plan] = {}
    decoded: dict[Row, Plan] = {}
    for row in rows:
        try:
            with sheet.shard.first():
                mode, plan = planned(sheet, row, temperature)
        except UsageError as error:
            if row.method == AR:
                raise
            _refuse(sheet, row, temperature, str(error))
            continue
        (replayed if mode == "replay" else decoded)[row] = plan
    if replayed:
        print(f"T = {temperature:g}: replaying {', '.join(r.label for r in replayed)}", file=sys.stderr)
        plans = {plan.directory: plan for plan in replayed.values()}  # two rows can be one run
        outcomes = dict(zip(plans, replay.run(list(plans.values()), sys.argv), strict=True))
        for row, plan in replayed.items():
            _store(sheet, row, temperature, "replay", plan, outcomes[plan.directory])
    for number, (row, plan) in enumerate(decoded.items(), start=1):
        print(f"[{number}/{len(decoded)}] T = {temperature:g}: decoding {row.label}", file=sys.stderr)
        outcome = runner.run(plan, sys.argv)
        _store(sheet, row, temperature, "decode", plan, outcome)


def planned(sheet: Sheet, row: Row, temperature: float) -> tuple[Mode, Plan]:
    """The run of a cell, in the mode it can be run in."""
    argv = sheet.arguments(row, temperature)
    for module in sheet.plugins:
        registry.load_plugin(module)
    mode: Mode = "decode"
    if sheet.spec.mode == "replay":
        plan = make_plan(parse([*argv, "--mode", "replay"]), sheet.shard)
        (method,) = plan.methods.values()
        if method.can_replay(plan.sampling(temperature, 0)):
            mode = "replay"
    if mode == "decode":
        plan = make_plan(parse(argv), sheet.shard)
    directory = sheet.runs / plan.directory.name
    return mode, dataclasses.replace(plan, directory=directory, replaces="other code")


def _store(sheet: Sheet, row: Row, temperature: float, mode: Mode, plan: Plan, outcome: Outcome) -> None:
    if sheet.shard.rank == 0:
        path = stored.file_of(sheet.folder, row, sheet.size_name, temperature, mode)
        stored.write(path, header(sheet, row, temperature, plan), outcome.records, outcome.baseline)


def _refuse(sheet: Sheet, row: Row, temperature: float, reason: str) -> None:
    found = sheet.find(row, temperature)
    if found is not None and found.reason is None:
        older = "" if other_code(found, row) is None else ", of other code,"
        print(f"{row.label}: {reason}; its stored records{older} are kept", file=sys.stderr)
    elif sheet.shard.rank == 0:
        path = stored.file_of(sheet.folder, row, sheet.size_name, temperature, sheet.spec.mode)
        stored.write(path, {"method": row.method, "reason": " ".join(reason.split())})


def header(sheet: Sheet, row: Row, temperature: float, plan: Plan) -> Mapping[str, Any]:
    """How the records came about: the command, the configuration's fingerprint, code and machine."""
    manifest, used = read_manifest(plan.directory), drafter(sheet.preset, row)
    return {
        "label": row.label,
        "argv": sheet.arguments(row, temperature),
        "drafter": used,
        "training": training_of(used),
        **({"plugins": list(sheet.plugins)} if sheet.plugins else {}),
        "fingerprint": manifest["fingerprint"],
        "target": manifest["config"]["target"],
        "scorers": {name: about["scorer"] for name, about in manifest["config"]["benchmarks"].items()},
        "facts": [entry["facts"] for entry in manifest["config"]["widths"].values()],
        "processes": manifest["processes"],
        "code": manifest["code"],
        "method_code": {
            name: code["sha256"] for name, code in manifest["method_code"].items() if name in (row.method, AR)
        },
        "machine": {name: manifest["machine"][name] for name in ("cpu", "cores", "gpus", "torch_threads")},
        "machines": machines(manifest),
        "torch": manifest["versions"]["torch"],
        "started_at": manifest["started_at"],
    }
