"""The weights that come with the program, a folder each below ``idc/weights``, by name."""

from __future__ import annotations

import os
from pathlib import Path

WEIGHTS = "IDC_WEIGHTS"
"""Environment variable: the folder ``idc/weights`` of an installation, for code that was uploaded without it."""
CAPTIONER = "clevr_like"
"""Folder of the captioner."""
SATELLITE = "satellite_guide"
"""Folder of the captioner of satellite images, ChangeVG's guide."""
BASES = {"shipped": "scene_base", "shipped-single": "scene_base_single"}
"""Folders of the small vision-language bases by their names in ``base.source``: taught on single images and on pairs,
and taught on single images and on images of different scenes, but never to compare a pair."""
_HERE = Path(__file__).resolve().parents[1] / "weights"


def shipped_weights(folder: str, what: str, instead: str) -> Path:
    """A folder of shipped weights.

    Args:
        what: they are, for the error: "the captioner".
        instead: what the user may do without them, for the error: "name an artifact".

    Raises:
        ValueError: it is not on this machine.
    """
    weights = _HERE if _HERE.exists() else Path(os.environ.get(WEIGHTS, _HERE))
    if not (weights / folder).exists():
        raise ValueError(
            f"{what} that comes with the program is not in {str(weights / folder)!r}: an upload to a cluster leaves "
            f"its weights out (.rayignore); set {WEIGHTS} to the folder idc/weights on the nodes, or {instead}"
        )
    return weights / folder
