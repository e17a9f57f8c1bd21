"""A pipeline's decode call on a tiny target as a program for a launcher: rank 0 prints what came out."""

from __future__ import annotations

import json
import os
import sys

from methods import registry
from methods.core import SamplingParams
from methods.pipeline.distributed.ranks import Ranks, serve_as_rank
from methods.testing.tiny import tiny_target


def facts(result) -> list:
    """Ids and trace, without the times, as JSON gives them back."""
    names = ("drafted", "accepted", "emitted", "target_layers", "draft_layers", "depth", "nodes")
    steps = [[getattr(step, name) for name in names] for step in result.steps]
    return json.loads(json.dumps([result.tokens, steps, result.finish_reason]))


def decode(runtime: str, layout: str, n: int, width: int) -> list[list]:
    """Greedy and sampled, on the hybrid target."""
    options = {"n": n, "width": width, "layout": layout, "runtime": runtime, "untrained": True}
    method = registry.create("spd", tiny_target("hybrid"), options)
    laws = (SamplingParams(), SamplingParams(temperature=1.0, seed=11))
    found = [facts(method.decode([5, 9, 2, 7, 1], law, 14)) for law in laws]
    if runtime == "distributed":
        Ranks.of(method.distributed.job.layout).close()
    return found


if __name__ == "__main__":
    if os.environ["RANK"] != "0":
        serve_as_rank()
    layout, n, width = sys.argv[1:]
    runs = decode("distributed", layout, int(n), int(width))
    print(json.dumps({"world": os.environ["WORLD_SIZE"], "runs": runs}))
