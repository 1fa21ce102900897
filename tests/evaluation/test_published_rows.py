"""The transcribed rows: shape, plausible ranges, numbers that the papers' sentences repeat, sums that must hold."""

from __future__ import annotations

import pytest

from idc.evaluation.published_rows import ALL, PublishedRow, load_published, published_rows

ROWS = [row for name in load_published().data_sets for row in published_rows(name)]


def key(row: PublishedRow) -> tuple[str, ...]:
    table = row.table
    return (table.paper, table.table, table.data_set, table.subset, table.variant, table.protocol, row.method)


def one(paper: str, table: str, data_set: str, method: str, subset: str = ALL) -> dict[str, float]:
    values = [
        row.values for row in ROWS if key(row)[:4] == (paper, table, data_set, subset) and row.method == method
    ]  # fmt: skip
    assert len(values) == 1
    return values[0]


def test_all_five_papers_are_there_with_their_own_rows() -> None:
    for name, paper in load_published().papers.items():
        proposed = [row for row in ROWS if row.table.paper == name and row.own]
        assert proposed, paper.method
        assert len([row for row in ROWS if row.table.paper == name]) > len(proposed), "and the methods it compares with"
    assert len({key(row) for row in ROWS}) == len(ROWS) == 368


def test_sums_of_the_papers_hold() -> None:
    off = []
    for row in ROWS:
        values = row.values
        if "S_m*" in values:
            mean = sum(values[name] for name in ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr")) / 4
            assert values["S_m*"] == pytest.approx(mean, abs=0.0051), key(row)
        for p, r, f in (("Precision", "Recall", "F1"), ("Micro precision", "Micro recall", "Micro F1")):
            if f in values and abs(2 * values[p] * values[r] / (values[p] + values[r]) - values[f]) > 0.0002:
                off.append((row.table.table, row.method))
    assert off == [("Table VII", "Qwen2.5-VL-7B")], "which is printed so"


def test_numbers_that_the_papers_sentences_repeat() -> None:
    # ProCap, section 4.2: "a competitive CIDEr score of 42.7"; appendix J: +7 % CIDEr and +8 % BLEU-4 over MCT-CCDiff.
    assert one("procap", "Table 1", "spot_the_diff", "ProCap")["CIDEr"] == 42.7
    ours, theirs = (
        one("procap", table, "spot_the_diff", name)
        for table, name in (("Table 6", "ProCap†"), ("Table 1", "MCT-CCDiff (2025)"))
    )
    assert [round(100 * (ours[m] / theirs[m] - 1)) for m in ("CIDEr", "BLEU-4")] == [7, 8]
    # ADPO, section 5.1: CIDEr gains in percent over its two ablations.
    for table, data_set, gains in (
        ("Table 1", "image_editing_request", (3.09, 1.01)),
        ("Table 2", "clevr_change", (2.95, 0.72)),
        ("Table 3", "spot_the_diff", (7.47, 1.82)),
    ):
        full = one("adpo", table, data_set, "ADPO")["CIDEr"]
        for name, gain in zip(("Preference Optimization", "Retrieval Adversarial"), gains, strict=True):
            less = one("adpo", table, data_set, f"ADPO w/o {name}")["CIDEr"]
            assert 100 * (full / less - 1) == pytest.approx(gain, abs=0.006)
    # ChangeVG: 1.39 points of S_m* over Semantic-CC (abstract); accuracy and F1 14.26 and 12.34 points over Gemini.
    caption = {name: one("changevg", "Table II", "levir", name) for name in ("ChangeVG", "Semantic-CC", "Chg2Cap")}
    assert caption["ChangeVG"]["S_m*"] - caption["Semantic-CC"]["S_m*"] == pytest.approx(1.39)
    assert 100 * (caption["ChangeVG"]["CIDEr"] / caption["Semantic-CC"]["CIDEr"] - 1) == pytest.approx(3.12, abs=0.005)
    binary = {name: one("changevg", "Table IV", "changeimti", name, "change or not") for name in ("ChangeVG", "GPT-4o")}
    assert (binary["ChangeVG"]["Accuracy"], binary["ChangeVG"]["F1"]) == (0.946, 0.9474)
    assert one("changevg", "Table V", "changeimti", "GPT-4o", "count, building") == {"MAE": 3.663}
    assert one("changevg", "Table VI", "changeimti", "Claude-Sonnet-4.0", "location, road")["Micro F1"] == 0.5543
    # OmniDiff, section 5.4: without MDP only one of 13 metrics is better; NAMC, table 6 repeats its rows.
    assert one("omnidiff", "Table 3", "omnidiff", "M3Diff", "real")["CIDEr"] == 31.3
    assert one("namc", "Table 2", "clevr_change", "NAMC") == {
        "BLEU-4": 57.5, "METEOR": 38.6, "CIDEr": 153.2, "ROUGE-L": 77.3, "SPICE": 27.6,
    }  # fmt: skip


def test_every_row_has_a_name_and_a_number_for_each_column() -> None:
    published = load_published()
    for table in published.tables:
        assert {table.paper} <= published.papers.keys(), table.table
        assert {table.data_set} <= published.data_sets.keys(), table.table
    for row in ROWS:
        assert row.values, key(row)
        assert all(isinstance(value, float | int) for value in row.values.values()), key(row)
