"""Rows of a data set on the Hugging Face hub, at a recorded revision, or a quick "not there"."""

from __future__ import annotations

import json
from dataclasses import dataclass
from threading import Thread

from harness.benchmarks.rows import Rows, parse_jsonl

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 4.0
"""The longest a hub that does not answer may hold up a process, name resolution included."""


@dataclass(frozen=True, slots=True)
class HubDataset:
    """One split of one data set: its hub id, its configuration (None for the only one), its split."""

    repo: str
    split: str
    config: str | None = None


class HubUnavailable(Exception):
    """The hub gave no rows; the text says why, in a few words."""


_down: str | None = None
"""Why the hub is not asked again in this process."""


def fetch_rows(dataset: HubDataset) -> Rows:
    """All rows of the split. In offline mode only a copy in the local hub cache can serve.

    Raises ``HubUnavailable``; a hub found dead is not tried a second time.
    """
    global _down
    if _down is not None:
        raise HubUnavailable(_down)
    from huggingface_hub import constants

    offline = constants.is_offline_mode()
    revision = current_revision(dataset.repo)
    try:
        lines = _load(dataset, revision)
    except Exception as error:  # the libraries below raise anything from OSError to TypeError here
        if offline:
            raise HubUnavailable("offline mode, and no copy in the hub cache") from error
        _down = f"loading {dataset.repo} failed: {_brief(error)}"
        raise HubUnavailable(_down) from error
    location = "/".join(filter(None, (dataset.repo, dataset.config, dataset.split)))
    data = "\n".join(lines).encode()
    return parse_jsonl(data, "hub", location, file=location, revision=revision)


def current_revision(repo: str) -> str | None:
    """The commit the hub now serves; None in offline mode. Raises ``HubUnavailable`` after seconds,
    where the libraries that load data sets try again for half a minute.

    It is asked in a thread: a resolver or proxy may ignore any timeout.
    """
    global _down
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return None
    answers: list[str] = []
    errors: list[Exception] = []

    def ask() -> None:
        try:
            answers.append(_ask_revision(repo))
        except Exception as error:
            errors.append(error)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_TIMEOUT_S)
    if answers:
        return answers[0]
    if errors and getattr(errors[0], "response", None) is not None:
        # The hub answered, only not for this data set.
        raise HubUnavailable(f"{repo}: {_brief(errors[0])}")
    _down = _brief(errors[0]) if errors else f"no answer within {ANSWER_TIMEOUT_S:g} s"
    raise HubUnavailable(_down)


def _ask_revision(repo: str) -> str:
    from huggingface_hub import HfApi

    sha = HfApi().dataset_info(repo, timeout=CONNECT_TIMEOUT_S).sha
    if sha is None:
        raise LookupError("the hub names no revision")
    return sha


def _load(dataset: HubDataset, revision: str | None) -> list[str]:
    from datasets import load_dataset

    rows = load_dataset(dataset.repo, dataset.config, split=dataset.split, revision=revision)
    return [json.dumps(row, sort_keys=True) for row in rows]


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:120]
