"""What a launcher such as torchrun tells a process, in the environment variables they all share."""

from __future__ import annotations

import os

from methods.errors import UsageError


def under_launcher() -> bool:
    """Whether a launcher has made this process one rank of a world.

    Raises ``UsageError`` for a launcher's variable that is no number."""
    numbers = [environment_number(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")]
    return None not in numbers and "MASTER_ADDR" in os.environ


def environment_number(name: str) -> int | None:
    """The number in a launcher's variable, None if it is not set; ``UsageError`` if it is no number."""
    text = os.environ.get(name)
    if text is not None and not text.isdecimal():
        raise UsageError(f"{name} is {text!r}; launchers such as torchrun set it to a number, else unset it")
    return None if text is None else int(text)


def environment_rank() -> tuple[int, int]:
    """(rank, local rank) of this process under a launcher."""
    return int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))


def world_size() -> int:
    """Processes of the launcher's world."""
    return int(os.environ["WORLD_SIZE"])


def master_address() -> tuple[str, int]:
    """Host and port where the launcher's processes meet."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def master_port() -> int:
    """The port asked for by who starts without a launcher, 0 for any free one.

    Raises ``UsageError`` if it is no number."""
    port = os.environ.get("MASTER_PORT", "0")
    if not port.isdecimal():
        raise UsageError(f"MASTER_PORT is {port!r}; allowed: a port number, or unset for any free one")
    return int(port)


def launcher_holds_store() -> bool:
    """Whether the launcher itself opened the store at ``master_address``, instead of leaving it to rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
