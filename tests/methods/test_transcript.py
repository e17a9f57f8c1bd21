import pytest

from methods.core import Transcript
from methods.errors import UsageError


def test_collects_until_the_cap():
    transcript = Transcript(3)
    assert transcript.extend([5, 6]) == 2
    assert (transcript.finish_reason, transcript.finished) == (None, False)
    assert transcript.extend([7, 8]) == 1
    assert transcript.tokens == [5, 6, 7]
    assert (transcript.finish_reason, transcript.finished) == ("length", True)
    assert transcript.extend([9]) == 0
    assert transcript.tokens == [5, 6, 7]


@pytest.mark.parametrize("block", range(1, 6))
def test_cuts_at_the_first_of_several_stop_ids_wherever_the_blocks_end(block):
    output = [1, 2, 8, 3, 9, 4]
    transcript = Transcript(100, [9, 8])
    for start in range(0, len(output), block):
        transcript.extend(output[start : start + block])
    assert transcript.tokens == [1, 2, 8]
    assert transcript.finish_reason == "stop"


def test_stop_id_as_last_allowed_token_is_a_stop():
    transcript = Transcript(2, {9})
    assert transcript.extend([1, 9, 9]) == 2
    assert transcript.finish_reason == "stop"


def test_cap_of_zero_is_finished_at_once():
    transcript = Transcript(0, [1])
    assert transcript.finish_reason == "length"
    assert transcript.extend([1, 2]) == 0
    assert transcript.tokens == []


def test_negative_cap_is_refused():
    with pytest.raises(UsageError, match="max_new_tokens must be >= 0, got -1"):
        Transcript(-1)
