"""Settings of building ChangeIMTI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel
from idc.data.config import Split
from idc.data.manifest import missing_pairs
from idc.data.schema import IMAGE

ImtiTask = Literal["caption", "binary", "count", "location", "dialogue"]
TASKS: tuple[ImtiTask, ...] = ("caption", "binary", "count", "location", "dialogue")
"""The tasks in the order of table I."""
MASK_TASKS = frozenset({"count", "location", "dialogue"})
"""Tasks whose answers need the mask."""
CAPTION_REQUEST = "Please describe the changes"
"""How every question for a caption begins, that at the end of a dialogue too."""
CAPTION_QUESTION = f"{CAPTION_REQUEST} in {IMAGE} and {IMAGE}"
"""The question of the task caption."""


class RegionConfig(ConfigModel):
    """Which regions of a change mask are counted, and where they are."""

    as_published: bool = True
    """true: as the notebook does, and so the published answers. It passes over regions without an area (single pixels,
    lines one pixel wide), so that a mask with changed pixels may be "0" and "No change", and over regions inside a hole
    of another one; a position is that of the centroid of the polygon of at most 8 corners, which may lie in another
    cell of the grid than the region. false: every connected component is counted, at the mean of its pixels, as the
    paper's text says."""


class BuildChangeImtiJob(ConfigModel):
    """Build ChangeIMTI from pairs with captions, flags and masks of roads and buildings (LEVIR-MCI)."""

    pairs: str = Field(min_length=1)
    """Folder of pairs, imported from LEVIR-MCI or its layout: captions, `changeflag`, and label masks. Path or URI."""
    out: str = Field(min_length=1)
    """Folder of instructions to write, with changeimti.json and page.html. Path or URI."""
    tasks: tuple[ImtiTask, ...] = Field(default=TASKS, min_length=1)
    """Tasks to build. caption and binary need no masks, so that LEVIR-CC is enough for them."""
    splits: tuple[Split, ...] = Field(default=("train", "val"), min_length=1)
    """Splits whose pairs are used; the notebook leaves out test. With test its questions can be put to a model."""
    val_as_train: bool = False
    """Write the rows of val as rows of train: the paper tunes on both. By default a row has the split of its pair, and
    a training validates on val."""
    clean: bool = False
    """Leave out pairs whose flag contradicts their mask, and list them: "Yes" with nothing to count, or "No" with
    changed pixels. By default they are kept, as in the notebook, and counted, and
    `meta.contradiction` of their rows has the reason."""
    as_published: bool = True
    """true: dialogues with the notebook's bugs: without a changed building the third turn asks about roads, and is
    answered "0" or "No change" even where roads have changed; whether count or location is asked for is drawn once for
    all dialogues of a pair, which then differ in the caption alone. false: it asks about buildings, and each dialogue
    draws."""
    regions: RegionConfig = RegionConfig()
    """Which regions of a mask are counted, and where they are."""
    seed: int = Field(default=0, ge=0)
    """Seed of the draws (the notebook has none); they depend on it and on the pair's id alone."""
    max_pairs: int | None = Field(default=None, ge=1)
    """Use only the first pairs of the folder."""
    chunk_size: int = Field(default=32, ge=1, le=10_000)
    """Pairs per Parquet part; 7 to 15 samples each."""
    workers: int = Field(default=2, ge=1)
    """Parallel processes, one CPU each."""
    max_reject_share: float = Field(default=0.1, ge=0, le=1)
    """The job fails if more than this share of the samples cannot be made or, with `clean`, is left out."""

    def errors(self) -> Iterator[str]:
        for name in ("tasks", "splits"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                yield f"{name}: {', '.join(values)} names one twice"
        if "dialogue" not in self.tasks and not self.as_published:
            yield "as_published: not used without tasks=[dialogue]; leave it out"
        if self.val_as_train and "val" not in self.splits:
            yield "val_as_train: splits has no val; leave it out"

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs")
