"""Apply a captioner to rows: decode their images, batch those with equal options, describe them.

Whatever captions does it here. A row whose images cannot be read, or that the captioner refuses, has a :class:`Fault`
in place of a description and does not affect the others. Imports no torch.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from pydantic import Field, model_validator

from idc.captioning.contract import Captioner, Description, SearchOptions
from idc.captioning.counts import counts_of
from idc.captioning.criteria import criteria_text
from idc.captioning.documents import DocumentPair
from idc.captioning.loading import LoadConfig
from idc.captioning.objects_config import ObjectsConfig
from idc.captioning.region_of_interest import Area, Box, areas_of, region_from
from idc.config import missing
from idc.data.files import Reader
from idc.data.frames import frames_to_describe, has_frames
from idc.data.image_cells import cell_bytes, cell_name
from idc.data.images import MAX_PIXELS, ImageError, decode_image, on_one_ground
from idc.data.pdf import Document, is_pdf
from idc.systems import untrained_captioner
from idc.util.option_values import Names

if TYPE_CHECKING:
    from idc.data.pipeline import Batch

Item = TypeVar("Item")


class CaptionSettings(LoadConfig):
    """How pairs are captioned."""

    beams: int | None = Field(default=None, ge=1)
    """Beams of the search, 1 is greedy. Default: the number that the artifact was validated with."""
    candidates: int = Field(default=1, ge=1)
    """Maximum number of captions of a pair, best first."""
    ignore: tuple[str | Box, ...] = ()
    """Parts in which differences do not count: boxes left,top,right,bottom in pixels of the image after, or, if none of
    the four numbers is above 1, as shares of its width and height (`ignore=0,0,1,0.1`;
    `ignore=[[10,20,200,80],[0,300,640,360]]`); or image files, white where nothing counts, stretched to the image
    after. As an option `--ignore`, it may be repeated."""
    only: tuple[str | Box, ...] = ()
    """Parts outside of which differences do not count, as boxes or masks as in ignore. Default: the whole image."""

    counts: Names = ()
    """What counts as a change, by names: presets (`scene`: people, vehicles and things; `traffic`, `content`, `layout`,
    `design`, `document`) or YAML files of such; kinds (`objects`, `people`, `vehicles`, `words`, `numbers`,
    `timestamps`, `layout`, `style`, `colour`, `images`, `light`, `camera`); classes of objects (`person,car`); the
    smallest size, as a share (`0.5%`) or a longer side (`20px`). What is left out is counted and said. `objects` and
    vision-language models read it. Default: everything."""
    criteria: str | None = Field(default=None, min_length=1)
    """The same in own words, which a vision-language model is told in its prompt; or one of the 51 contexts of C3-Bench
    by its name, such as `c3:parking_lot`."""

    @model_validator(mode="before")
    @classmethod
    def _parts(cls, values: Any) -> Any:
        named = {name: values[name] for name in ("ignore", "only") if name in values}
        for name, value in named.items():
            try:
                named[name] = areas_of(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return values | named

    def search_options(self) -> SearchOptions:
        """The options of the search, without change maps; ValueError as of :class:`SearchOptions`."""
        counts = counts_of(self.counts, self.objects.names)
        return SearchOptions(self.beams, self.candidates, counts=counts, criteria=self.criteria)

    def errors(self) -> Iterator[str]:
        for field, make in (
            ("beams", partial(SearchOptions, self.beams, self.candidates)),
            ("counts", partial(counts_of, self.counts, self.objects.names)),
            ("criteria", partial(criteria_text, self.criteria or "")),
        ):
            try:
                make()
            except ValueError as error:
                yield f"{field}: {error}"

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        for field in ("ignore", "only"):
            for part in getattr(self, field):
                yield from missing(part if isinstance(part, str) else None, field)


@dataclass(frozen=True, eq=False)
class Pixels:
    """The decoded images of a pair, uint8 RGB (H, W, 3). RGBA that is given is laid on one ground for both.

    Attributes:
        region_of_interest: bool (H, W) over the image after, where differences count; None for all of it.
        note: on frames that are not among them, for the warning.
        documents: whose first pages they are; None of images.
    """

    before: np.ndarray
    after: np.ndarray
    region_of_interest: np.ndarray | None = None
    note: str | None = None
    documents: DocumentPair | None = None

    def __post_init__(self) -> None:
        for name, image in zip(("before", "after"), on_one_ground(self.before, self.after), strict=True):
            object.__setattr__(self, name, image)

    def counting(self, ignore: Sequence[Area], only: Sequence[Area]) -> Pixels:
        """The pair with its region of interest, or the ValueError of :func:`region_from`."""
        return replace(self, region_of_interest=region_from(self.after.shape[:2], ignore, only))

    @property
    def images(self) -> tuple[np.ndarray, np.ndarray]:
        return self.before, self.after

    def shown(self, page: int | None) -> Pixels:
        """The images on which the boxes of claims are drawn: of documents the page of the first claim, None without
        claims."""
        if self.documents is None:
            return self
        return Pixels(*self.documents.images(page), documents=self.documents)


@dataclass(frozen=True)
class Fault:
    """The reason why a pair has no description: the error of an image (``role`` is ``before`` or ``after``, ``name``
    how messages refer to it), or of both together (``pair``)."""

    role: str
    name: str
    error: ImageError

    def __str__(self) -> str:
        return f"{self.role}: {self.error}"

    def named(self) -> str:
        """As ``str``, with the name of the image: ``before: missing file: a.png``."""
        return ": ".join(filter(None, (self.role, self.error.code, self.name, self.error.detail)))


class CaptionedPair(NamedTuple):
    """The result of one row: its images, or why it has no description; the description; the duration of the model's
    call for the row's batch, and the number of pairs in that batch."""

    pixels: Pixels | Fault
    description: Description | None = None
    seconds: float = 0.0
    batch: int = 0


