"""The page of an inspected pre-training on noisy descriptions: which patches and words resemble something of the other
modality (figures 6 to 8 of NAMC), and what is made of masked regions (its table 9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from idc.report.page import render_template
from idc.report.pair_cards import heat_overlay

PUBLISHED = {"MIR, VQGAN": (27.74, 0.805), "VQGAN, raw": (25.89, 0.710), "MIR, raw": (23.35, 0.616)}
"""Reconstructed and reference image -> PSNR and SSIM of NAMC's table 9."""


def relevance_page(title: str, subtitle: str, figures: Mapping[str, float], pairs: Sequence[tuple[str, Any]]) -> str:
    """The page as text.

    Args:
        figures, pairs: as in ``idc.systems.namc.inspection.Inspection``.
    """
    return render_template(
        "relevance.html",
        title=title,
        subtitle=subtitle,
        figures={name: f"{value:.3f}" for name, value in figures.items() if not name.startswith(("PSNR", "SSIM"))},
        quality=[
            [name, f"{figures[f'PSNR {name}']:.2f}", f"{figures[f'SSIM {name}']:.3f}", f"{psnr:.2f}", f"{ssim:.3f}"]
            for name, (psnr, ssim) in PUBLISHED.items()
            if f"PSNR {name}" in figures
        ],
        pairs=[(name, [_side(label, side) for label, side in zip(("before", "after"), sides, strict=True)])
               for name, sides in pairs],
    )  # fmt: skip


def _side(label: str, side: Any) -> dict[str, Any]:
    views = [
        (label, side.image),
        ("relevance", heat_overlay(side.image, side.patches)),
        ("masked", _darkened(side.image, side.masked)),
    ]
    if side.rebuilt is not None:
        views.append(("reconstructed", side.rebuilt))
    return {"views": views, "words": [(word, round(100 * value), wrong) for word, value, wrong in side.words]}


def _darkened(image: np.ndarray, masked: np.ndarray) -> np.ndarray:
    scale = image.shape[0] // masked.shape[0]
    shown = np.kron(~masked, np.ones((scale, scale), bool))[: image.shape[0], : image.shape[1]]
    return np.where(shown[..., None], image, image // 5).astype(np.uint8)
