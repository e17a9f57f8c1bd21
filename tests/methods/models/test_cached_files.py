"""What lies in the user's cache may be damaged: it is named, or done again, and never trusted blindly."""

import json
from pathlib import Path

import pytest

from methods.errors import UsageError
from methods.models import embedded
from methods.models.files import hashes, weights_sha256
from methods.models.hashing import files_sha256


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "spd-bench"


@pytest.fixture
def converted(cache: Path) -> Path:
    """A converted target, as far as hashes go."""
    directory = embedded.embedded_directory()
    directory.mkdir(parents=True)
    weights = directory / "model.safetensors"
    weights.write_bytes(b"weights")
    stored = {"sha256": "a", "tokenizer_sha256": "b", "files_sha256": files_sha256([weights])}
    (directory / "hashes.json").write_text(json.dumps(stored))
    return directory


def test_an_unchanged_conversion_is_used(converted: Path) -> None:
    assert embedded.smollm2_directory() == converted
    assert hashes(converted, None) == {"sha256": "a", "tokenizer_sha256": "b"}


@pytest.mark.parametrize("content", [b"weightS", b"wei", b""])
def test_changed_weights_are_refused_before_a_figure_is_recorded_under_their_hash(
    converted: Path, content: bytes
) -> None:
    (converted / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=f"model.safetensors is damaged; delete {converted}"):
        embedded.smollm2_directory()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"sha256": "a"}'])
def test_damaged_hashes_are_named(converted: Path, content: bytes) -> None:
    (converted / "hashes.json").write_bytes(content)
    with pytest.raises(UsageError, match=f"hashes.json is damaged; delete {converted}"):
        embedded.smollm2_directory()


@pytest.mark.parametrize("content", [b"", b"{torn", b"\xff", b"[]"])
def test_a_damaged_memory_of_hashes_costs_time_only(cache: Path, tmp_path: Path, content: bytes) -> None:
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"weights")
    cache.mkdir()
    (cache / "weight-hashes.json").write_bytes(content)
    assert weights_sha256(weights.parent) == files_sha256([weights])
    assert list(json.loads((cache / "weight-hashes.json").read_bytes()).values()) == [files_sha256([weights])]


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert weights_sha256(tmp_path) == files_sha256([tmp_path / "model.safetensors"])


def test_a_foreign_model_is_hashed_whatever_it_says_of_itself(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "hashes.json").write_text('{"sha256": "claimed"}')
    assert weights_sha256(tmp_path) == files_sha256([tmp_path / "model.safetensors"])