def decode_pair(before: Any, after: Any, reader: Reader | None = None, max_pixels: int = MAX_PIXELS) -> Pixels | Fault:
    """Decode both images, which are encoded, or with a ``reader`` cells that hold or name them; uses no model, so it
    may run in another thread."""
    decoded = []
    for role, cell in (("before", before), ("after", after)):
        try:
            decoded.append(decode_file(cell if reader is None else cell_bytes(cell, reader), max_pixels))
        except ImageError as error:
            return Fault(role, cell_name(cell), error)
    try:
        return pixels_of(decoded[0], decoded[1], max_pixels)
    except ImageError as error:
        return Fault("pair", cell_name(after), error)


class DecodedFile(NamedTuple):
    """A file (empty: an image from elsewhere), and its image, RGBA where pixels are transparent; or a PDF file."""

    data: bytes
    content: np.ndarray | Document


def decode_file(data: bytes, max_pixels: float = MAX_PIXELS) -> DecodedFile:
    """ImageError as of :func:`idc.data.images.decode_image` or :class:`~idc.data.pdf.Document`."""
    content = Document(data, max_pixels) if is_pdf(data) else decode_image(data, max_pixels, alpha=True)
    return DecodedFile(data, content)


def pixels_of(before: DecodedFile, after: DecodedFile, max_pixels: float = MAX_PIXELS) -> Pixels:
    """The pair of two files, or its frames that are described, if an image has several. ImageError: of documents and
    frames, or one of the files alone is a document."""
    first, second = before.content, after.content
    if isinstance(first, Document) and isinstance(second, Document):
        documents = DocumentPair(first, second)
        return Pixels(*documents.images(), documents=documents)
    if isinstance(first, Document) or isinstance(second, Document):
        raise ImageError("not comparable", "a document and an image; give two documents, or the page as an image")
    pixels = Pixels(first, second)
    return with_frames(pixels, before.data, after.data, max_pixels) if before.data and after.data else pixels


def with_frames(pixels: Pixels, before: bytes, after: bytes, max_pixels: float = MAX_PIXELS) -> Pixels:
    """A pair as it was decoded from these bytes, or its frames that are described, if an image has several."""
    return described_frames(before, after, max_pixels) if has_frames(before) or has_frames(after) else pixels


