"""Recognises the format of a source by its files, for ``format=auto``.

Official layouts are recognised by the names of their annotation files and, where several data sets use the same names
(``train.json``, ``splits.json``), by the keys in them. They come before the general formats (a folder of image pairs,
Parquet files), because the images of many official layouts form such a folder too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TypeVar

from idc.config import ConfigModel, arguments
from idc.data import files
from idc.data.config import Format, ImportJob, SpotTheDiffConfig, ValidateJob
from idc.data.images import IMAGE_SUFFIXES
from idc.data.object_store import StorageError, first_look
from idc.data.readers.annotations import Annotations
from idc.data.readers.folder import role_and_key
from idc.data.readers.question_sets import CHECKLISTS
from idc.data.store import MANIFEST

_HEAD = 64 * 1024
"""Bytes of an annotation file that are searched for its keys."""
_TABLES: dict[str, Format] = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl"}
_WORKBOOKS: dict[str, Format] = {".xlsx": "csv", ".xls": "csv", ".ods": "csv"}
"""Refused by the table's reader, which names the remedy."""
_DIFFSPOT = "mutation_dicts_json"
"""The column by which DiffSpot's Parquet is recognised."""
_FILES: dict[str, Format] = {**_TABLES, **_WORKBOOKS, ".json": "jsonl", ".parquet": "parquet"}


@dataclass(frozen=True)
class Layout:
    """A format that matches the files of a source.

    Attributes:
        files: the files it was recognised by.
        settings: sections of the config that go with the format.
        source: the file to read, if it is not the folder itself.
    """

    format: Format
    files: str
    settings: Mapping[str, ConfigModel] = field(default_factory=dict)
    source: str | None = None

    def __str__(self) -> str:
        sections = {name: section.model_dump(exclude_unset=True) for name, section in self.settings.items()}
        return f"{' '.join(arguments({'format': self.format, **sections}))} ({self.files})"


Job = TypeVar("Job", ImportJob, ValidateJob)


def with_layout(job: Job, path: str | files.Location) -> tuple[Job, Format]:
    """The job with the layout of its source in place of ``auto``, and that layout.

    Raises:
        ValueError: as :func:`find_layout`.
    """
    if job.format != "auto":
        return job, job.format
    layout = find_layout(path, job.follow_links)
    return job.model_copy(update={"format": layout.format, **layout.settings}), layout.format


def find_layout(path: str | files.Location, follow_links: bool = False) -> Layout:
    """The layout of a source.

    Args:
        follow_links: also by the files in folders outside that links in it lead to.

    Raises:
        ValueError: none matches, or several do; the message names them.
    """
    source = files.locate(path)
    if not first_look(source.exists, str(path)):
        raise ValueError(f"{path}: there is no such file or folder")
    if not source.is_folder():
        return _of_file(source)
    fitting = list(_official(Annotations(source))) or list(_general(source, follow_links))
    if not fitting and (source / MANIFEST).exists():
        raise ValueError(f"{path} is a data set folder already; all jobs take it as it is")
    if not fitting and (outside := source.scan(follow_links).outside):
        raise ValueError(
            f"{path}: {outside[0]} is a link to a folder that lies elsewhere; follow_links=true follows it"
        )
    if not fitting:
        raise ValueError(
            f"{path}: no format matches its files. Put the images into before/ and after/ under the same names, "
            "name them x_before.png and x_after.png, or give format= (docs/data.md)"
        )
    if len(fitting) > 1:
        raise ValueError(f"{path}: several formats match its files, give one of: {'; '.join(map(str, fitting))}")
    if fitting[0].source is not None:
        raise ValueError(f"{path} is a folder with a table; give the table itself: {source / fitting[0].source}")
    return fitting[0]


def _of_file(file: files.Location) -> Layout:
    suffix = PurePosixPath(file.name).suffix.lower()
    if suffix not in _FILES:
        raise ValueError(f"{file}: no format has the suffix {suffix!r}; give format= (csv, jsonl, parquet, ...)")
    return Layout(_of_parquet(file) if suffix == ".parquet" else _FILES[suffix], file.name)


