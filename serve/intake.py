"""Parse: the body of a request of either interface becomes a :class:`ParsedRequest` (a conversation in
:mod:`serve.conversation`). No image is read here."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import UploadFile

from idc.captioning.counted import Box
from serve.backend import Options, RequestDialogue
from serve.errors import ApiError
from serve.schema import CaptionForm

Source = str | UploadFile
"""An image in a request: a data URL, or an uploaded file."""


@dataclass(frozen=True)
class PairSource:
    """The two images of a pair as the client sent them.

    Attributes:
        fields: how error messages refer to the two images.
        dialogue: the text of the conversation in which they were sent, if it has any.
    """

    before: Source
    after: Source
    fields: tuple[str, str] = ("before", "after")
    dialogue: RequestDialogue | None = None


@dataclass(frozen=True)
class ParsedRequest:
    """A parsed request for captions.

    Attributes:
        model: name of the requested model; None for the default.
        single: whether the request has one pair by itself: if it cannot be captioned, the request fails.
        stream: whether to answer by server-sent events.
        include_usage: whether a streamed chat completion ends with its usage.
        stop: a chat completion's texts end before the first of these.
        ignore, only: parts of the images after that do not count, and that alone count.
    """

    model: str | None
    options: Options
    pairs: tuple[PairSource, ...]
    single: bool
    stream: bool
    include_usage: bool = False
    stop: tuple[str, ...] = ()
    ignore: tuple[Box | Source, ...] = ()
    only: tuple[Box | Source, ...] = ()


def of_form(form: CaptionForm) -> ParsedRequest:
    """The job of a form: as many images before as after, in the same order.

    Raises:
        ApiError: 422, the numbers differ, or there are fewer beams than candidates.
    """
    before, after = form.before, form.after
    if len(before) != len(after):
        counts = f"{len(before)} files before and {len(after)} after"
        raise ApiError(422, "unequal_pairs", f"{counts}; send the same number of each", "after")
    if form.beams is not None and form.beams < (least := form.candidates):
        message = f"beams: {form.beams} is less than candidates={least}; set beams={least} or leave it out"
        raise ApiError(422, "too_few_beams", message, "beams")
    single = len(before) == 1
    pairs = tuple(
        PairSource(*files, ("before", "after") if single else (f"pairs.{index}.before", f"pairs.{index}.after"))
        for index, files in enumerate(zip(before, after, strict=True))
    )
    options = Options(form.beams, form.candidates, form.change_map, form.objects, form.polygons)
    return ParsedRequest(form.model, options, pairs, single, form.stream, ignore=form.ignore, only=form.only)
