"""The hub: a recorded revision when it answers, a quick and quiet refusal when it does not."""

from __future__ import annotations

import socket
import time

import pytest

from harness.benchmarks import hub

DATASET = hub.HubDataset("openai/gsm8k", split="test", config="main")


class Answered(Exception):
    response = object()


@pytest.fixture(autouse=True)
def online(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "is_offline_mode", lambda: False)
    monkeypatch.setattr(hub, "_down", None)


@pytest.fixture
def load_nothing(monkeypatch):
    monkeypatch.setattr(hub, "_load", lambda *_: pytest.fail("rows were asked for"))


def test_rows_carry_the_revision_they_were_loaded_at(monkeypatch):
    asked = []
    monkeypatch.setattr(hub, "_ask_revision", lambda repo: "c0ffee")
    monkeypatch.setattr(hub, "_load", lambda *key: asked.append(key) or ['{"a": 1}', '{"a": 2}'])
    rows = hub.fetch_rows(DATASET)
    assert asked == [(DATASET, "c0ffee")]
    assert (rows.kind, rows.location, rows.revision) == ("hub", "openai/gsm8k/main/test", "c0ffee")
    assert [row.values["a"] for row in rows] == [1, 2]


@pytest.mark.usefixtures("load_nothing")
def test_a_silent_hub_costs_one_wait_per_process(monkeypatch):
    """A server that accepts the connection and never says a word."""
    from huggingface_hub import constants

    monkeypatch.setattr(hub, "CONNECT_TIMEOUT_S", 30.0)
    monkeypatch.setattr(hub, "ANSWER_TIMEOUT_S", 0.5)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        started = time.monotonic()
        with pytest.raises(hub.HubUnavailable, match=r"no answer within 0\.5 s"):
            hub.fetch_rows(DATASET)
        first = time.monotonic() - started
        started = time.monotonic()
        with pytest.raises(hub.HubUnavailable, match=r"no answer within 0\.5 s"):
            hub.fetch_rows(hub.HubDataset("openai/openai_humaneval", split="test"))
    assert 0.4 < first < 5
    assert time.monotonic() - started < 0.3


@pytest.mark.usefixtures("load_nothing")
def test_an_unreachable_hub_is_asked_once(monkeypatch):
    asked = []

    def refuse(repo):
        asked.append(repo)
        raise ConnectionError("name not known\nand more")

    monkeypatch.setattr(hub, "_ask_revision", refuse)
    for _ in range(3):
        with pytest.raises(hub.HubUnavailable, match=r"^name not known$"):
            hub.fetch_rows(DATASET)
    assert asked == ["openai/gsm8k"]


def test_a_missing_data_set_does_not_condemn_the_hub(monkeypatch):
    def missing(repo):
        if repo == "gone/away":
            raise Answered("404")
        return "c0ffee"

    monkeypatch.setattr(hub, "_ask_revision", missing)
    monkeypatch.setattr(hub, "_load", lambda *_: ['{"a": 1}'])
    with pytest.raises(hub.HubUnavailable, match="gone/away: 404"):
        hub.fetch_rows(hub.HubDataset("gone/away", split="test"))
    assert hub.fetch_rows(DATASET).revision == "c0ffee"


def test_a_failed_load_is_not_repeated(monkeypatch):
    loads = []

    def fail(*key):
        loads.append(key)
        raise OSError("blocked")

    monkeypatch.setattr(hub, "_ask_revision", lambda repo: "c0ffee")
    monkeypatch.setattr(hub, "_load", fail)
    for _ in range(2):
        with pytest.raises(hub.HubUnavailable, match="loading openai/gsm8k failed: blocked"):
            hub.fetch_rows(DATASET)
    assert len(loads) == 1


def test_offline_mode_asks_nobody_but_may_use_the_local_copy(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "is_offline_mode", lambda: True)
    monkeypatch.setattr(hub, "_ask_revision", lambda _: pytest.fail("the network was asked"))
    monkeypatch.setattr(hub, "_load", lambda *_: ['{"a": 1}'])
    assert hub.fetch_rows(DATASET).revision is None

    def absent(*_):
        raise ConnectionError("offline")

    monkeypatch.setattr(hub, "_load", absent)
    with pytest.raises(hub.HubUnavailable, match="offline mode, and no copy in the hub cache"):
        hub.fetch_rows(DATASET)
