"""The promises of the project files: README, Makefile, constraints, CI."""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from methods import registry

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

RULES = {
    name: prerequisites.split("##")[0].split()
    for name, prerequisites in re.findall(r"^([a-z%0-9]+):(?!=)(.*)$", MAKEFILE, re.MULTILINE)
}


def code_blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def known_target(name):
    return name in RULES or any("%" in rule and name.startswith(rule.rstrip("%")) for rule in RULES)


def test_readme_make_commands_exist():
    commands = re.findall(r"\bmake ([a-z][a-z0-9]*)", "\n".join([*code_blocks("bash"), README]))
    assert {"table1", "test", "setup", "help"} <= set(commands)
    assert [name for name in commands if not known_target(name)] == []


@pytest.mark.parametrize("text", [README, MAKEFILE], ids=["README", "Makefile"])
def test_modules_that_are_started_exist(text):
    modules = set(re.findall(r"-m ((?:harness|paper_tables)[\w.]*)", text))
    assert modules
    assert [name for name in sorted(modules) if importlib.util.find_spec(name) is None] == []


def test_makefile_is_thin_and_tells_what_it_does():
    assert len(RULES) <= 14
    helped = subprocess.run(
        ["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert all(f"make {name} " in helped for name in RULES)


def test_every_target_that_runs_code_sets_up_first():
    free = {"help", "clean"}
    needs = {name: set(prerequisites) for name, prerequisites in RULES.items() if name not in free}
    for name, prerequisites in needs.items():
        indirect = any(known_target(other) for other in prerequisites)
        assert "$(READY)" in prerequisites or indirect, name


def test_constraints_are_exact_and_pin_every_dependency():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin)] == []
    pinned = {canonicalize_name(pin.split("==")[0]) for pin in pins}
    assert len(pinned) == len(pins)
    needed = [
        Requirement(line) for line in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])
    ]
    names = {canonicalize_name(r.name) for r in needed if r.marker is None or r.marker.evaluate()}
    assert names - pinned == set()
    assert "torch==2.13.0" in pins


def test_ci_calls_the_readme_test_command():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert script[0] == "#!/usr/bin/env bash" and "set -euo pipefail" in script
    assert "make test" in script
    assert any("make test" in block.splitlines() for block in code_blocks("bash"))


def test_readme_example_is_the_file_that_is_tested():
    example = ROOT / "examples" / "plain_method"
    assert (example / "plain_method.py").read_text(encoding="utf-8") in code_blocks("python")
    (entry_point,) = code_blocks("toml")
    assert entry_point in (example / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", code_blocks("python"))
def test_readme_code_runs(code, monkeypatch):
    monkeypatch.setattr(registry, "_methods", {name: registry.get(name) for name in registry.names()})
    monkeypatch.syspath_prepend(ROOT / "examples" / "plain_method")
    monkeypatch.delitem(sys.modules, "plain_method", raising=False)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


WORDS = [
    "target",
    "draft",
    "drafter",
    "acceptance",
    "verification",
    "rollback",
    "stage",
    "cycle",
    "round",
    "flush",
    "fill",
    "prefill",
    "W",
    "S0",
    "S",
    "L_acc",
    "n",
    "m",
    "Ls",
    "T",
]
PHRASES = ["draft module", "KV cache", "draft tree", "point-mass proposal", "sampled proposal"]


@pytest.mark.parametrize("word", WORDS + PHRASES)
def test_glossary_explains(word):
    glossary = README.split("## Glossary")[1]
    heads = [line.split("|")[1] for line in glossary.splitlines() if line.startswith("| ")]
    assert any(re.search(rf"\b{word}\b", head) for head in heads)


def tracked_files():
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def test_no_file_names_a_path_of_a_machine():
    pattern = re.compile(r"(?<![\w.<>*{}$])/(?:work|home|root|Users|mnt|farm|scratch)/\w")
    named = []
    for path in tracked_files():
        if path == Path(__file__).resolve():
            continue
        text = path.read_bytes().decode("utf-8", errors="ignore")
        named += [f"{path.relative_to(ROOT)}: {match.group()}" for match in pattern.finditer(text)]
    assert named == []
