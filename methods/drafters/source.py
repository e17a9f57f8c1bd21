"""Where a checkpoint comes from: a local path, this repository, or the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from methods.errors import UsageError

SHIPPED = "shipped:"
"""Before the name of a checkpoint that comes with this repository."""
HUB = "hf:"
"""Before the name of a repository on the Hugging Face hub."""
PLACE = "SPD_BENCH_CHECKPOINTS"
"""The environment variable that says where those are, for an installed package: it has none."""
_SHIPPED_ROOT = Path(__file__).parents[2] / "results" / "checkpoints"
_HUB = re.compile(r"hf:(?P<repo>[^/@\s]+/[^/@\s]+)(@(?P<revision>[^/\s]+))?(/(?P<file>\S+))?")
_WHOLE_REPO = ["*.json", "*.safetensors", "pytorch_model.bin"]


def shipped(pattern: str) -> list[str]:
    """All shipped checkpoints that the glob ``pattern`` (``shipped:...``) matches, sorted. Raises
    ``UsageError`` if this is no checkout and nothing says where they are."""
    root = _shipped_root()
    found = root.glob(pattern.removeprefix(SHIPPED))
    return sorted(f"{SHIPPED}{path.relative_to(root).as_posix()}" for path in found)


def resolve(source: str | Path) -> Path:
    """The local file or directory of ``source``.

    ``shipped:TARGET/NAME`` comes with the repository; ``hf:owner/name[@revision]`` fetches a
    repository's checkpoint files, ``hf:owner/name[@revision]/file`` one file. Raises ``UsageError``
    if there is nothing at the path or on the hub.
    """
    text = str(source)
    if not text.startswith(HUB):
        ours = text.startswith(SHIPPED)
        path = _shipped_root() / text.removeprefix(SHIPPED) if ours else Path(text).expanduser()
        if not path.exists():
            raise UsageError(f"no checkpoint at {text}; give a path or hf:owner/name[@revision][/file]")
        return path
    match = _HUB.fullmatch(text)
    if match is None:
        raise UsageError(f"cannot read {text!r}; allowed: hf:owner/name[@revision][/file]")
    return _fetch(text, match["repo"], match["revision"], match["file"])


def _shipped_root() -> Path:
    named = os.environ.get(PLACE)
    root = Path(named).expanduser() if named else _SHIPPED_ROOT
    if root.is_dir():
        return root
    wrong = f"{PLACE} names {named}, which is no folder" if named else "no trained drafters are installed"
    raise UsageError(
        f"{wrong}: those that are shipped lie in the repository's results/checkpoints; set {PLACE}=DIR to "
        "that folder, give --checkpoint PATH, or take --untrained for random ones"
    )


def _fetch(text: str, repo: str, revision: str | None, file: str | None) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    try:
        if file:
            return Path(hf_hub_download(repo, file, revision=revision))
        return Path(snapshot_download(repo, revision=revision, allow_patterns=_WHOLE_REPO))
    except Exception as error:  # the hub client raises many kinds; each means "not fetched"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"cannot fetch {text}: {reason}") from error
