import pytest

from methods.errors import UsageError
from methods.models.partition import split_layers
from methods.spd.aggregation import Aggregation, choose_anchors

PUBLISHED = (0, 8, 16, 24, 31)


@pytest.mark.parametrize(
    ("n", "types"),
    [
        (4, (0, 1, 2, 3, 4)),
        (8, (0, 0, 1, 1, 2, 2, 3, 3, 4)),
        (16, (0,) * 4 + (1,) * 4 + (2,) * 4 + (3,) * 4 + (4,)),
    ],
)
def test_published_anchors_give_the_published_types(n, types):
    aggregation = choose_anchors(split_layers(32, n), PUBLISHED)
    assert aggregation.types == types
    assert aggregation.available(n) == PUBLISHED
    assert aggregation.dead_anchors == ()


def test_uneven_stages_count_cumulatively():
    aggregation = Aggregation((5, 4, 9, 9), (0, 5, 9, 18, 26))
    assert aggregation.boundaries == (0, 5, 9, 18, 27)
    assert aggregation.types == (0, 1, 2, 3, 4)
    # By the largest stage (9 per depth), anchor 9 would already count as reached at depth 1.
    assert aggregation.available(1) == (0, 5)


@pytest.mark.parametrize(
    ("layers", "n", "anchors"),
    [
        (32, 4, (0, 8, 24, 31)),
        (32, 8, (0, 4, 12, 24, 31)),
        (32, 16, (0, 2, 6, 12, 31)),
        (28, 7, (0, 4, 12, 24, 27)),
        (32, 2, (0, 16, 31)),
        (32, 1, (0, 31)),
        (1, 1, (0,)),
    ],
)
def test_automatic_anchors(layers, n, anchors):
    assert choose_anchors(split_layers(layers, n)).anchors == anchors


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 8, 28, 30, 36, 43])
def test_automatic_anchors_are_usable_for_every_n(layers):
    for n in range(1, layers + 1):
        aggregation = choose_anchors(split_layers(layers, n))
        assert aggregation.dead_anchors == ()
        assert len(aggregation.anchors) <= n + 1
        assert aggregation.anchors[-1] == layers - 1
        for depth, kind in enumerate(aggregation.types):
            assert aggregation.anchors[kind] <= aggregation.boundaries[depth]


@pytest.mark.parametrize(
    ("anchors", "message"),
    [
        ((0, 8, 32), "at most 31 for 32 layers"),
        ((4, 8), "first must be 0"),
        ((0, 8, 8), "strictly increasing"),
        ((), "first must be 0"),
        ((0, 25, 28, 31), r"\[25, 28\] would be used at no depth"),
    ],
)
def test_unusable_anchors_are_refused(anchors, message):
    with pytest.raises(UsageError, match=message):
        choose_anchors([8, 8, 8, 8], anchors)
