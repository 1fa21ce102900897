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
    assert all(row.values and all(isinstance(value, float | int) for value in row.values.values()) for row in ROWS)


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
    # ChangeVG: 1.39 points of S_m* over Semantic-CC (abstract).
    caption = {name: one("changevg", "Table II", "levir", name) for name in ("ChangeVG", "Semantic-CC")}
    assert caption["ChangeVG"]["S_m*"] - caption["Semantic-CC"]["S_m*"] == pytest.approx(1.39)
    assert 100 * (caption["ChangeVG"]["CIDEr"] / caption["Semantic-CC"]["CIDEr"] - 1) == pytest.approx(3.12, abs=0.005)
