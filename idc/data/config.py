"""Settings of the jobs that import and check pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.validation.published import SetName

Format = Literal[
    "folder",
    "csv",
    "jsonl",
    "parquet",
    "clevr_change",
    "clevr_dc",
    "spot_the_diff",
    "image_editing_request",
    "birds_to_words",
    "levir",
    "omnidiff",
    "instruct_pix2pix",
    "cdvqa",
    "qag360k",
    "procap_hdf5",
    "hugging_face",
    "webdataset",
    "video",
]
AnyFormat = Literal["auto", Format]


class SpotTheDiffConfig(ConfigModel):
    """What only Spot-the-Diff has."""

    protocol: Literal["single", "multi"] = "single"
    """single: all sentences about a pair are its references (the official annotations). multi: one caption a pair, its
    sentences joined (CARD's change_multi_captions.json)."""


class ProcapHdf5Config(ConfigModel):
    """What only the official ProCap's HDF5 files have."""

    channels: Literal["rgb", "bgr"] = "rgb"
    """Order of the channels; see `build.video_channels` of build_procedures.py."""


class HuggingFaceConfig(ConfigModel):
    """Which columns of a data set of the `datasets` library are what."""

    before: str = "before"
    """Column of the images before (an Image feature, bytes, or paths)."""
    after: str = "after"
    """Column of the images after."""
    captions: str | None = None
    """Column of the captions: a text or a list of texts."""
    pair_id: str | None = None
    """Column of ids; empty: the split's name and the row's number."""
    change_type: str | None = None
    """Column of change types; a ClassLabel gives its name."""
    mask: str | None = None
    """Column of change masks."""
    split: str | None = None
    """Column of splits; empty: the splits of the data set itself."""
    name: str | None = None
    """Configuration of a data set on the hub that has several."""
    revision: str | None = None
    """Commit, tag or branch of a data set on the hub."""


class WebdatasetConfig(ConfigModel):
    """What the members of WebDataset shards are called; `key.before.png` is the member `before` of the sample `key`."""

    before: str = "before"
    """The image before: the part of its name between key and suffix; or the whole ending, `0.jpg`."""
    after: str = "after"
    """The image after."""
    mask: str = "mask"
    """The change mask."""


class VideoConfig(ConfigModel):
    """How pairs are cut from clips of a fixed camera."""

    distance: int = Field(default=30, ge=1)
    """Frames from the before to the after image."""
    every: int = Field(default=30, ge=1)
    """A pair begins at every this many-th frame."""
    min_change: float = Field(default=0.0, ge=0, le=255)
    """Pairs whose images differ by less in the mean (of 0 to 255) are left out: much of what a fixed camera sees is
    still."""
    max_side: int | None = Field(default=None, ge=16)
    """Frames are reduced until their longer side has this many pixels; empty: as they are."""


Corruption = Literal[
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
]
"""The 15 common corruptions of Hendrycks and Dietterich (2019); see `idc/data/robustness/corruptions.py`."""

Split = Literal["train", "val", "test"]


class AccessConfig(ConfigModel):
    """What the names in a source may reach besides the files below it."""

    follow_links: bool = False
    """Follow symbolic links that lead out of the source folder. Otherwise what they lead to is rejected: a data set
    from elsewhere could have any file of this machine in it."""
    allow_remote: bool = False
    """csv, jsonl, parquet: read images that are named by URIs of other hosts (s3://, gs://, hdfs://, ...), with this
    machine's credentials. Local paths need no setting there; other formats name files below the source alone."""


class ImportConfig(AccessConfig):
    """How pairs are read, whether they are stored or only checked."""

    chunk_size: int = Field(default=32, ge=1, le=10_000)
    """Pairs in one chunk of work, which is one Parquet part; a worker holds the images of one chunk in memory."""
    max_pixels: int = Field(default=50_000_000, ge=1)
    """A larger image is refused before it is decoded."""
    require_captions: bool = False
    """Reject pairs without a caption; otherwise they are counted and kept."""
    images: bool = True
    """Read the images. false: annotations alone, the pairs have no images; captions made elsewhere can be scored."""
    strict: bool = False
    """Official layouts: reject every pair whose images are absent. Otherwise a data set none of whose images is there
    is read as with images=false, and triples of clevr_change that are absent are only counted."""
    val_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the pairs without a given split that go to val. Pairs that share images, directly or over other pairs,
    stay together, so all images are read twice where a split is missing."""
    test_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the pairs without a given split that go to test."""
    spot_the_diff: SpotTheDiffConfig = SpotTheDiffConfig()
    """format=spot_the_diff."""
    procap_hdf5: ProcapHdf5Config = ProcapHdf5Config()
    """format=procap_hdf5."""
    hugging_face: HuggingFaceConfig = HuggingFaceConfig()
    """format=hugging_face."""
    webdataset: WebdatasetConfig = WebdatasetConfig()
    """format=webdataset."""
    video: VideoConfig = VideoConfig()
    """format=video."""

    def faults(self) -> Iterator[str]:
        if self.val_share + self.test_share > 1:
            yield f"val_share + test_share is {self.val_share + self.test_share:g}, more than 1"
        if self.strict and not self.images:
            yield "strict: asks for images that images=false leaves out"


class ImportJob(ImportConfig):
    """Import pairs into a data set folder."""

    source: str
    """What to import: the folder of an official data set, a folder of images or shards or clips, or a file (csv, jsonl,
    parquet, webdataset, video); for hugging_face a folder that `save_to_disk` wrote, or a name on the hub. Path or
    URI."""
    format: Format = "folder"
    """The layout of the source; see docs/data.md."""
    out: str
    """The data set folder to write. Path or URI."""
    max_reject_share: float = Field(default=0.05, ge=0, le=1)
    """The job fails if more than this share of the pairs is rejected."""
    workers: int = Field(default=2, ge=1)
    """Copies of the import stage on Ray, one CPU each."""

    def preflight(self) -> Iterator[str]:
        if self.format != "hugging_face":  # may be the name of a data set on the hub
            yield from missing(self.source, "source")


class ValidateJob(ImportConfig):
    """Check a data set folder, or pairs that are still to be imported."""

    pairs: str
    """A data set folder, or what ImportJob takes as its source. Path or URI."""
    format: AnyFormat = "auto"
    """The layout; "auto" recognises it by the files that are there, and refuses where several fit."""
    report: str | None = None
    """Where to write the result as JSON. Default: validation.json in the folder, <file>.validation.json by a file. The
    page with pictures goes beside it, under the same name with .html."""
    published: SetName | None = None
    """Whose published counts to compare with. Default: those of the layout, also of an imported folder."""
    pictures: int = Field(default=6, ge=0, le=100)
    """Pairs of each split to show on the page; 0: no page."""
    beside: tuple[str, ...] = ()
    """Reports (JSON) of other data sets, whose captions are to stand in one table with these."""
    clean: bool = False
    """Write a clean variant beside the folder, without leaked and contradictory pairs."""
    clean_out: str | None = None
    """The clean variant's folder. Default: the folder's name with -clean."""
    clean_splits: tuple[Literal["train", "val", "test"], ...] = ("train", "val")
    """Splits from which the clean variant may leave pairs out. A leaked pair is left out if the image that it shares is
    in a later split (train, val, test). By default test stays official, so that scores stay comparable; with [train]
    val does too, but may still share images with test, as a third of Image-Editing-Request's does."""

    def faults(self) -> Iterator[str]:
        yield from super().faults()
        if self.clean and not self.clean_splits:
            yield "clean_splits: empty, so nothing could be left out"

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
        for report in self.beside:
            yield from missing(report, "beside")


class RobustnessConfig(ConfigModel):
    """What is done to pairs, to see how a system bears it. All draws depend on the seed and the pair's id alone."""

    kind: Corruption | Literal["replace_words", "swap_order"]
    """An image corruption, words of the captions replaced, or before and after swapped."""
    severity: int | None = Field(default=None, ge=1, le=5)
    """Of an image corruption: 1 to 5, the benchmark's levels."""
    which: Literal["both", "before", "after"] = "both"
    """Of an image corruption: the images it falls on, each with a draw of its own."""
    share: float | None = Field(default=None, gt=0, le=1)
    """Of replace_words: the share of words that is replaced (NAMC, table 10: 0.2, 0.4, 0.6, 0.8)."""
    splits: tuple[Split, ...] | None = None
    """The splits it is done to. Empty: train for replace_words, because the captions of the other splits are what
    scores are counted against (NAMC fine-tunes on the noised set); all of them for everything else."""
    keep_others: bool = True
    """Copy the pairs of the other splits as they are; the evaluation's baselines need the training split."""
    directed: Literal["remake", "clear"] = "remake"
    """Of swap_order: references say what became of the first image, and are not true of the other order. remake: those
    of rendered pairs are made anew from the scene, those of unchanged pairs stay, and other pairs are left out. clear:
    all pairs stay and no pair has a caption: an evaluation then counts the change types that are named."""
    seed: int = Field(default=0, ge=0)
    """Seed of all draws."""

    def faults(self) -> Iterator[str]:
        image = self.kind not in ("replace_words", "swap_order")
        if image and self.severity is None:
            yield f"severity: required with kind={self.kind}"
        if self.kind == "replace_words" and self.share is None:
            yield "share: required with kind=replace_words"
        for name, used in (("severity", image), ("which", image), ("share", self.kind == "replace_words"),
                           ("directed", self.kind == "swap_order")):  # fmt: skip
            if name in self.model_fields_set and getattr(self, name) is not None and not used:
                yield f"{name}: kind={self.kind} does not use it"

    def touched(self) -> tuple[Split, ...]:
        """The splits it is done to."""
        if self.splits is not None:
            return self.splits
        return ("train",) if self.kind == "replace_words" else ("train", "val", "test")


class CorruptJob(RobustnessConfig):
    """Make a robustness set of a folder: a folder like it, usable wherever the other is."""

    pairs: str = Field(min_length=1)
    """Folder of pairs; for replace_words also of procedures, whose captions are then noised. Path or URI."""
    out: str = Field(min_length=1)
    """The folder to write. Path or URI."""
    chunk_size: int = Field(default=64, ge=1, le=10_000)
    """Rows in one chunk of work, which is one Parquet part."""
    workers: int = Field(default=2, ge=1)
    """Processes on Ray, one CPU each."""
    max_reject_share: float = Field(default=0.0, ge=0, le=1)
    """The job fails if more than this share of the rows cannot be changed."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