def described_frames(before: bytes, after: bytes, max_pixels: float = MAX_PIXELS) -> Pixels:
    """The frames of two images that are described; ImageError as of :func:`frames_to_describe`."""
    return Pixels(**frames_to_describe(before, after, max_pixels)._asdict())


def describe_batch(
    captioner: Captioner,
    images: Sequence[Pixels | Fault],
    options: Sequence[SearchOptions],
    objects: ObjectsConfig | None = None,
) -> list[CaptionedPair]:
    """Describe decoded pairs, each with its own options; pairs with equal ones go through the model together. What
    ``objects`` says is not among it (:func:`with_objects`), but for documents, which it alone compares. A refused
    option or pair is a ValueError."""
    results = [CaptionedPair(pixels) for pixels in images]
    groups: dict[SearchOptions, list[int]] = defaultdict(list)
    for index, (pixels, option) in enumerate(zip(images, options, strict=True)):
        if isinstance(pixels, Fault):
            continue
        option.check(captioner)
        if pixels.documents is None:
            groups[option].append(index)
        else:
            started = time.perf_counter()
            description = pixels.documents.describe(option, pixels.region_of_interest, objects)
            pages = pixels.shown(description.claims[0].page if description.claims else None)
            results[index] = CaptionedPair(pages, description, time.perf_counter() - started, 1)
    for option, indices in groups.items():
        pairs = [pixels for pixels in map(images.__getitem__, indices) if isinstance(pixels, Pixels)]
        befores, afters = ([getattr(pair, role) for pair in pairs] for role in ("before", "after"))
        region_of_interest = [pair.region_of_interest for pair in pairs]
        started = time.perf_counter()
        descriptions = captioner.describe(
            befores,
            afters,
            option,
            region_of_interest=None if all(part is None for part in region_of_interest) else region_of_interest,
        )
        seconds = time.perf_counter() - started
        for index, pair, described in zip(indices, pairs, descriptions, strict=True):
            notes = (pair.note, _nearly_black(*pair.images))
            description = replace(described, note=" ".join(filter(None, notes)) or None)
            results[index] = CaptionedPair(images[index], description, seconds, len(indices))
    return results


def describe_each(
    captioner: Captioner,
    images: Sequence[Pixels | Fault],
    options: SearchOptions,
    objects: ObjectsConfig | None = None,
) -> Iterator[CaptionedPair]:
    """As :func:`describe_batch` with equal options, pair by pair, and with what ``objects`` of these settings (None:
    nobody) says where the captioner is not familiar with the pair. If the captioner refuses one of the pairs, the batch
    is halved until its result alone is the :class:`Fault`. Other errors than ValueError are not of a pair, but of the
    machine, the endpoint or the program."""
    try:
        results = describe_batch(captioner, images, [options] * len(images), objects)
    except ValueError as error:
        if len(images) == 1:
            yield CaptionedPair(Fault("pair", "", ImageError("not captioned", str(error))))
            return
        half = len(images) // 2
        for part in (images[:half], images[half:]):
            yield from describe_each(captioner, part, options, objects)
        return
    for result in results:
        if objects is None or result.description is None or isinstance(result.pixels, Fault):
            yield result
        else:
            yield result._replace(description=with_objects(result.description, result.pixels, options, objects))


def _nearly_black(before: np.ndarray, after: np.ndarray) -> str | None:
    """A sentence on images of which the brightest pixel has the values of 12 bits in a file of 16."""
    largest = max(before.max(), after.max())
    if not 0 < largest < 16:
        return None
    return (
        f"Both images are nearly black: no value is above {largest} of 255. Cameras and satellites store 10 or 12 bits "
        "in files of 16, of which the upper 8 are used: scale both images alike first, as by "
        "gdal_translate -scale 0 4095 0 65535."
    )


def lacks_objects(description: Description, always: bool = False) -> bool:
    """Whether a description is not that of ``objects``, which is to speak too: its captioner is not familiar with the
    pair, or ``always``."""
    return description.claims is None and (always or description.familiar is False)


