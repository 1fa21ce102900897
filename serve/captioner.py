"""An artifact of any system as the captioner of a server: decoded images in, captions, confidences and PNGs out. No
Ray."""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from idc.captioning.apply import (
    CaptionedPair,
    Fault,
    Item,
    Pixels,
    describe_batch,
    lacks_objects,
    with_objects,
)
from idc.captioning.class_counts import count_classes
from idc.captioning.contract import MAP_SIDE, Description, SearchOptions, draw_map, equal_outside, require
from idc.captioning.loading import DEFAULTS, AutoCaptioner, CaptionerLoader, LoadConfig
from idc.data.images import encode_png, resize_image
from idc.endpoint.chat_endpoint import EndpointError, NotAnswered, RequestRefused
from serve.backend import ModelStatus, Options, PairResult, fault_of
from serve.decoding import DecodedPair
from serve.log import log

if TYPE_CHECKING:
    from idc.geo.georeferenced_pair import PixelGrid

_REFUSED = (
    "messages: the language model refuses this request: the conversation with its images may be too long for it, or "
    "has something in it that it does not take"
)


class ServedCaptioner:
    """A loaded artifact.

    Args:
        artifact, load, gpus, threads: as :class:`idc.captioning.loading.CaptionerLoader`.

    Raises:
        ValueError: it is not the artifact of a captioner.
    """

    def __init__(self, artifact: str, load: LoadConfig = DEFAULTS, gpus: float = 0.0, threads: int | None = None):
        self.captioner, self._objects = CaptionerLoader(artifact, load, gpus, threads)(), load.objects
        self._can_map, self._can_answer = (name in self.captioner.capabilities for name in ("map", "answer"))

    def status(self, name: str, version: str) -> ModelStatus:
        """The captioner as clients see it under this name."""
        trained_on = None if isinstance(self.captioner, AutoCaptioner) else self.captioner.trained_on
        return ModelStatus(name, version, None, trained_on, self._can_map, self._can_answer)

    def warm_up(self) -> None:
        """Caption a pair with a change, so that all is loaded and allocated before the first request, also the detector
        and the reader of words."""
        tiles = np.random.default_rng(0).integers(60, 200, (12, 16, 3), np.uint8)
        before = resize_image(tiles, (240, 320))
        after = before.copy()
        after[80:160:4, 60:160] = 255
        options, pair = Options(objects="always"), DecodedPair(Pixels(before, after))
        [result] = self.caption([pair], options)
        self.add_objects([(pair, result)], options)

    def unsupported(self, options: Options) -> str | None:
        """The reason why pairs cannot be captioned with these options, or None."""
        try:
            _search(options, options.polygons == "always").check(self.captioner)
        except ValueError as error:
            return str(error)
        return None

    def alone(self, pair: DecodedPair) -> bool:
        """Whether a pair gains nothing from others in its batch, which it would have to wait for."""
        answered = pair.dialogue is not None and self._can_answer
        return not (self.captioner.gains_from_batch or answered or isinstance(pair.pixels, Fault))

    def caption(self, pairs: Sequence[DecodedPair], options: Options) -> list[PairResult]:
        """One result per pair, of any sizes; a faulty pair does not affect the others. What ``objects`` says of them
        is not among it (:meth:`add_objects`)."""
        results: dict[int, PairResult] = {}
        images: dict[int, DecodedPair] = {}
        asked: dict[int | None, dict[int, DecodedPair]] = defaultdict(dict)
        for index, pair in enumerate(pairs):
            if isinstance(pair.pixels, Fault):
                results[index] = PairResult(error=str(pair.pixels))
            elif pair.dialogue is None or not self._can_answer:
                images[index] = pair
            elif options.search.candidates > 1:
                why = f"n: a model that reads the text gives one answer, not {options.search.candidates}; leave n out"
                results[index] = PairResult(error=why)
            elif fault := fault_of(pair.dialogue.turns):
                results[index] = PairResult(error=f"messages: {fault}")
            else:
                asked[pair.dialogue.max_tokens][index] = pair
        results |= _each(images, partial(self._captioned, options=options), "pair: not captioned")
        for max_tokens, group in asked.items():
            results |= _each(group, partial(self._answered, max_tokens=max_tokens), "messages")
        return [results[index] for index in range(len(pairs))]

    def lacks_objects(self, result: PairResult, options: Options) -> bool:
        """Whether a result needs :meth:`add_objects`."""
        if result.description is None or options.objects == "never":
            return False
        return lacks_objects(result.description, always=options.objects == "always")

    def add_objects(self, described: Sequence[tuple[DecodedPair, PairResult]], options: Options) -> list[PairResult]:
        """The results of pairs that lack it with what ``objects`` says of them: in seconds each."""
        search = _search(options, polygons=False)

        def add(items: Sequence[Any]) -> list[PairResult]:
            added = [
                with_objects(each.description, pair.pixels, search, self._objects, always=True) for pair, each in items
            ]
            return [replace(each, description=text) for (_, each), text in zip(items, added, strict=True)]

        return [*_each(dict(enumerate(described)), add, "pair: not captioned").values()]

    def _captioned(self, pairs: Sequence[DecodedPair], options: Options) -> list[PairResult]:
        grids = [pair.grid if self._can_map else None for pair in pairs]
        each = [_search(options, grid is not None) for grid in grids]
        described = describe_batch(self.captioner, [pair.pixels for pair in pairs], each)
        return [captioned(result, options, grid) for result, grid in zip(described, grids, strict=True)]

    def _answered(self, pairs: Sequence[DecodedPair], max_tokens: int | None) -> list[PairResult]:
        """The answers in dialogues with one maximal length."""
        captioner = require(self.captioner, "answer")
        images = [pair.pixels for pair in pairs if isinstance(pair.pixels, Pixels)]
        befores = [equal_outside(pixels.before, pixels.after, pixels.region_of_interest) for pixels in images]
        afters = [pixels.after for pixels in images]
        turns, on_text = [pair.dialogue.turns for pair in pairs if pair.dialogue], [pair.on_text for pair in pairs]
        started = perf_counter()
        answers = captioner.answer(
            befores, afters, turns, max_tokens=max_tokens, on_text=on_text if any(on_text) else None
        )
        ms = 1000 * (perf_counter() - started)
        return [PairResult(answer=answer, model_ms=ms, batch=len(pairs)) for answer in answers]


