"""C16: a distributed run has the ids and the trace of the lockstep run, cycle for cycle.

One set of rank processes serves all cells; they are forked once and load what each cell needs.
"""

import dataclasses
import itertools
import signal
from itertools import pairwise

import pytest
import torch
from conftest import random_ids, tiny

from methods import registry
from methods.core import DecodeResult, SamplingParams
from methods.decoding.verification import MAX_WIDTH
from methods.drafters import checkpoint
from methods.errors import UsageError
from methods.models.target import Target
from methods.pipeline.distributed.links import TAGS_PER_LINKS, first_tag
from methods.pipeline.distributed.ranks import Ranks
from methods.pipeline.layout import Layout
from methods.ppsd import checkpoint as ppsd

pytestmark = pytest.mark.slow

GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0, seed=11)
LARGEST = Layout.named("n+1", 8)


@pytest.fixture(scope="module", autouse=True)
def ranks():
    ranks = Ranks.of(LARGEST)
    yield ranks
    ranks.close()


def methods(name: str, family: str, n: int, layout: str, width: int = 1, **options):
    """The same method in lockstep and distributed."""
    options = {"n": n, "width": width, "untrained": True, "layout": layout, **options}
    return [
        registry.create(name, tiny(family), {**options, "runtime": runtime})
        for runtime in ("lockstep", "distributed")
    ]


def facts(result: DecodeResult):
    """Everything but the times."""
    steps = [
        (s.drafted, s.accepted, s.emitted, s.target_layers, s.draft_layers, s.depth, s.nodes)
        for s in result.steps
    ]
    return result.tokens, steps, result.finish_reason


@pytest.mark.parametrize("layout", ["n+1", "n"])
@pytest.mark.parametrize("n", [8, 4, 3, 2])
@pytest.mark.parametrize("family", ["llama", "hybrid"])
@pytest.mark.parametrize("name", ["spd", "ppsd"])
def test_the_trace_is_the_lockstep_trace(name, family, n, layout):
    for width, sampling in itertools.product((1, 4), (GREEDY, SAMPLED)):
        lockstep, distributed = methods(name, family, n, layout, width)
        prompt = random_ids(7, seed=n + width)
        expected = lockstep.decode(prompt, sampling, 9)
        assert facts(distributed.decode(prompt, sampling, 9)) == facts(expected), (width, sampling)


@pytest.mark.parametrize(
    ("n", "options"),
    [
        (1, {"layout": "n+1"}),
        (1, {"layout": "n"}),
        (3, {"layout": "n", "schedule": "post-step"}),
        (3, {"layout": "n+1", "schedule": "post-step", "width": 2}),
        (3, {"layout": "n", "stage_layers": "2;3;3"}),
        (4, {"layout": "n+1", "proposal": "point-mass"}),
    ],
    ids=str,
)
def test_other_pipelines(n, options):
    layout = options.pop("layout")
    lockstep, distributed = methods("spd", "llama", n, layout, **options)
    for sampling in (GREEDY, SAMPLED):
        expected = lockstep.decode(random_ids(5), sampling, 12)
        assert facts(distributed.decode(random_ids(5), sampling, 12)) == facts(expected)


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_with_and_without_the_targets_head(tied, tmp_path):
    target = tiny("llama")
    head = registry.create("ppsd", target, {"n": 3, "untrained": True}).head
    ppsd.save(tmp_path, head, target.shape, [3, 3, 2], {})
    config, tensors, _ = checkpoint.read(tmp_path, "ppsd")
    if tied:
        del tensors[checkpoint.HEAD]
    checkpoint.write(tmp_path, tensors, dataclasses.replace(config, tied_head=tied))
    options = {"untrained": False, "checkpoint": str(tmp_path)}
    lockstep, distributed = methods("ppsd", "llama", 3, "n+1", **options)
    assert torch.equal(lockstep.head.lm_head.weight, target.head_weight)
    expected = lockstep.decode(random_ids(5), GREEDY, 12)
    assert facts(distributed.decode(random_ids(5), GREEDY, 12)) == facts(expected)