def _of_parquet(file: files.Location) -> Format:
    """The data set's format by the columns; a file that cannot be read is left to the reader, which says why."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open() as stream:
            return "diffspot" if _DIFFSPOT in pq.read_schema(stream).names else "parquet"
    except pa.ArrowException:
        return "parquet"


# ------------------------------------------------------------------------------------------------ official layouts


def _official(annotations: Annotations) -> Iterator[Layout]:
    if name := _clevr_change(annotations):
        yield Layout("clevr_change", f"splits.json, {name}")
    if annotations.find("split.json") and (name := annotations.find("captions.json", "bef", "aft")):
        yield Layout("clevr_dc", f"split.json, {name}")
    if annotations.find("change_multi_captions.json"):
        multi = {"spot_the_diff": SpotTheDiffConfig(protocol="multi")}
        yield Layout("spot_the_diff", "change_multi_captions.json", multi)
    if name := _split_files(annotations, ("img_id", "sentences"), "", "annotations/", "data/annotations/"):
        yield Layout("spot_the_diff", name, {"spot_the_diff": SpotTheDiffConfig(protocol="single")})
    if name := _split_files(annotations, ("img0", "img1", "sents"), "", "dataset/adobe/", "data/"):
        yield Layout("image_editing_request", name)
    if name := _birds_table(annotations):
        yield Layout("birds_to_words", name)
    if name := annotations.find("LevirCCcaptions.json"):
        yield Layout("levir", name)
    for subset in ("real", "render"):
        if name := _split_files(annotations, ("before", "after", "captions"), f"{subset}/"):
            yield Layout("omnidiff", name)
            break
    if name := annotations.find("seeds.json"):
        yield Layout("instruct_pix2pix", name)
    if name := annotations.find(*(f"{part}_questions.json" for part in ("Train", "Val", "Test", "Test2"))):
        yield Layout("cdvqa", name)
    if name := _split_files(annotations, ("question", "img_id", "answer"), "", "json/", "annotations/"):
        yield Layout("qag360k", name)
    if name := annotations.find(*CHECKLISTS):
        yield Layout("vidic", name)


def _clevr_change(annotations: Annotations) -> str | None:
    """The file that identifies CLEVR-Change; ``splits.json`` alone is in Spot-the-Diff's multi-change layout too."""
    if not annotations.find("splits.json"):
        return None
    for captions in ("change_captions.json", "no_change_captions.json"):
        if annotations.find(captions) and "CLEVR_" in _head(annotations, captions):
            return captions
    if name := annotations.find("type_mapping.json", "change_captions_by_IOU.json"):
        return name
    images = (annotations.root / "images").list_files()
    return next((f"images/{info.base_name}" for info in images if info.base_name.startswith("CLEVR_default_")), None)


def _split_files(annotations: Annotations, keys: tuple[str, ...], *folders: str) -> str | None:
    try:
        names = annotations.split_files(*folders).values()
    except StorageError:
        raise
    except ValueError:
        return None
    text = "".join(_head(annotations, name) for name in names)
    return ", ".join(names) if all(re.search(rf'"{key}"\s*:', text) for key in keys) else None


def _birds_table(annotations: Annotations) -> str | None:
    names = [info.base_name for info in annotations.root.list_files()]
    return next((n for n in names if n.endswith(".tsv") and "img1ObservationURL" in _head(annotations, n)), None)


def _head(annotations: Annotations, name: str) -> str:
    return _begin(annotations.root / name).decode("utf-8", "replace")


# ------------------------------------------------------------------------------------------------- general formats


def _general(root: files.Location, follow_links: bool) -> Iterator[Layout]:
    inside = [root.relative(file.path) for file in root.scan(follow_links).files]
    names = [PurePosixPath(name) for name in inside if not any(part[:1] in "._" for part in name.split("/"))]
    roles = {role_and_key(name)[0]: name for name in reversed(names) if name.suffix.lower() in IMAGE_SUFFIXES}
    if "before" in roles and "after" in roles:
        yield Layout("folder", f"{roles['before']}, {roles['after']}")
    top = [name for name in names if name.parent == PurePosixPath()]
    if MANIFEST not in inside and (part := next((n for n in top if n.suffix == ".parquet"), None)):
        yield Layout(_of_parquet(root / str(part)), str(part))
    for table in top:
        if format := _TABLES.get(table.suffix.lower()):
            first = _begin(root / str(table)).partition(b"\n")[0]
            if b"before" in first and b"after" in first:
                yield Layout(format, str(table), source=str(table))


def _begin(file: files.Location) -> bytes:
    with file.open() as stream:
        return stream.read(_HEAD)
