"""From the body of a request to image files: what is refused is refused before any pixel is decoded.

Limits come from the config. The elements of JSON are counted before it is parsed and its nesting after, images are
measured by their headers.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import jiter
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from idc.config import did_you_mean
from idc.data.images import FORMAT_NAMES, ImageError, open_image
from serve.config import LimitsConfig
from serve.fetch import Fetcher
from serve.schema import ApiError, EncodedPair

_MAX_TOKENS = 200_000
"""Strings, lists and mappings of a JSON body; more cost seconds to read and are no request."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}://")

Body = TypeVar("Body", bound=BaseModel)
Source = str | UploadFile
"""An image in a request: text of a JSON body, or an uploaded file."""


def content_type(request: Request) -> str:
    """The media type of a body, lower case, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


class Intake:
    """Reads requests within the limits."""

    def __init__(self, limits: LimitsConfig):
        self.limits = limits
        self._fetcher = Fetcher(limits)

    async def json(self, request: Request, schema: type[Body]) -> Body:
        """The body as ``schema`` has it.

        Raises:
            ApiError: 415 not JSON by its header, 400 no JSON or nested too deep, 413 too long, 422 not of the schema.
        """
        kind = content_type(request)
        if kind != "application/json":
            raise ApiError(415, "not_json", f"send Content-Type: application/json, not {kind[:80] or 'none'!r}")
        _refuse_packed(request)
        value = _parsed(await request.body(), self.limits.json_depth)
        try:
            return schema.model_validate(value, strict=True)
        except ValidationError as error:
            raise faults(error, schema) from None

    async def form(self, request: Request) -> FormData:
        """The fields and files of a multipart body; close it when they are read.

        Raises:
            ApiError: 400 it is damaged, 413 it has too many parts.
        """
        _refuse_packed(request)
        most = 2 * self.limits.pairs
        parser = MultiPartParser(request.headers, request.stream(), max_files=most, max_fields=32, max_part_size=4096)
        try:
            return await parser.parse()
        except MultiPartException as error:
            if error.message.startswith("Too many files"):
                raise self.too_many_pairs() from None
            raise ApiError(400, "invalid_multipart", error.message) from None

    def too_many_pairs(self) -> ApiError:
        """The refusal of a request for more pairs than one may have."""
        most = self.limits.pairs
        return ApiError(413, "too_many_pairs", f"a request may have {most} pairs; send them in several", "pairs")

    async def pairs(self, sources: Sequence[tuple[Source, Source]], single: bool) -> list[EncodedPair | str]:
        """The image files of pairs, their headers checked; in place of a pair that is refused, why.

        Args:
            single: the request is for one pair by itself: its fields are called ``before`` and ``after``.

        Raises:
            ApiError: ``single`` and it is refused.
        """
        if single:
            ((before, after),) = sources
            return [EncodedPair(await self.image(before, "before"), await self.image(after, "after"))]

        async def pair(place: int, before: Source, after: Source) -> EncodedPair | str:
            names = f"pairs.{place}.before", f"pairs.{place}.after"
            try:
                return EncodedPair(await self.image(before, names[0]), await self.image(after, names[1]))
            except ApiError as error:
                return error.message

        return await asyncio.gather(*(pair(place, *source) for place, source in enumerate(sources)))

    async def image(self, source: Source, param: str) -> bytes:
        """An image file that was uploaded or is given as data URL, base64 or URL, its header checked.

        Raises:
            ApiError: 400 none of these, a URL that is not fetched, no image of a format that is taken, or too small;
                413 too large.
        """
        if isinstance(source, str) and _URL.match(source):
            data = await self._fetcher.get(source, param)
        elif isinstance(source, str):
            data = self._decoded(source, param)
        else:
            data = await source.read(self._most_bytes + 1)
        if len(data) > self._most_bytes:
            raise self._too_large(param)
        self._check_header(data, param)
        return data

    @property
    def _most_bytes(self) -> int:
        return int(self.limits.image_mib * 2**20)

    def _decoded(self, text: str, param: str) -> bytes:
        encoded = text
        if text[:5].lower() == "data:":
            head, comma, encoded = text.partition(",")
            if not comma or not head.lower().endswith(";base64"):
                raise ApiError(400, "invalid_data_url", f"{param}: a data URL must be data:image/...;base64,...", param)
        if len(encoded) * 3 // 4 > self._most_bytes + 3:
            raise self._too_large(param)
        try:
            return base64.b64decode("".join(encoded.split()) if "\n" in encoded else encoded, validate=True)
        except ValueError:  # binascii.Error, or letters that are not ASCII
            raise ApiError(400, "invalid_base64", f"{param}: neither a data URL nor base64", param) from None

    def _check_header(self, data: bytes, param: str) -> None:
        if not data:
            raise ApiError(400, "empty_image", f"{param}: the image is empty", param)
        try:
            with open_image(data) as image:
                width, height = image.size
        except ImageError as error:
            if error.code == "too many pixels":
                raise self._too_many_pixels(param, "more pixels than any photograph has") from None
            if error.code == "too much metadata":
                message = f"{param}: the image has too much metadata (text or a colour profile); save it without"
                raise ApiError(400, "too_much_metadata", message, param) from None
            message = f"{param}: no readable image; taken are {FORMAT_NAMES}"
            raise ApiError(400, "not_an_image", message, param) from None
        limits = self.limits
        if width * height > limits.image_pixels or max(width, height) > limits.image_side:
            raise self._too_many_pixels(param, f"{width} x {height} pixels")
        if min(width, height) < limits.image_min_side:
            message = f"{param}: {width} x {height} pixels; the shorter side must have {limits.image_min_side}"
            raise ApiError(400, "image_too_small", message, param)

    def _too_large(self, param: str) -> ApiError:
        return ApiError(413, "image_too_large", f"{param}: an image may have {self.limits.image_mib:g} MiB", param)

    def _too_many_pixels(self, param: str, found: str) -> ApiError:
        most, side = self.limits.image_pixels, self.limits.image_side
        message = f"{param}: {found}; allowed are {most:,} pixels and {side:,} a side; send a smaller copy"
        return ApiError(413, "too_many_pixels", message, param)


def _refuse_packed(request: Request) -> None:
    packing = request.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("", "identity"):
        raise ApiError(415, "packed_body", f"send the body as it is, without Content-Encoding: {packing[:80]}")


def _parsed(body: bytes, max_depth: int) -> Any:
    """The value of a JSON body. The parser itself refuses NaN, keys given twice and more than 200 nested brackets."""
    if body.count(b'"') + body.count(b"[") + body.count(b"{") + body.count(b",") > _MAX_TOKENS:
        raise ApiError(413, "json_too_long", f"the JSON has more than {_MAX_TOKENS:,} elements; send fewer pairs")
    try:
        value = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        if "recursion" not in str(error):
            raise ApiError(400, "invalid_json", f"the body is no valid JSON: {str(error)[:200]}") from None
        depth = max_depth + 1
    else:
        depth = _depth(value)
    if depth > max_depth:
        raise ApiError(400, "json_too_deep", f"the JSON is nested more than {max_depth} deep")
    return value


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def faults(error: ValidationError, schema: type[BaseModel]) -> ApiError:
    """The first faults of a body, in words; values are left out, they may be images."""
    items = error.errors(include_url=False, include_input=False, include_context=False)
    lines = []
    for item in items[:5]:
        path = ".".join(str(part)[:80] for part in item["loc"])
        if item["type"] == "extra_forbidden":
            known = list(schema.model_fields) if len(item["loc"]) == 1 else []
            lines.append(f"{path}: no such field{did_you_mean(str(item['loc'][-1])[:80], known)}")
        else:
            lines.append(f"{path}: {item['msg']}" if path else item["msg"].removeprefix("Value error, "))
    if len(items) > len(lines):
        lines.append(f"and {len(items) - len(lines)} more faults")
    param = ".".join(str(part)[:80] for part in items[0]["loc"]) or None
    return ApiError(422, "invalid_request", "; ".join(lines), param)
