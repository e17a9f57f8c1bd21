import pytest

from methods.errors import UsageError
from methods.models.partition import check_stage_layers, split_layers


@pytest.mark.parametrize(
    ("layers", "n", "expected"),
    [
        (30, 8, [4, 4, 4, 4, 4, 4, 3, 3]),
        (32, 4, [8, 8, 8, 8]),
        (5, 5, [1] * 5),
        (7, 1, [7]),
        (5, 3, [2, 2, 1]),
    ],
)
def test_layers_are_spread_evenly_over_the_first_stages(layers, n, expected):
    assert split_layers(layers, n) == expected


@pytest.mark.parametrize("n", [0, -2, 31])
def test_an_impossible_number_of_stages_is_refused_by_both_numbers(n):
    with pytest.raises(UsageError, match=f"n = {n} stages for 30 target layers"):
        split_layers(30, n)


def test_explicit_stages_are_checked():
    assert check_stage_layers(22, (5, 4, 9, 4)) == [5, 4, 9, 4]
    with pytest.raises(UsageError, match="add up to 9; the target has 8 layers"):
        check_stage_layers(8, [5, 4])
    with pytest.raises(UsageError, match="at least one layer"):
        check_stage_layers(8, [8, 0])
