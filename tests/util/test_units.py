"""Metrics as users read them."""

from __future__ import annotations

import pytest

from idc.util.units import factor, metric_text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("CIDEr", 1.5889, "158.9"),
        ("validation/CIDEr", 0.1003, "10.0"),
        ("right_object", 0.8942, "89.4 %"),
        ("loss", 0.123456, "0.1235"),
        ("distinct_captions", 12, "12"),
    ],
)
def test_scores_are_shown_times_100_and_shares_in_per_cent(name: str, value: float, text: str) -> None:
    assert metric_text(name, value) == text
    assert (factor(name) == 100) == (float(text.removesuffix(" %")) != pytest.approx(value, rel=1e-3))