def _each(
    pairs: dict[int, Item], run: Callable[[Sequence[Item]], list[PairResult]], prefix: str
) -> dict[int, PairResult]:
    """The results of pairs by index; if the model fails for all together, each is run alone."""
    try:
        return dict(zip(pairs, run([*pairs.values()]), strict=True))
    except Exception as error:
        if len(pairs) == 1:
            return dict.fromkeys(pairs, _failed(error, prefix))
    return {index: result for index in pairs for result in _each({index: pairs[index]}, run, prefix).values()}


def _failed(error: Exception, prefix: str) -> PairResult:
    """The result of a pair for which the captioner raised: the reason, of a ValueError; others are for the log. Clients
    see no address of an endpoint."""
    if isinstance(error, ValueError):
        return PairResult(error=f"{prefix}: {error}")
    if isinstance(error, RequestRefused):
        log(event="endpoint_refused", error=str(error))
        return PairResult(error=_REFUSED)
    if isinstance(error, EndpointError):
        log(event="endpoint_failed", error=str(error))
        if isinstance(error, NotAnswered) and error.timed_out:
            return PairResult(error="the language model did not answer in time", status=504)
        if isinstance(error, NotAnswered) and error.status in (429, 503):
            return PairResult(error="the language model is busy; try again", status=503)
        return PairResult(error="the server that runs the language model fails; see the server log", status=502)
    log(event="pair_failed", failure="".join(traceback.format_exception(error)))
    return PairResult(error="internal error; details are in the server log", status=500)


def _search(options: Options, polygons: bool) -> SearchOptions:
    """``polygons``: those of the change map are wanted."""
    return replace(options.search, change_map=options.search.change_map or polygons)


def captioned(result: CaptionedPair, options: Options, grid: PixelGrid | None) -> PairResult:
    """The result of a described pair, with its pictures drawn; with the ``grid`` of GeoTIFFs also their scene."""
    pixels, description = result.pixels, result.description
    assert isinstance(pixels, Pixels)
    assert description is not None
    try:
        scene = None if grid is None else _scene(description, pixels, grid)
    except ValueError as error:  # its coordinate system gives no longitude and latitude at one of the changes
        return PairResult(error=f"after: {error}")
    change_map = classes = None
    if options.search.change_map and description.change_map is not None:
        change_map = encode_png(draw_map(description.change_map, pixels.after.shape[:2]))
    if options.search.change_map and description.class_map is not None:
        counts = [count.to_dict() for count in count_classes(description.class_map)]
        classes = {"map": encode_png(description.class_map.classes), "counts": counts}
    plain = replace(description, change_map=None, class_map=None)
    ms = 1000 * result.seconds
    return PairResult(plain, None, change_map, classes, scene, model_ms=ms, batch=result.batch)


def _scene(description: Description, pixels: Pixels, grid: PixelGrid) -> dict[str, Any]:
    """The images as the model got them, their longer side at most that of a drawn map, and the changes."""
    from idc.geo.georeferenced_pair import georeferenced_changes

    changes = georeferenced_changes(description, grid)
    scene: dict[str, Any] = {"sentence": changes.sentence, "geojson": changes.geojson}
    for name, image in zip(("before", "after"), pixels.images, strict=True):
        scale = min(1.0, MAP_SIDE / max(image.shape[:2]))
        height, width = (max(1, round(scale * side)) for side in image.shape[:2])
        scene[name] = encode_png(resize_image(image, (height, width)))
    return scene
