from itertools import pairwise

import pytest
import torch

from methods.drafters.cache import LayerCache


def rows(first: int, count: int) -> torch.Tensor:
    return torch.arange(first, first + count, dtype=torch.float32).view(1, 1, count, 1).expand(1, 2, count, 4)


def test_append_and_truncate_keep_the_kept_rows():
    cache = LayerCache()
    cache.append(rows(0, 5), rows(100, 5))
    cache.truncate(3)
    keys, values = cache.append(rows(50, 2), rows(150, 2))
    assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 50, 51]
    assert values[0, 1, :, 3].tolist() == [100, 101, 102, 150, 151]
    assert cache.length == 5


def test_growth_doubles_and_does_not_copy_on_every_append():
    cache = LayerCache()
    storages = []
    for i in range(1000):
        keys, _ = cache.append(rows(i, 1), rows(i, 1))
        storages.append(keys.untyped_storage().data_ptr())
    assert keys[0, 0, :, 0].tolist() == list(range(1000))
    assert sum(a != b for a, b in pairwise(storages)) == 2  # 256 -> 512 -> 1024


def test_start_hides_rows_without_dropping_them():
    cache = LayerCache()
    cache.append(rows(0, 6), rows(0, 6))
    cache.start = 4
    assert cache.append(rows(6, 1), rows(6, 1))[0][0, 0, :, 0].tolist() == [4, 5, 6]
    cache.start = 1
    assert cache.append(rows(7, 1), rows(7, 1))[0][0, 0, :, 0].tolist() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("length", [-1, 4])
def test_truncating_beyond_what_is_held_is_an_error(length):
    cache = LayerCache()
    cache.append(rows(0, 3), rows(0, 3))
    with pytest.raises(ValueError, match=f"3 cached rows to {length}"):
        cache.truncate(length)
