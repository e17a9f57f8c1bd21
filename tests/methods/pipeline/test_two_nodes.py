"""Ranks on several hosts: two launcher agents on the loopback, which know of each other only an address."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from node_run import decode

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
LOOPBACK = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def agent(node: int, port: int, per_node: int, *arguments: str) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node)]
    launcher += ["--nproc-per-node", str(per_node), "--master-addr", "127.0.0.1", "--master-port", str(port)]
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LOOPBACK}
    return subprocess.Popen(
        [*launcher, str(Path(__file__).with_name("node_run.py")), *arguments],
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("layout", "n", "width", "per_node"),
    [("n+1", 3, 1, 2), ("n", 4, 4, 2)],
    ids=["a chain, the drafter on the second node", "a draft tree, the drafter with stage 1"],
)
def test_two_nodes_decode_as_lockstep_does(layout: str, n: int, width: int, per_node: int) -> None:
    port = free_port()
    agents = [agent(node, port, per_node, layout, str(n), str(width)) for node in (0, 1)]
    try:
        (out, err), (_, other) = (process.communicate(timeout=200) for process in agents)
    finally:
        for process in agents:
            process.kill()
    assert [process.returncode for process in agents] == [0, 0], err + other
    (line,) = [text for text in out.splitlines() if text.startswith("{")]
    found = json.loads(line)
    assert found["world"] == str(2 * per_node)
    assert found["runs"] == decode("lockstep", layout, n, width)
