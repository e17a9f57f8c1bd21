"""C1, C6: 64 tokens in every cell of method, target family, n and W.

One prompt in a cell, another one in the next; all twenty with ``pytest --grid full``.
"""

import itertools

import pytest
from check_worlds import GREEDY, PIPELINES, STAGES
from fitted_drafters import KNOWN, PROMPTS, TOKENS, fitted, outputs

from methods.decoding.trace import chain_fault, trace_fault
from methods.testing.tiny import FAMILIES

CELLS = list(itertools.product(FAMILIES, PIPELINES, STAGES))


@pytest.mark.parametrize(("family", "label", "n"), CELLS, ids=lambda value: str(value).replace(" ", "-"))
def test_the_tokens_are_those_of_plain_decoding(family, label, n, grid_is_full):
    layers = max(4, n)
    number = CELLS.index((family, label, n))
    accepted = 0
    for width in (1, 4):
        method = fitted(family, layers, label, n, width=width)
        chosen = range(len(PROMPTS)) if grid_is_full else [(number + width) % KNOWN]
        for i in chosen:
            result = method.decode(PROMPTS[i], GREEDY, TOKENS)
            assert result.tokens == outputs(family, layers)[i], (i, width)
            fault = chain_fault(result, n) if width == 1 else trace_fault(result)
            assert fault is None, (i, width)
            accepted += sum(step.accepted for step in result.steps)
    assert accepted > 0
