"""Two folders of images, before and after, as the screenshots of two versions of a site: paired by relative name,
captioned as a table, and one accepted over the other.

Pairs whose two files are equal are not captioned: nothing changed. The others are a table in the report's folder,
captioned by :func:`idc.captioning.table.caption_rows`, so that a job that was killed continues, and Ray may do it.
"""

from __future__ import annotations

import filecmp
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from idc.captioning.table import CaptionJob, ManyPairs, caption_rows
from idc.config import ConfigModel
from idc.data import files
from idc.data.images import IMAGE_SUFFIXES
from idc.data.pipeline import run_local
from idc.data.store import Manifest, iter_rows
from idc.training.hashing import file_hash
from idc.util.option_values import DiskPath, Texts

State = Literal["changed", "new", "missing", "unsure", "failed", "unchanged"]
STATES: tuple[State, ...] = ("changed", "new", "missing", "unsure", "failed", "unchanged")
"""What a pair of files can be, in the order of the report. new, missing: only one of the folders has it."""
EQUAL = "The two files are equal."
_TABLE, _CAPTIONS = "pairs.jsonl", "captions"
"""Files below the report's folder."""
_ALL = "all"


class _TwoFolders(ConfigModel):
    before: DiskPath
    """Folder of images before the change."""
    after: DiskPath
    """Folder of images after the change, under the same names."""

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        for name in ("before", "after"):
            if not Path(folder := getattr(self, name)).is_dir():
                yield f"{name}: {folder} is not a folder; for two images leave out= away"


class FoldersJob(_TwoFolders, ManyPairs):
    """Caption what changed between the images of two folders, and write a report."""

    out: DiskPath
    """Folder of the report: page.html, summary.md for a pull request, its pictures, and the captions as a table."""
    fail_on: Literal["never", "changed", "unsure"] = Field("never", json_schema_extra={"option": "--fail-on"})
    """Exit with status 1 if anything changed (also a new or missing file); unsure: also if that could not be decided.
    Status 3: a pair could not be captioned; 2: wrong use."""
    junit: DiskPath | None = None
    """XML file with one test case a pair, as JUnit writes it: those that ``fail_on`` names are failures."""

    def errors(self) -> Iterator[str]:
        yield from super().errors()
        out = Path(self.out).absolute()
        for name in ("before", "after"):
            if Path(folder := getattr(self, name)).absolute() in (out, *out.parents):
                yield f"out: {self.out} is in the folder {folder}, whose images are compared; choose another"


class AcceptJob(_TwoFolders):
    """Copy images of the folder after over those of the folder before: the new baseline of a visual test."""

    accept: Texts = Field(min_length=1)
    """Relative names of the images, or `all`. An image that only the folder before has stays."""


@dataclass(frozen=True)
class FilePair:
    """An image of either folder or of both.

    Attributes:
        name: relative to the folders, with slashes.
        before, after: None where the folder has no such file.
        row: of the table of captions; None where nothing was to be captioned.
    """

    name: str
    before: Path | None
    after: Path | None
    row: Mapping[str, Any] | None = None

    @property
    def state(self) -> State:
        if self.before is None:
            return "new"
        if self.after is None:
            return "missing"
        if self.row is None:
            return "unchanged"
        verdict: State | None = self.row["verdict"]
        return verdict or "failed"

    @property
    def text(self) -> str:
        """What changed, in a sentence, or why that is not known."""
        sentence = {"new": "A new file.", "missing": "The file is gone."}.get(self.state)
        if sentence is not None:
            return sentence
        if self.row is None:
            return EQUAL
        text = str(self.row["caption"] or self.row["error"])
        for path in filter(None, (self.before, self.after)):
            text = text.replace(str(path.absolute()), self.name)
        return text

    def fails(self, fail_on: str) -> bool:
        """Whether it makes a job of this setting fail."""
        changed = self.state in ("changed", "new", "missing")
        return (fail_on != "never" and changed) or (fail_on == "unsure" and self.state == "unsure")


def caption_folders(job: FoldersJob, run: Callable[..., Manifest] = run_local, local: bool = True) -> list[FilePair]:
    """The pairs of both folders by their names, captioned; ``run`` and ``local`` as of
    :func:`~idc.captioning.table.caption_rows`.

    Raises:
        ValueError: neither folder has an image, or as of that function.
    """
    pairs = file_pairs(job.before, job.after)
    if not pairs:
        raise ValueError(f"{job.before} and {job.after} have no images")
    rows = [row for pair in pairs if (row := _table_row(pair))]
    if not rows:
        return pairs
    Path(job.out).mkdir(parents=True, exist_ok=True)
    table, captions = Path(job.out) / _TABLE, Path(job.out) / _CAPTIONS
    with files.locate(table).replacing() as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in rows).encode())
    settings = {name: getattr(job, name) for name in ManyPairs.model_fields}
    many = CaptionJob(**settings, input=str(table), out=str(captions))
    caption_rows(many, run, local, overwrite="others")
    captioned = {row["pair_id"]: row for row in iter_rows(captions)}
    return [FilePair(pair.name, pair.before, pair.after, captioned.get(pair.name)) for pair in pairs]


def accept(job: AcceptJob) -> list[str]:
    """Copy the named images of the folder after over those of the folder before, each as a whole: one that is killed
    leaves the old file or the new one. Returns the names of those that differed.

    Raises:
        ValueError: the folder after has no image of such a name.
    """
    news = _images_of(job.after)
    names = list(news) if _ALL in job.accept else list(dict.fromkeys(job.accept))
    if unknown := [name for name in names if name not in news]:
        listed = ", ".join(map(repr, unknown))
        raise ValueError(f"accept: {job.after} has no image {listed}; give names relative to it, or all")
    copied = []
    for name in names:
        old = Path(job.before, name)
        if old.is_file() and filecmp.cmp(old, news[name], shallow=False):
            continue
        old.parent.mkdir(parents=True, exist_ok=True)
        with files.locate(old).replacing() as stream:
            stream.write(news[name].read_bytes())
        copied.append(name)
    return copied


def file_pairs(before: str, after: str) -> list[FilePair]:
    """The images of two folders by their relative names, not captioned."""
    olds, news = _images_of(before), _images_of(after)
    return [FilePair(name, olds.get(name), news.get(name)) for name in sorted(olds.keys() | news.keys())]


def _images_of(folder: str) -> dict[str, Path]:
    """Relative name -> file, of the images below a folder; hidden ones, and links that lead out of it, are left out."""
    root = files.locate(folder)
    names = (root.relative(file.path) for file in root.scan().files)
    return {
        name: path
        for name in names
        if (path := Path(folder, name)).suffix.lower() in IMAGE_SUFFIXES
        and not any(part[0] == "." for part in name.split("/"))
        and path.resolve().is_relative_to(Path(folder).resolve())
    }


def _table_row(pair: FilePair) -> dict[str, str] | None:
    """The row of a pair that is to be captioned: of two files that differ. Their hashes tell its caption from that of
    other images of the same names."""
    if pair.before is None or pair.after is None:
        return None
    before, after = file_hash(pair.before), file_hash(pair.after)
    if before == after:
        return None
    paths = {"before": str(pair.before.absolute()), "after": str(pair.after.absolute())}
    return {"pair_id": pair.name, **paths, "hashes": f"{before} {after}"}
