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
OF_MASKS = frozenset({"count", "location", "dialogue"})
"""Tasks whose answers need the mask."""
CAPTION_REQUEST = "Please describe the changes"
"""How every question for a caption begins, that at the end of a dialogue too."""
CAPTION_QUESTION = f"{CAPTION_REQUEST} in {IMAGE} and {IMAGE}"
"""The question of the task caption."""


class RegionConfig(ConfigModel):
    """Which regions of a change mask are counted, and where they are. The defaults are the notebook's, and so the
    published answers; the other values are what the paper's text says."""

    without_area: Literal["drop", "count"] = "drop"
    """Regions whose polygon has no area: single pixels and lines one pixel wide. drop: the notebook's bug, which
    divides by the area to get the centroid and passes over these, so that a mask with changed pixels may be "0" and
    "No change". count: they are counted, at the mean of their corners."""
    enclosed: Literal["drop", "count"] = "drop"
    """Regions inside a hole of another region of their class, such as a building in a courtyard. drop: the notebook's
    bug, whose contours are the outermost ones alone. count: they are counted, as the paper's "connected components"."""
    centroid: Literal["polygon", "region"] = "polygon"
    """polygon: the centroid of the polygon of at most 8 corners, as in the notebook; it may lie in another cell of the
    grid than that of the region's pixels. region: the mean of the region's pixels, the paper's "centroid of each change
    mask"."""


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
    colours: Literal["labels", "predictions"] = "labels"
    """Colours of the masks. labels: grey, 128 for roads and 255 for buildings. predictions: those that MCI draws,
    yellow for roads and red for buildings."""
    asked_without_buildings: Literal["roads", "buildings"] = "roads"
    """What a dialogue asks in its third turn if no building has changed. roads: the notebook's bug, so that the answer
    to a question about roads is "0" or "No change" even where roads have changed. buildings: the question that is
    meant."""
    location_hint: Literal["always", "if_unchanged"] = "always"
    """When a question of the location task ends with "if no change please output: No change.". if_unchanged: the bug of
    the notebook's first version (its samples with a hint for the caption), in which the hint gives the answer away,
    and which dialogues do not have at all."""
    dialogue_draws: Literal["pair", "dialogue"] = "pair"
    """Whether a dialogue asks for count or location is drawn once for roads and once for buildings. pair: for all
    dialogues of a pair, which then differ in the caption alone, as in the notebook. dialogue: for each."""
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
    show: int = Field(default=24, ge=0, le=200)
    """Pairs with pictures on the page; 0: no page."""

    def faults(self) -> Iterator[str]:
        for name in ("tasks", "splits"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                yield f"{name}: {', '.join(values)} names one twice"
        if "dialogue" not in self.tasks:
            for name in ("asked_without_buildings", "dialogue_draws"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    yield f"{name}: not used without tasks=dialogue; leave it out"
        if self.location_hint != "always" and not {"location", "dialogue"} & set(self.tasks):
            yield "location_hint: not used without tasks=location or tasks=dialogue; leave it out"
        if self.val_as_train and "val" not in self.splits:
            yield "val_as_train: splits has no val; leave it out"

    def preflight(self) -> Iterator[str]:
        yield from missing_pairs(self.pairs, "pairs")
