"""The page of the negatives that a preference tuning has drawn last, each with its pair and the caption it is preferred
to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from idc.data.images import decode_image
from idc.report.page import render_template
from idc.report.pair_cards import GalleryItem


@dataclass(frozen=True)
class DrawnNegative:
    """A caption that was drawn as the negative of a pair.

    Attributes:
        before, after: encoded images.
        chosen: the caption of the pair; ``negative``: the one that was drawn.
        margin: beta times the difference of both captions' log-ratios to the reference.
        q, rank: the retriever's probability of it, and its place among the candidates from 1; None without a retriever.
        true: whether the negative is true of the pair; None if its truth is not recorded.
    """

    pair_id: str
    before: bytes
    after: bytes
    chosen: str
    negative: str
    margin: float
    q: float | None = None
    rank: int | None = None
    true: bool | None = None


def negatives_page(drawn: Sequence[DrawnNegative], step: int) -> str:
    """The page as text."""
    checked = [negative.true for negative in drawn if negative.true is not None]
    truth = f"{sum(checked)} of {len(checked)} are true of their pairs by its scene." if checked else ""
    return render_template(
        "negatives.html",
        title="Drawn negatives",
        subtitle=f"step {step:,}",
        truth=truth,
        items=[_item(negative) for negative in drawn],
    )


def _item(negative: DrawnNegative) -> GalleryItem:
    note = f"margin {negative.margin:.2f}"
    if negative.q is not None:
        note += f", q {negative.q:.3f}, rank {negative.rank}"
    return GalleryItem(
        pair_id=negative.pair_id,
        before=decode_image(negative.before),
        after=decode_image(negative.after),
        caption=negative.negative,
        references=[negative.chosen],
        note=note,
        warning="true of this pair: a false negative" if negative.true else None,
    )
