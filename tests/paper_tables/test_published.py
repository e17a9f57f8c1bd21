"""The published figures: formulas, pinned values, sources, and equality with the shared copy."""

from pathlib import Path

import pandas as pd
import pytest

from paper_tables import published

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "paper_figures"


@pytest.mark.parametrize(
    ("method", "options", "temperature", "benchmark", "model", "s0", "s"),
    [
        # 3.51 and 4.23 are also printed in the paper, which confirms the formula.
        ("eagle3", {"m": 15}, 0.0, "overall", "Qwen3.5-4B", 3.51, 2.39),
        ("eagle3", {"m": 15}, 0.0, "overall", "Qwen3.5-9B", 4.23, 2.88),
        ("eagle3", {"m": 3}, 1.0, "mt_bench", "Qwen3.5-4B", 1.80 * 35 / 32, 1.80),
        ("ppsd", {"n": 8}, 0.0, "gsm8k", "Qwen3.5-9B", 1.82 * 40 / 32, 1.82),
        ("ppsd", {"n": 16}, 1.0, "humaneval", "Qwen3.5-4B", 1.33 * 1.5, 1.33),
        ("spd", {"n": 8, "draft_layers": 3}, 1.0, "humaneval", "Qwen3.5-9B", 4.32, 4.32),
    ],
)
def test_s0_follows_from_s(method, options, temperature, benchmark, model, s0, s):
    row = published.lookup(method, options, temperature, benchmark)[model]
    assert row["S"] == pytest.approx(s)
    assert row["S0"] == pytest.approx(s0, abs=0.005)


@pytest.mark.parametrize("method", ["eagle3", "ppsd", "spd"])
def test_options_that_leave_the_row_open_have_no_figures(method):
    assert not published.lookup(method, {}, 0.0, "overall")
    assert not published.figures(method, {}, 0.0, "overall")


def test_every_row_is_named_once_and_has_a_source():
    frame = published.speedups()
    assert not frame.duplicated(published.KEY).any()
    assert frame["source"].str.len().gt(0).all()
    assert frame.loc[frame["method"] == "spd", "S0"].equals(frame.loc[frame["method"] == "spd", "S"])
    assert frame.loc[frame["method"] != "spd", "S0"].gt(frame.loc[frame["method"] != "spd", "S"]).all()


def test_paper_figures_name_version_and_table():
    frame = published.paper_figures()
    assert frame["source"].str.fullmatch(r"arXiv 2605\.30852v[13], (Table \d|Figure \d|.+ rows)").all()
    in_range = frame["value_high"].notna()
    assert frame.loc[in_range, "value_high"].gt(frame.loc[in_range, "value"]).all()


def test_the_two_versions_agree_with_the_formula_where_both_s0_and_s_are_printed():
    frame = published.paper_figures()
    keys = ["model", "temperature", "width", "method", "n", "m", "benchmark"]
    pairs = frame[frame["source"].str.endswith("v1, Table 1")].pivot_table(
        index=keys, columns="quantity", values="value", dropna=False
    )
    pairs = pairs[["S0", "S"]].dropna().reset_index()
    assert len(pairs) == 10
    for row in pairs.itertuples():
        n, m = (None if pd.isna(value) else int(value) for value in (row.n, row.m))
        factor = published.free_drafting_factor(row.method, n=n, m=m, draft_layers=1)
        assert pytest.approx(row.S * factor, abs=0.01) == row.S0, row


def test_a_method_without_its_serial_steps_is_refused():
    with pytest.raises(ValueError, match="eagle3 needs"):
        published.free_drafting_factor("eagle3", n=4, m=None, draft_layers=1)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no shared copy of the figures at {SHARED}")
def test_carried_rows_equal_the_shared_copy():
    shared = pd.read_csv(
        SHARED / "w1_theory_and_wallclock.csv", dtype={"n": "Int64", "m": "Int64", "draft_layers": "Int64"}
    )
    carried = published.speedups()[list(shared.columns)]
    pd.testing.assert_frame_equal(carried, shared)
