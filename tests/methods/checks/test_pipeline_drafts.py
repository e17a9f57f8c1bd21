"""C17 in the loop: what a drafter drafts from its caches is what its definition says, every cycle."""

import pytest
from check_worlds import PIPELINES, STAGES, family, in_turns, pipeline, scripted
from conftest import random_ids

from harness.checks.drafts import WatchedDrafter, draft_module_definition, exit_head_definition, watch_drafts
from harness.checks.gates import GREEDY

PROMPT = random_ids(4, seed=2)


def watch(target, label, n, tokens, width=1, prompt=PROMPT, **options) -> WatchedDrafter:
    """A greedy run in which three of five drafts are right, so that caches are kept and rolled back."""
    method = pipeline(target, label, n, width=width, **options)
    if label == "ppsd":
        definition = exit_head_definition(target, method.head)
    else:
        definition = draft_module_definition(target, method.module, series=label == "spd post-step")
    script = scripted(target, n, in_turns, tokens).drafter(prompt, GREEDY)
    drafter, result = watch_drafts(method, definition, prompt, script, tokens)
    decided = [step.accepted for step in result.steps if step.emitted]
    assert decided == [in_turns(index) for index in range(1, tokens)]
    return drafter


def assert_as_defined(drafter: WatchedDrafter, drafts: int) -> None:
    assert drafter.drafts >= drafts
    assert drafter.worst <= 1e-5


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("n", STAGES)
@pytest.mark.parametrize("label", PIPELINES)
def test_every_draft_of_a_run(label, n, width):
    assert_as_defined(watch(family("llama"), label, n, 10, width), 9)


@pytest.mark.parametrize("label", PIPELINES)
@pytest.mark.parametrize("width", [1, 4])
def test_hybrid_targets_uneven_stages_and_one_token(label, width):
    drafter = watch(family("hybrid"), label, 4, 8, width, prompt=[9], stage_layers="1;2;4;1")
    assert_as_defined(drafter, 7)


@pytest.mark.parametrize("head_class", ["mlp", "linear"])
def test_other_exit_heads(head_class):
    assert_as_defined(watch(family("llama"), "ppsd", 4, 8, head_class=head_class), 7)
