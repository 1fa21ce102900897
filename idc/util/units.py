"""Units in which metrics are shown: scores times 100, shares in per cent. Files and logs keep fractions."""

from __future__ import annotations

import math

_SCORES = ("CIDEr", "METEOR", "ROUGE-L", "SPICE", "BLEU-")
_SHARES = ("right_type", "right_object", "difference_f1", "invented_share", "accuracy")


def factor(name: str) -> int:
    """100 for a metric that is stored as a fraction and shown times 100, else 1.

    Args:
        name: as in a training's log, e.g. ``CIDEr`` or ``validation/right_object``.
    """
    return 100 if name.rpartition("/")[2].startswith(_SCORES) or name.endswith(_SHARES) else 1


def score_text(value: float, digits: int = 1) -> str:
    """A score times 100; a dash for one that is not defined (NaN)."""
    return "–" if math.isnan(value) else f"{100 * value:.{digits}f}"


def metric_text(name: str, value: float) -> str:
    """``158.9`` of a CIDEr, ``98.9 %`` of a share, four digits of any other number."""
    if factor(name) == 1:
        return f"{value:.4g}"
    return f"{100 * value:.1f}{' %' if name.endswith(_SHARES) else ''}"
