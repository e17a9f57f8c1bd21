"""The TOML files that come with this package, by folder and name."""

from __future__ import annotations

from importlib import resources

SUFFIX = ".toml"


def names(package: str) -> list[str]:
    """Of all files in ``package``, sorted."""
    files = (entry.name for entry in resources.files(package).iterdir())
    return sorted(name.removesuffix(SUFFIX) for name in files if name.endswith(SUFFIX))


def content(package: str, name: str) -> bytes:
    """What the file ``name``, which is one of ``names``, holds."""
    return resources.files(package).joinpath(name + SUFFIX).read_bytes()