def with_objects(
    description: Description,
    pixels: Pixels,
    options: SearchOptions = SearchOptions(),
    objects: ObjectsConfig | None = None,
    always: bool = False,
) -> Description:
    """The description with what ``objects`` says, if it :func:`lacks_objects`."""
    if not lacks_objects(description, always):
        return description
    [other] = untrained_captioner(objects).describe(
        [pixels.before],
        [pixels.after],
        SearchOptions(counts=options.counts),
        region_of_interest=[pixels.region_of_interest],
    )
    return replace(description, regions=other.regions, claims=other.claims, objects_text=other.objects_text)


def describe_rows(
    captioner: Captioner,
    rows: Iterable[Item],
    decode: Callable[[Item], Pixels | Fault],
    pool: Executor,
    batch_size: int,
    options: SearchOptions = SearchOptions(),
    objects: ObjectsConfig | None = None,
) -> Iterator[tuple[Item, CaptionedPair]]:
    """Describe rows batch by batch, in their order; while the model works on one batch, the next one is decoded. The
    result of a pair that the captioner refuses is a :class:`Fault`.

    Args:
        rows: may be endless; read at most one batch ahead.
        decode: decodes the images of a row; called in ``pool``.
        batch_size: rows per batch, unreadable ones included.
        objects: as of :func:`describe_each`.
    """
    source = iter(rows)
    waiting: deque[tuple[list[Item], list[Future[Pixels | Fault]]]] = deque()
    while True:
        if batch := list(islice(source, batch_size)):
            waiting.append((batch, [pool.submit(decode, row) for row in batch]))
        while len(waiting) > (1 if batch else 0):
            done, decoded = waiting.popleft()
            images = [future.result() for future in decoded]
            yield from zip(done, describe_each(captioner, images, options, objects), strict=True)
        if not batch:
            return


class BatchCaptioner:
    """A captioner with the threads that decode for it: the common part of the stages that caption rows.

    Args:
        batch_size: pairs per batch of the model; default: all rows that it is called with.
        reader: reads the cells that name an image; default: cells hold the encoded image.
        max_pixels: larger images are refused before they are decoded.
        readers: threads.
        objects: as of :func:`describe_each`.
        maps: also compute change maps, if the captioner has them.
        ignore, only: the part of every pair that counts (:func:`idc.captioning.region_of_interest.region_from`).
    """

    def __init__(
        self,
        load: Callable[[], Captioner],
        options: SearchOptions = SearchOptions(),
        objects: ObjectsConfig | None = None,
        batch_size: int | None = None,
        reader: Reader | None = None,
        max_pixels: int = MAX_PIXELS,
        readers: int = 2,
        maps: bool = False,
        ignore: Sequence[Area] = (),
        only: Sequence[Area] = (),
    ) -> None:
        self._captioner = load()
        if maps and self._captioner.can("map"):
            options = replace(options, change_map=True)
        options.check(self._captioner)
        self._options, self._objects, self._batch_size = options, objects, batch_size
        self._reader, self._max_pixels, self._ignore, self._only = reader, max_pixels, ignore, only
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="decode")

    def __call__(self, batch: Batch) -> Iterator[tuple[int, CaptionedPair]]:
        """Positions of the rows without an error, and their results."""
        from idc.data.pipeline import good_rows, num_rows  # which one pair does not need

        decode = lambda i: self._decode(batch["before"][i], batch["after"][i])  # noqa: E731
        size = self._batch_size or max(1, num_rows(batch))
        return describe_rows(self._captioner, good_rows(batch), decode, self._pool, size, self._options, self._objects)

    def _decode(self, before: Any, after: Any) -> Pixels | Fault:
        pixels = decode_pair(before, after, self._reader, self._max_pixels)
        if isinstance(pixels, Fault):
            return pixels
        try:
            return pixels.counting(self._ignore, self._only)
        except ValueError as error:  # a box may be outside of some of the images alone
            return Fault("pair", "", ImageError("not captioned", str(error)))
