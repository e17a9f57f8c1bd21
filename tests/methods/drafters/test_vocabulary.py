"""C20: ids in range and unique, q sums to 1 on the full vocabulary, unset maps refused."""

import pytest
import torch

from methods.drafters.vocabulary import DraftVocabulary
from methods.errors import UsageError

IDS = [1, 4, 5, 9]


def test_maps_ids_and_scatters_q():
    vocabulary = DraftVocabulary(10, IDS)
    q = torch.tensor([[0.1, 0.2, 0.3, 0.4], [1.0, 0, 0, 0]])
    full = vocabulary.scatter(q)
    assert vocabulary.to_target(torch.tensor([3, 0])).tolist() == [9, 1]
    torch.testing.assert_close(full.sum(-1), torch.ones(2))
    assert full[0].tolist() == pytest.approx([0, 0.1, 0, 0, 0.2, 0.3, 0, 0, 0, 0.4])
    torch.testing.assert_close(vocabulary.restrict(full), q)
    assert vocabulary.contains(torch.tensor([[0, 1], [9, 8]])).tolist() == [[False, True], [True, False]]


def test_full_vocabulary_is_the_identity():
    vocabulary = DraftVocabulary(6)
    q = torch.rand(2, 6)
    assert vocabulary.is_full and vocabulary.size == 6
    assert vocabulary.scatter(q) is q and vocabulary.restrict(q) is q
    assert vocabulary.to_target(torch.tensor([5])).tolist() == [5]


def test_offsets_round_trip():
    vocabulary = DraftVocabulary(10, IDS)
    assert vocabulary.to_offsets().tolist() == [1, 3, 3, 6]
    assert DraftVocabulary.from_offsets(vocabulary.to_offsets(), 10).ids.tolist() == IDS
    assert DraftVocabulary.from_offsets(torch.zeros(10, dtype=torch.long), 10).is_full


def test_an_all_zero_map_of_a_reduced_vocabulary_is_refused():
    with pytest.raises(UsageError, match=r"d2t is all zero .*\(4\).*\(10\)"):
        DraftVocabulary.from_offsets(torch.zeros(4, dtype=torch.long), 10)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 4, 10], "target id 10; allowed: 0 to 9"),
        ([-1, 4], "target id -1"),
        ([1, 4, 4], "target id 4 more than once"),
        ([4, 1], "not sorted"),
        ([], "at least one"),
    ],
)
def test_unusable_ids_are_refused(ids, message):
    with pytest.raises(UsageError, match=message):
        DraftVocabulary(10, ids)
