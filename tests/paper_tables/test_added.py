"""Rows of ``paper_tables --method NAME:option=VALUE,...``."""

import pytest

from methods.errors import UsageError
from paper_tables.added import with_added
from paper_tables.plan import SPECS


def added(number, *texts, untrained=False):
    rows = with_added(SPECS[number], texts, untrained, check=True)
    return rows[len(SPECS[number].rows) :]


@pytest.mark.parametrize(("name", "label"), [("eagle3", "eagle3 W=4"), ("ngram", "ngram W=1")])
def test_a_method_has_the_tables_width(name, label):
    (row,) = added("5", name, name)
    assert row.label == label and (("width", 4) in row.options) == (name == "eagle3")


def test_a_row_the_table_has_is_not_added_unless_it_has_a_label():
    assert added("1", "ngram") == []
    (row,) = added("1", "ngram:label=Mine")
    assert (row.label, row.flags()) == ("Mine", ["--method", "ngram"])


def test_options_and_a_checkpoint_of_ones_own(tmp_path):
    head = tmp_path / "head"
    head.mkdir()
    (row,) = added("1", f"spd:n=4,draft_layers=2,checkpoint={head},label=My head")
    assert row.label == "My head"
    argv = row.flags()
    assert argv[argv.index("--checkpoint") + 1] == str(head) and argv[argv.index("--n") + 1] == "4"
    (unnamed,) = added("1", f"spd:n=4,checkpoint={head}")
    assert unnamed.label == "spd n=4 checkpoint=head"
    assert "/" not in unnamed.slug and str(tmp_path) not in unnamed.slug


def test_two_checkpoints_of_one_name_are_two_records(tmp_path):
    heads = [tmp_path / place / "head" for place in "ab"]
    for head in heads:
        head.mkdir(parents=True)
    rows = added("1", *(f"spd:checkpoint={head},label={i}" for i, head in enumerate(heads)))
    assert len({row.slug for row in rows}) == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["nosuch:n=4"], "unknown method 'nosuch'"),
        (["spd:stages=4"], "stages"),
        (["spd:n=many"], "many"),
        (["spd:n"], "expected NAME or NAME:option=VALUE"),
        (["spd:checkpoint=/nowhere/at/all"], "/nowhere/at/all"),
        (["spd:n=4,label=a|b"], "a row's label is printable text"),
        (["ngram:label=A", "spd:n=4,label=A"], "two rows are called 'A'"),
    ],
)
def test_what_makes_no_row_is_refused(texts, message):
    with pytest.raises(UsageError) as refusal:
        added("1", *texts)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


def test_random_drafters_have_no_checkpoint(tmp_path):
    with pytest.raises(UsageError, match="names a checkpoint, and --untrained"):
        added("1", f"spd:checkpoint={tmp_path},label=x", untrained=True)
    assert added("1", "spd:n=2", untrained=True)[0].label == "spd n=2 (untrained)"
