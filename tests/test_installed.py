"""The package as installed: what a wheel holds, run outside the checkout, beside folders of its names."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import spd_bench
from paper_tables.__main__ import main as paper_tables

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the wheel, in a folder of their own."""
    folder = tmp_path_factory.mktemp("installed")
    info = tmp_path_factory.mktemp("info")
    build = ["egg_info", "--egg-base", str(info), "build_py", "--build-lib", str(folder)]
    program = "from setuptools import setup; setup()"
    subprocess.run([sys.executable, "-c", program, *build], cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Path) -> Path:
    """An empty working directory, with the installed files on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.delenv("SPD_BENCH_CHECKPOINTS", raising=False)
    return tmp_path


@pytest.fixture
def command(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script that pip makes of the entry point."""
    module, _, function = PYPROJECT["project"]["scripts"]["spd-bench"].partition(":")
    script = tmp_path_factory.mktemp("bin") / "spd-bench"
    script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    return str(script)


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False)


def refused(*argv: str) -> str:
    """The one line with which a command refuses to begin."""
    ended = run(*argv)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1, ended.stderr
    return ended.stderr


def package(folder: Path, *modules: str) -> None:
    """Code of someone else under a name of ours."""
    folder.mkdir()
    for module in ("__init__", *modules):
        (folder / f"{module}.py").write_text("print('of others')\n")


def test_every_file_of_the_packages_is_installed(installed: Path) -> None:
    listed = ["git", "ls-files", "-z", *spd_bench.PACKAGES, "spd_bench.py"]
    tracked = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = {str(file.relative_to(installed)) for file in installed.rglob("*") if file.is_file()}
    assert {name for name in tracked.split("\0") if name} - files == set()


@pytest.mark.slow
def test_a_drafter_that_is_not_installed(elsewhere: Path, command: str) -> None:
    line = refused(command, "run", "--method", "spd", "--prompts", "1")
    for remedy in ("repository's results/checkpoints", "SPD_BENCH_CHECKPOINTS=DIR", "--checkpoint PATH"):
        assert remedy in line
    assert list(elsewhere.iterdir()) == []


def test_records_that_are_not_installed(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paper_tables(["1", "--stored-only"]) == 2
    _, line = capsys.readouterr()
    assert line.count("\n") == 1
    assert "the committed records lie in the repository's results, which --results DIR names" in line


@pytest.mark.slow
def test_results_go_to_the_working_directory(elsewhere: Path, command: str, installed: Path) -> None:
    before = sorted(file for file in installed.rglob("*") if "__pycache__" not in file.parts)
    options = ["--method", "ngram", "--benchmark", "humaneval", "--prompts", "1", "--max-new-tokens", "4"]
    ended = run(command, "run", *options)
    assert ended.returncode == 0, ended.stderr
    assert list(elsewhere.glob("results/runs/*/records.jsonl"))
    assert sorted(file for file in installed.rglob("*") if "__pycache__" not in file.parts) == before


def test_a_package_of_others_below_ours(elsewhere: Path, command: str) -> None:
    package(elsewhere / "methods")
    for module in ("harness.soak", "paper_tables"):
        line = refused("-m", module, "--help")
        assert f"{elsewhere / 'methods'}{os.sep}__init__.py hides the package methods" in line
    ended = run("-c", "import harness")  # a library raises, and leaves the process to its user
    assert ended.returncode == 1 and "ImportError: " in ended.stderr
    assert run(command, "soak", "--help").stdout.startswith("usage: ")


def test_a_package_of_others_in_place_of_ours(elsewhere: Path, command: str) -> None:
    package(elsewhere / "harness", "soak")
    assert run("-m", "harness.soak", "--help").stdout == "of others\n" * 2  # none of our lines is run
    assert "hides the package harness" in refused("-m", "paper_tables", "--help")
    assert "hides the package harness" in refused("-m", "spd_bench", "soak", "--help")
    assert run(command, "soak", "--help").stdout.startswith("usage: ")


def test_folders_without_code_hide_nothing_of_a_wheel(elsewhere: Path) -> None:
    for name in spd_bench.PACKAGES:
        (elsewhere / name).mkdir()
    assert run("-m", "harness.soak", "--help").stdout.startswith("usage: ")


def test_folders_without_code_that_are_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editable install is found after the path."""
    (tmp_path / "methods").mkdir()
    monkeypatch.delitem(sys.modules, "methods")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    hidden = spd_bench.hidden_by_others(["methods"])
    assert hidden is not None and hidden.startswith(f"{tmp_path / 'methods'} hides the package methods")


def test_plugins_may_lie_in_the_working_directory(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere / "mine.py").touch()
    started = []

    def start(module: str, **_: object) -> None:
        started.append((module, sys.argv[1:], importlib.util.find_spec("mine") is not None))

    monkeypatch.setattr(spd_bench.runpy, "run_module", start)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["spd-bench", "run", "--plugin", "mine"])
    assert spd_bench.main() == 0
    assert started == [("harness.run", ["--plugin", "mine"], True)]


def test_the_commands_are_modules_and_no_others_exist(command: str) -> None:
    assert all(importlib.util.find_spec(module) for module in spd_bench.COMMANDS.values())
    listed = ", ".join(spd_bench.COMMANDS)
    assert f"no command 'walk'; allowed: {listed}\n" in refused(command, "walk")
    assert f"no command ''; allowed: {listed}\n" in refused(command)
    shown = run(command, "--help")
    assert shown.returncode == 0 and "run|table|check|compare|report|train|soak|bench|project" in shown.stdout