def test_an_interrupted_call_leaves_its_answer_to_nobody():
    lockstep, distributed = methods("spd", "llama", 3, "n+1")
    first, second = random_ids(5, seed=1), random_ids(5, seed=2)
    distributed.decode(first, GREEDY, 4)  # the ranks have loaded

    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(TimeoutError):
            distributed.decode(first, GREEDY, 400)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert facts(distributed.decode(second, GREEDY, 9)) == facts(lockstep.decode(second, GREEDY, 9))


def test_widths_share_what_the_ranks_have_loaded():
    jobs = [methods("spd", "llama", 2, "n+1", width=width)[1].distributed.job for width in (1, 4)]
    assert jobs[0] == jobs[1]


def test_caps_stop_ids_and_one_token_prompts():
    lockstep, distributed = methods("spd", "hybrid", 3, "n+1")
    whole = lockstep.decode([5], GREEDY, 12).tokens
    for cap in (0, 1, 2, 12):
        assert facts(distributed.decode([5], GREEDY, cap)) == facts(lockstep.decode([5], GREEDY, cap))
    for stop in (whole[0], whole[4]):
        ends = distributed.decode([5], GREEDY, 12, [stop])
        assert facts(ends) == facts(lockstep.decode([5], GREEDY, 12, [stop]))
        assert ends.finish_reason == "stop"


def test_a_prompt_passes_in_chunks_through_all_stages(monkeypatch):
    for module in ("lockstep", "distributed.ranks"):
        monkeypatch.setattr(f"methods.pipeline.{module}.PREFILL_CHUNK", 4)
    for name, layout in itertools.product(("spd", "ppsd"), ("n+1", "n")):
        lockstep, distributed = methods(name, "hybrid", 3, layout)
        prompt = random_ids(18)
        assert facts(distributed.decode(prompt, GREEDY, 6)) == facts(lockstep.decode(prompt, GREEDY, 6))


def test_stages_between_the_ends_run_ahead_of_verdicts():
    _, distributed = methods("spd", "llama", 4, "n+1")
    result = distributed.decode(random_ids(7), GREEDY, 12)
    flushes = sum(step.drafted > 0 and not step.accepted for step in result.steps)
    wasted = [report.wasted for report in distributed.distributed.reports]
    assert wasted[0] == wasted[3] == wasted[4] == 0  # stage 1, the last stage and the drafter wait
    assert flushes > 0
    assert all(flushes - 1 <= count <= flushes for count in wasted[1:3])


def test_a_bad_prompt_reaches_no_rank():
    _, distributed = methods("spd", "llama", 2, "n")
    with pytest.raises(UsageError, match="the prompt is empty"):
        distributed.decode([], GREEDY, 4)
    with pytest.raises(UsageError, match="max_new_tokens must be >= 0"):
        distributed.decode([1], GREEDY, -1)


def test_a_target_of_this_process_only_is_refused():
    target = Target(tiny("llama").hf, name="mine")
    options = {"n": 2, "untrained": True, "runtime": "distributed"}
    with pytest.raises(UsageError, match="from files; 'mine' has none"):
        registry.create("spd", target, options).decode([1], GREEDY, 2)


def test_no_two_sets_of_links_share_a_tag():
    """Once, the 17th width of a job took the tags of the next job."""
    ranges = [
        range(first, first + TAGS_PER_LINKS)
        for job in range(3)
        for first in (first_tag(job, width, world=9) for width in (1, 2, 16, 17, 18, MAX_WIDTH))
    ]
    starts = sorted(ranges, key=lambda tags: tags.start)
    assert all(before.stop <= after.start for before, after in pairwise(starts))


def test_tags_that_run_out_are_refused():
    for job, width, world in ((0, 0, 9), (0, MAX_WIDTH + 1, 9), (0, 1, TAGS_PER_LINKS), (1 << 20, 1, 9)):
        with pytest.raises(UsageError, match=r"tags|jobs"):
            first_tag(job, width, world)
