"""What the pipeline methods refuse, in one line that names it and what is allowed."""

import pytest
from conftest import random_ids, tiny

from methods import registry
from methods.core import SamplingParams
from methods.errors import UsageError


@pytest.mark.parametrize("name", ["spd", "ppsd"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 9}, r"n = 9 stages for 8 target layers; allowed: 1 to 8"),
        ({"n": 0}, r"n = 0 stages|n >= 1|at least 1"),
        ({"width": 0}, "width must be 1 to 256, got 0"),
        ({"stage_layers": "4;4"}, "stage layers '4;4' name 2 stages, but n = 4"),
        ({"stage_layers": "5;1;1;x"}, "not numbers separated by ';', e.g. 5;9;9;9"),
        ({"stage_layers": "5;1;1;2"}, "add up to 9; the target has 8 layers"),
        ({"stage_layers": "5;3;0;0"}, "every stage needs at least one layer"),
        ({"proposal": "hope"}, "unknown proposal rule 'hope'; allowed: sampled, point-mass"),
        ({"proposal": "sampled", "width": 4}, "needs width 1"),
        ({"checkpoint": "somewhere"}, r"give --checkpoint .* or --untrained .*\(not both\)"),
        ({"untrained": False}, "needs a drafter for tiny-llama, n = 4: give --checkpoint"),
        ({"untrained": False, "checkpoint": "nowhere"}, "no checkpoint at nowhere"),
        ({"layers": 3}, "has no option 'layers'; allowed: "),
    ],
)
def test_unusable_options(name, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        registry.create(name, tiny("llama"), {"n": 4, "untrained": True, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("spd", {"schedule": "mid-step"}, "unknown schedule 'mid-step'; allowed: pre-step, post-step"),
        ("spd", {"draft_layers": 0}, "draft layers must be 1 to 8, the target's; got 0"),
        ("ppsd", {"head_class": "tree"}, "unknown head class 'tree'; allowed: layer, mlp, linear"),
    ],
)
def test_unusable_options_of_one_method(name, options, message):
    with pytest.raises(UsageError, match=message):
        registry.create(name, tiny("llama"), {"n": 4, "untrained": True, **options})


@pytest.mark.parametrize("name", ["autoregressive", "spd", "ppsd"])
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "the prompt is empty"),
        ([64], "outside the vocabulary of tiny-llama"),
        ([-1], "outside the vocabulary of tiny-llama"),
        (random_ids(1024), "has 1024 tokens; tiny-llama has a context of 1024, so at most 1023"),
        (random_ids(1100), "has 1100 tokens; tiny-llama has a context of 1024, so at most 1023"),
    ],
)
def test_unusable_prompts(name, prompt, message):
    options = {} if name == "autoregressive" else {"n": 4, "untrained": True}
    method = registry.create(name, tiny("llama"), options)
    with pytest.raises(UsageError, match=message):
        method.decode(prompt, SamplingParams(), 5)


def test_a_record_names_rule_split_and_drafter():
    method = registry.create("spd", tiny("llama"), {"n": 3, "untrained": True, "draft_layers": 2})
    assert method.describe() == {
        "proposal": "sampled",
        "stage_layers": [3, 3, 2],
        "untrained": True,
        "schedule": "pre-step",
        "draft_layers": 2,
    }
    method = registry.create("ppsd", tiny("llama"), {"n": 4, "untrained": True, "width": 4})
    assert method.describe() == {
        "proposal": "point-mass",
        "stage_layers": [2, 2, 2, 2],
        "untrained": True,
        "head_class": "layer",
    }
