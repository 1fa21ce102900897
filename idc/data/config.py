"""Settings of the jobs that import, check and perturb pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from idc.config import ConfigModel, missing
from idc.data.validation.published import SetName

Format = Literal[
    "folder", "csv", "jsonl", "parquet", "clevr_change", "clevr_dc", "spot_the_diff", "image_editing_request",
    "birds_to_words", "levir", "omnidiff", "instruct_pix2pix", "cdvqa", "qag360k",
    "vidic", "diffspot",
]  # fmt: skip
AnyFormat = Literal["auto", Format]


class SpotTheDiffConfig(ConfigModel):
    """Settings of Spot-the-Diff."""

    protocol: Literal["single", "multi"] = "single"
    """single: all sentences about a pair are its references (the official annotations). multi: one caption per pair,
    all sentences joined (CARD's change_multi_captions.json)."""


Corruption = Literal[
    "gaussian_noise", "defocus_blur", "motion_blur", "fog", "brightness", "contrast", "jpeg_compression"
]
"""Common corruptions of Hendrycks and Dietterich (2019); see `idc/robustness/corruptions.py`."""

Perturbation = Literal[Corruption, "shift"]
"""Changes that are made to images; a shift is the misregistration of a camera that moved."""

Split = Literal["train", "val", "test"]


class AccessConfig(ConfigModel):
    """Files outside of the source that names in it may reach."""

    follow_links: bool = False
    """Follow symbolic links that lead out of the source folder. By default their targets are rejected: a foreign data
    set could otherwise include any file of this machine."""
    allow_outside: bool = False
    """csv, jsonl, parquet: read images whose relative path leaves the table's folder (../images/x.png). Absolute paths
    are always read there; names in other formats are limited to files below the source."""
    allow_remote: bool = False
    """csv, jsonl, parquet: read images named by URIs of other hosts (s3://, gs://, hdfs://, ...), with this machine's
    credentials."""


class ImportConfig(AccessConfig):
    """Reading pairs, to store or only to check them."""

    chunk_size: int = Field(default=32, ge=1, le=10_000)
    """Pairs per chunk of work (one Parquet part); a worker holds the images of one chunk in memory. Without it, a part
    that an import writes to a bucket has as many times 32 pairs as have 8 MB of images, at most 1,024 pairs."""
    max_pixels: int = Field(default=50_000_000, ge=1)
    """Most pixels of an image; larger ones are rejected before they are decoded."""
    images: bool = True
    """Read the images. false: annotations alone; captions made elsewhere can still be scored against them. An official
    layout without any image is read so too, and triples of clevr_change without images are only counted."""
    val_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the pairs without a given split that go to val. Pairs that share images, also indirectly, get the same
    split; all images are then read twice."""
    test_share: float = Field(default=0.1, ge=0, le=1)
    """Share of the pairs without a given split that go to test."""
    spot_the_diff: SpotTheDiffConfig = SpotTheDiffConfig()
    """Settings of format=spot_the_diff."""

    def errors(self) -> Iterator[str]:
        if self.val_share + self.test_share > 1:
            yield f"val_share + test_share is {self.val_share + self.test_share:g}, more than 1"


class ImportJob(ImportConfig):
    """Import pairs into a data set folder."""

    source: str
    """Source to import: the folder of an official data set, a folder of images, or a file (csv, jsonl, parquet). Path
    or URI."""
    format: AnyFormat = "auto"
    """The layout of the source (docs/data.md); "auto" recognises it by the files, and fails if several match."""
    out: str
    """The data set folder to write. Path or URI."""
    max_reject_share: float = Field(default=0.05, ge=0, le=1)
    """The job fails if more than this share of the pairs is rejected."""
    workers: int = Field(default=2, ge=1)
    """Parallel import stages on Ray, one CPU each."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.source, "source")


class ValidateJob(ImportConfig):
    """Check a data set folder, or pairs that are not imported yet."""

    pairs: str
    """A data set folder, or a source that import_dataset.py accepts. Path or URI."""
    format: AnyFormat = "auto"
    """The layout; "auto" recognises it by the files, and fails if several match."""
    report: str | None = None
    """File for the result (JSON). Default: validation.json in the folder, or <file>.validation.json next to a file. The
    page with pictures has the same name with .html."""
    published: SetName | None = None
    """Data set whose published counts to compare with. Default: that of the layout, also for an imported folder."""
    pictures: int = Field(default=6, ge=0, le=100)
    """Number of pairs of each split on the page; 0: no page."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")


class RobustnessConfig(ConfigModel):
    """A perturbation of pairs, to measure robustness. All draws depend on the seed and the pair's id alone."""

    kind: Perturbation | Literal["replace_words", "swap_order"]
    """An image corruption, the content shifted, words of the captions replaced, or before and after swapped."""
    severity: int | None = Field(default=None, ge=1, le=5)
    """Severity of an image corruption: the benchmark's levels 1 to 5. Of a shift: 64ths of the shorter side, so that 2
    are two pixels of a 64x64 image."""
    which: Literal["both", "before", "after"] = "both"
    """Images to corrupt, each with its own draw."""
    share: float | None = Field(default=None, gt=0, le=1)
    """Share of words to replace, for replace_words (NAMC, table 10: 0.2, 0.4, 0.6, 0.8)."""
    splits: tuple[Split, ...] | None = None
    """Splits to perturb. Default: train for replace_words, because the captions of the other splits are the references
    for scoring (NAMC fine-tunes on the noised set); all splits otherwise."""
    keep_others: bool = True
    """Copy the pairs of the other splits unchanged; the baselines of an evaluation need the training split."""
    seed: int = Field(default=0, ge=0)
    """Seed of all draws."""

    def errors(self) -> Iterator[str]:
        image = self.kind not in ("replace_words", "swap_order")
        if image and self.severity is None:
            yield f"severity: required with kind={self.kind}"
        if self.kind == "replace_words" and self.share is None:
            yield "share: required with kind=replace_words"
        for name, used in (("severity", image), ("which", image), ("share", self.kind == "replace_words")):
            if not used and getattr(self, name) != RobustnessConfig.model_fields[name].default:
                yield f"{name}: not used with kind={self.kind}; leave it out"

    def perturbed(self) -> tuple[Split, ...]:
        """The splits to perturb."""
        if self.splits is not None:
            return self.splits
        return ("train",) if self.kind == "replace_words" else ("train", "val", "test")


class CorruptJob(RobustnessConfig):
    """Make a robustness set of a folder: a folder of the same kind, accepted by the same jobs."""

    pairs: str = Field(min_length=1)
    """Folder of pairs, or for replace_words also of procedures, to perturb. Path or URI."""
    out: str = Field(min_length=1)
    """Folder to write. Path or URI."""
    chunk_size: int = Field(default=64, ge=1, le=10_000)
    """Rows per chunk of work (one Parquet part)."""
    workers: int = Field(default=2, ge=1)
    """Parallel processes on Ray, one CPU each."""
    max_reject_share: float = Field(default=0.0, ge=0, le=1)
    """The job fails if more than this share of the rows cannot be changed."""

    def preflight(self) -> Iterator[str]:
        yield from missing(self.pairs, "pairs")
