"""Short descriptions of the images of a data set, for the sentence "This model has only seen ..."."""

from __future__ import annotations

from collections.abc import Sequence

from idc.data.store import Manifest, read_manifest
from idc.data.validation.published import PUBLISHED


def training_domain(procedures: Manifest) -> str:
    """Description of the images that a model trained on these procedures has seen.

    Returns:
        e.g. ``"rendered scenes at 64x64 pixels (3,692 training pairs)"``, without local paths.
    """
    side, count = procedures.extra["image_size"], procedures.rows_by_split.get("train", 0)
    return pairs_domain([procedures.inputs["pairs"]], (side, side), count)


def pairs_domain(folders: Sequence[str], size: tuple[int, int] | None, count: int) -> str:
    """As :func:`training_domain`, of ``count`` training pairs of these folders at ``size`` (height, width), None if
    they are seen at several sizes."""
    images = " and ".join(dict.fromkeys(_images(pairs) for pairs in folders))
    at = "" if size is None else f" at {size[1]}x{size[0]} pixels"
    return f"{images}{at} ({count:,} training pairs)"


def _images(pairs: str) -> str:
    try:
        config = read_manifest(pairs, kind="pairs").config
    except (ValueError, OSError):  # the pairs may be deleted, or on another machine, when the procedures are used
        return "the images of its training set"
    if "render" in config:
        return "rendered satellite images" if config["render"].get("satellite") else "rendered scenes"
    titles: dict[str | None, str] = {name: published.title for name, published in PUBLISHED.items()}
    title = titles.get(config.get("format"))
    return "the images of its training set" if title is None else f"images of {title}"
