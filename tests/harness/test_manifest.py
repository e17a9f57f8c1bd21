"""A directory belongs to one configuration, and says which code and machine filled it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harness.records import provenance
from harness.records.manifest import enter, fingerprint, first_difference, invocation, read_manifest
from methods.errors import UsageError
from methods.source_code.code import Code

CONFIG = {"method": "spd", "widths": {"1": {"options": {"n": 8}}}, "temperatures": (0.0, 1.0)}
START = {"argv": ["--n", "8"]}
CODE = {"spd": Code({"methods.spd.method": "a" * 64, "methods.decoding.sampling": "b" * 64})}
EDITED = {"spd": Code({"methods.spd.method": "a" * 64, "methods.decoding.sampling": "c" * 64})}


def test_fingerprint_depends_on_values_and_not_on_order() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": (1, 2), "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


def test_same_configuration_continues_and_keeps_the_first_start(tmp_path: Path) -> None:
    enter(tmp_path, CONFIG, START, CODE)
    enter(tmp_path, CONFIG, {"argv": ["again"]}, CODE)
    manifest = read_manifest(tmp_path)
    assert manifest["argv"] == ["--n", "8"]
    assert manifest["resumed"] == [{"argv": ["again"]}]
    assert manifest["fingerprint"] == fingerprint(CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_other_configuration_is_refused_by_field_and_values(tmp_path: Path) -> None:
    enter(tmp_path, CONFIG, START, CODE)
    before = (tmp_path / "manifest.json").read_bytes()
    other = CONFIG | {"widths": {"1": {"options": {"n": 4}}}}
    with pytest.raises(UsageError, match=r"widths\.1\.options\.n is 8 there and 4 here"):
        enter(tmp_path, other, START, CODE)
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_other_code_is_refused_by_both_hashes_and_the_files_that_differ(tmp_path: Path) -> None:
    enter(tmp_path, CONFIG, START, CODE)
    before = (tmp_path / "manifest.json").read_bytes()
    there, here = CODE["spd"].sha256[:8], EDITED["spd"].sha256[:8]
    with pytest.raises(UsageError) as refusal:
        enter(tmp_path, CONFIG, START, EDITED)
    assert str(refusal.value) == (
        f"{tmp_path} holds records of other code: spd is {there} there and {here} here "
        "(methods.decoding.sampling differs); --fresh keeps them aside and begins anew"
    )
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_records_that_do_not_say_their_code_are_not_taken_for_this_code(tmp_path: Path) -> None:
    """Runs of earlier versions."""
    manifest = enter(tmp_path, CONFIG, START | {"code": {"commit": "0123456789abcdef"}}, CODE)
    del manifest["method_code"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match=r"do not say of which code they are \(commit 01234567\); --fresh"):
        enter(tmp_path, CONFIG, START, CODE)


def test_first_difference_names_absent_fields() -> None:
    assert first_difference({"a": {"b": 1}}, {"a": {}}) == ("a.b", "1", "absent")
    assert first_difference({}, {"c": "x"}) == ("c", "absent", '"x"')
    assert first_difference({"a": [1]}, {"a": [1]}) is None


def test_records_of_unknown_origin_are_not_continued(tmp_path: Path) -> None:
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(UsageError, match=r"holds records but no manifest\.json"):
        enter(tmp_path, CONFIG, START, CODE)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not JSON"), ("[]", "is not a run's manifest"), ('{"config": {}}', "is not a run's manifest")],
)
def test_damaged_manifest_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(UsageError, match=message):
        read_manifest(tmp_path)


def test_edited_configuration_is_noticed(tmp_path: Path) -> None:
    manifest = enter(tmp_path, CONFIG, START, CODE)
    manifest["config"]["method"] = "eagle3"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="fingerprint does not belong"):
        read_manifest(tmp_path)


def test_invocation_tells_code_versions_and_machine() -> None:
    start = invocation(["--seed", "1"])
    assert start["argv"] == ["--seed", "1"]
    assert set(start["code"]) == {"commit", "dirty", "version"}
    assert start["versions"]["torch"] and start["versions"]["python"]
    assert {"cpu", "cores", "torch_threads", "gpus"} <= set(start["machine"])
    json.dumps(start, allow_nan=False)


def test_commit_and_dirty_flag_of_a_checkout(tmp_path: Path, monkeypatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    file = tmp_path / "harness" / "provenance.py"
    file.parent.mkdir()
    file.write_text("")
    monkeypatch.setattr(provenance, "_ROOT", tmp_path)
    monkeypatch.setattr(provenance, "__file__", str(file))
    git("init", "-q")
    assert provenance.package_commit()["commit"] is None, "an untracked copy inside another repository"
    git("add", ".")
    git("commit", "-qm", "first")
    assert provenance.package_commit() | {"version": None} == {
        "commit": git("rev-parse", "HEAD"),
        "dirty": False,
        "version": None,
    }
    (tmp_path / "notes.txt").write_text("")
    assert provenance.package_commit()["dirty"] is False
    (file.parent / "new.py").write_text("")
    assert provenance.package_commit()["dirty"] is True
