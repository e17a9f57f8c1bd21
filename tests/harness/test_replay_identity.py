"""The code of what stands on other records: replays on plain decoding's, devices on recorded traces."""

from __future__ import annotations

from pathlib import Path

import pytest
import replay_world

from harness.devices import device_runs
from harness.records import identity
from harness.records.manifest import read_manifest
from harness.run import main
from methods import registry
from methods.source_code.code import Code

REPLAY = ["--mode", "replay", "--prompts", "1", "--max-new-tokens", "8", "--benchmark", "gsm8k"]


@pytest.fixture
def codes(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is said of built-in methods' code; empty for the truth."""
    told: dict[str, str] = {}
    asked = registry.code
    monkeypatch.setattr(
        registry, "code", lambda name, *more: Code({name: told[name]}) if name in told else asked(name, *more)
    )
    return told


def replayed(tmp_path: Path, method: str, *flags: str) -> int:
    return main([*REPLAY, "--method", method, *flags, "--results", str(tmp_path / method)])


def test_replays_are_of_the_code_of_plain_decoding_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    replay_world.install(monkeypatch)
    assert replayed(tmp_path, "ngram") == 0
    (ar,) = tmp_path.glob("*autoregressive*")
    outputs, started = (ar / "records.jsonl").read_bytes(), read_manifest(ar)["started_at"]
    assert set(read_manifest(tmp_path / "ngram")["method_code"]) == {"ngram", "autoregressive"}
    codes["ngram"] = "other"
    assert replayed(tmp_path, "ngram") == 2
    assert f"error: {tmp_path / 'ngram'} holds records of other code: ngram is" in capsys.readouterr().err
    assert replayed(tmp_path, "ngram", "--fresh") == 0
    assert (ar / "records.jsonl").read_bytes() == outputs and not (ar / "earlier").exists()
    codes["autoregressive"] = "other"
    assert replayed(tmp_path, "ngram") == 2
    assert f"error: {ar} holds records of other code: autoregressive is" in capsys.readouterr().err
    assert replayed(tmp_path, "ngram", "--fresh") == 0
    (kept,) = (ar / "earlier").iterdir()
    assert read_manifest(kept)["started_at"] == started and (ar / "records.jsonl").read_bytes() == outputs
    assert replayed(tmp_path, "ngram") == 0
    assert "nothing decoded" in capsys.readouterr().err


def test_batched_decoding_is_code_of_replays_alone() -> None:
    name = "autoregressive"
    replay, decode = (set(identity.codes([name], mode)[name].files) for mode in ("replay", "decode"))
    assert "methods.decoding.batched" in replay and "methods.decoding.batched" not in decode


def test_traces_on_devices_are_of_the_code_that_times_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replay_world.install(monkeypatch)
    monkeypatch.setattr(device_runs, "_emulated", lambda job, stack: lambda record: (1.0, {}))
    line = ["--method", "spd", "--n", "4", "--draft-layers", "4", "--untrained", "--emulate", "qwen3.5-4b"]
    line += ["--prompts", "1", "--max-new-tokens", "6", "--benchmark", "gsm8k"]
    line += ["--results", str(tmp_path / "devices")]
    assert main(line) == 0
    assert set(read_manifest(tmp_path / "devices")["method_code"]) == {"spd", "autoregressive", "emulate"}
    assert main(line) == 0
    assert capsys.readouterr().err.count("nothing decoded") == 2
    monkeypatch.setattr(device_runs, "device_code", lambda mode: Code({"harness.devices.emulation": "other"}))
    assert main(line) == 2
    assert "holds records of other code: emulate is" in capsys.readouterr().err
    assert main([*line, "--fresh"]) == 0


def test_what_times_traces_is_in_their_code() -> None:
    emulate, project = (set(identity.device_code(mode).files) for mode in ("emulate", "project"))
    assert {"harness.devices.emulation", "methods.pipeline.distributed.worker"} <= emulate
    assert {"harness.devices.projection", "methods.pipeline.controller"} <= project
