"""How far a check has come."""

from __future__ import annotations

import pytest

from methods.testing.progress import each, listening, portion, tick


def test_items_are_equal_shares_and_what_is_done_within_one_is_of_its_share():
    heard: list[float] = []
    with listening(heard.append):
        for item in each("ab"):
            if item == "b":
                tick(0.5)
                list(each("cd"))
    assert heard == pytest.approx([0.5, 0.75, 0.75, 1.0, 1.0])


def test_a_portion_is_a_part_of_the_work_at_hand():
    heard: list[float] = []
    with listening(heard.append):
        with portion(0.25, 0.5):
            tick(0.0)
        tick(2.0)
    assert heard == [0.25, 0.5, 1.0]


def test_nobody_hears_of_what_is_done_afterwards_or_without_a_listener():
    heard: list[float] = []
    with pytest.raises(ValueError, match="wrong"), listening(heard.append), portion(0.5, 1.0):
        raise ValueError("wrong")
    tick(1.0)
    assert heard == []
