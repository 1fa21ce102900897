"""The captioner of what changed, objects by name where a detector recognises them, else regions; and ``objects`` and
``regions`` in the place of an artifact."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from idc.captioning.contract import (
    Candidate,
    Capability,
    Captioner,
    Claim,
    Description,
    SearchOptions,
    Speed,
)
from idc.captioning.counts import Counts, Kind, counted, left_out_sentence
from idc.captioning.objects_config import EMBEDDED, NONE, REGIONS, ObjectsConfig
from idc.systems.objects.canvas import are_pages, canvas_of, drawn_look, exact_canvas, is_flat, is_retouched
from idc.systems.objects.claims import ComparedPair, Named, object_claims
from idc.systems.objects.comparison import Comparison, compare
from idc.systems.objects.detectors import Detector, detector_identity, embedded_installed, load_detector
from idc.systems.objects.exact import exact_changes
from idc.systems.objects.frames import dead_frame, exposed, other_colours, thumbnail
from idc.systems.objects.geometry import around, shifted_box, slices_of
from idc.systems.objects.instances import instances
from idc.systems.objects.known_words import compared_words
from idc.systems.objects.reading import reads_text
from idc.systems.objects.region_claims import other_regions, region_claims
from idc.systems.objects.text import word_claims
from idc.systems.objects.wording import (
    INCOMPARABLE,
    OBJECT,
    PICTURE,
    UNNAMED,
    WORDS,
    crop_sentence,
    joined,
    look_sentence,
    region_sentence,
    sentence_of,
    unchanged_sentence,
    view_sentence,
    with_article,
)
from idc.training.artifact import read_artifact, write_artifact
from idc.util.cache import cache_root, make_once

_SIDE = 1600
"""Longer side to which larger photographs are reduced: neither objects nor words need more."""
_PICTURES, _PICTURE = 3, 96
"""Number of the claims about a screen of which a picture is looked at, and its shortest side."""
_CERTAIN = 0.85
"""Score from which what an image shows is said though nothing is compared."""
_MOSTLY_CHANGED = 0.6
"""Share of the box of an object that is the same below which the rest of the box has changed: it does not fill it."""
_VERSION = 9
"""Incremented when the same pairs would get other captions: results are stored by the artifact's contents."""
_NAMELESS = (*UNNAMED, OBJECT, PICTURE, WORDS)
_NOT_COMPARED = "the two images are not comparable"
_HIDDEN = "positions differ, and a change cannot be told from what the other view hides"


class ObjectsCaptioner(Captioner):
    """Names the objects that came, went or moved between two images, and the regions that differ; nothing is trained.

    The confidence is not a probability of words, but the lowest one of a claim: of a named object the detector's
    highest score, of a region r / (1 + r) for the ratio r of its largest difference to the threshold; 1 / (1 + r) where
    nothing changed, and 0.5 where the images are not comparable.
    """

    capabilities: frozenset[Capability] = frozenset({"map"})
    gains_from_batch: bool = False
    reads_counts: bool = True

    def __init__(self, config: ObjectsConfig | None = None):
        self._config = config = config or ObjectsConfig()
        self._text = reads_text() if config.text is None else config.text

    @cached_property
    def _detector(self) -> Detector | None:
        """Loaded at the first pair that differs."""
        source = self._config.detector or EMBEDDED
        return None if source == NONE else load_detector(source, self._config.names)

    def _describe(
        self,
        befores: Sequence[np.ndarray],
        afters: Sequence[np.ndarray],
        options: SearchOptions,
        region_of_interest: Sequence[np.ndarray | None] | None = None,
    ) -> list[Description]:
        """There is one candidate for each pair."""
        return [
            self._described(*images_and_region, options)
            for images_and_region in zip(befores, afters, region_of_interest or [None] * len(afters), strict=True)
        ]

    _describe_regions = _describe

    def _described(
        self, before: np.ndarray, after: np.ndarray, region_of_interest: np.ndarray | None, options: SearchOptions
    ) -> Description:
        change_map = options.change_map
        if self._config.mode != "exact" and (text := dead_frame(before, after)):
            difference = np.abs(thumbnail(before) - thumbnail(after)).mean(axis=2) / 255 if change_map else None
            return _undecided(text, difference, "one of the images shows nothing")
        canvas, texts, region = None, None, region_of_interest
        if options.words is not None:
            texts = compared_words(*options.words, before, after, region)
            region = texts.region_of_interest(region, after.shape)
        looks = [drawn_look(image) for image in (before, after)] if self._config.mode == "auto" else []
        if self._config.mode == "exact":
            canvas = canvas_of(before, after, region)
        elif looks:
            canvas = exact_canvas(before, after, region, looks)
        if canvas is not None:
            description = exact_changes(before, after, canvas, self._text, options.counts, texts, region is None)
            description = self._with_pictures(description, before, after, options.counts)
            return description if change_map else replace(description, change_map=None)
        description = self._of_views(before, after, region_of_interest, options)
        if not looks or any(claim.object != PICTURE for claim in description.claims or ()):
            return description
        if thing := WORDS if is_retouched(before, after) else PICTURE if are_pages(looks) else None:
            canvas = canvas_of(before, after, region)
            drawn = exact_changes(before, after, canvas, self._text, options.counts, texts, region is None)
            # Thin strokes on a photograph, or two pages that share little.
            if drawn.claims and all(claim.object == thing for claim in drawn.claims):
                return drawn if change_map else replace(drawn, change_map=None)
        return description

    def _of_views(
        self, before: np.ndarray, after: np.ndarray, region_of_interest: np.ndarray | None, options: SearchOptions
    ) -> Description:
        """Of photographs of any sizes."""
        (first, gain), (second, other_gain) = (exposed(_reduced(image)) for image in (before, after))
        if region_of_interest is not None and region_of_interest.shape != second.shape[:2]:
            region_of_interest = (
                cv2.resize(region_of_interest.astype(np.uint8), second.shape[1::-1], interpolation=cv2.INTER_NEAREST)
                > 0
            )
        sizes = before.shape, after.shape
        description = self._of_photographs(first, second, region_of_interest, options, gain / other_gain, sizes)
        if description.doubt == _NOT_COMPARED and options.counts is None:
            text = description.best.caption + self._shown(first, second)
            return _undecided(text, description.change_map, _NOT_COMPARED)
        factors = [
            np.divide(full.shape[:2][::-1] * 2, small.shape[:2][::-1] * 2)
            for full, small in ((before, first), (after, second))
        ]
        return _resized_boxes(description, *factors) if (np.array(factors) != 1).any() else description

    def _with_pictures(
        self, description: Description, before: np.ndarray, after: np.ndarray, counts: Counts | None
    ) -> Description:
        """The description of two drawn images, with the objects that are named in the largest pictures in them."""
        claims, text = list(description.claims or ()), description.best.caption
        for claim in claims[:_PICTURES] if self._detector is not None else ():
            first, second = claim.box_before or claim.box_after, claim.box_after or claim.box_before
            if claim.object != "region" or claim.kind == "moved" or first is None or second is None:
                continue
            margin = max(np.subtract(second[2:], second[:2])) // 2  # what is around a thing names it
            images = (first, before), (second, after)
            boxes = [around(box, int(margin), image.shape) for box, image in images]
            parts = [image[slices_of(box)] for image, box in zip((before, after), boxes, strict=True)]
            if min(*parts[0].shape[:2], *parts[1].shape[:2]) < _PICTURE or any(map(is_flat, parts)):
                continue
            sizes = parts[0].shape, parts[1].shape
            inside = self._of_photographs(parts[0], parts[1], None, SearchOptions(counts=counts), 1.0, sizes)
            named = [other for other in inside.claims or () if other.object not in _NAMELESS]
            if named:
                claims += [
                    replace(
                        other,
                        box_before=other.box_before and shifted_box(other.box_before, *boxes[0][:2]),
                        box_after=other.box_after and shifted_box(other.box_after, *boxes[1][:2]),
                        text=f"In the picture {claim.where}: {other.text}",
                    )
                    for other in named
                ]
                text += f" In the picture {claim.where}: {sentence_of(named, explained=False)}"
        candidates = (description.best._replace(caption=text),)
        return replace(description, candidates=candidates, claims=tuple(claims), objects_text=text)

    def _of_photographs(
        self,
        before: np.ndarray,
        after: np.ndarray,
        region_of_interest: np.ndarray | None,
        options: SearchOptions,
        brightened: float,
        sizes: tuple[tuple[int, ...], tuple[int, ...]],
    ) -> Description:
        """``brightened``: by how much more the image before is (:func:`exposed`); ``sizes`` (height, width, 3) before
        both were reduced."""
        comparison = compare(before, after, region_of_interest)
        comparison = comparison._replace(light=comparison.light * brightened)
        ratio = float(comparison.difference.max()) / comparison.threshold
        values = comparison.difference / (comparison.difference + comparison.threshold) if options.change_map else None
        view = crop_sentence(comparison.warp, (before.shape, after.shape), sizes) or view_sentence(comparison.view)
        counts, others = options.counts, _other_differences(comparison, view)
        if counts is not None and "light" not in counts.kinds:
            comparison = comparison._replace(light=1.0, sharpness=1.0, noise=(0.0, 0.0), shaded=False)
        if colours := other_colours(comparison.before, comparison.after):
            return _of_picture(*colours, before.shape, after.shape, values, counts)
        view = "" if counts is not None and "camera" not in counts.kinds else view
        if not comparison.comparable:
            text = f"{view} What changed in it cannot be told." if view else INCOMPARABLE
            return _undecided(text, values, _NOT_COMPARED)
        pair = ComparedPair(comparison, before.shape[:2], after.shape[:2])
        named = Named([], [], complete=True, stayed=[])
        if self._detector is not None:
            named = object_claims(pair, before, after, self._detector, self._config.names)
            if comparison.moved:  # what the other view hides differs too: only a thing with a name is no background
                named = named._replace(claims=[claim for claim in named.claims if claim.object != OBJECT])
        words: list[Claim] = []
        if self._text and not pair.around:  # strokes of letters are too thin for a region: they may be all
            first, second = _without_objects(before, after, named.claims, pair)
            words = word_claims(first, second, comparison.warp, region_of_interest)
        boxes = [*named.places, *pair.places(words)]
        if self._detector is None:
            regions = region_claims(pair, range(len(pair.regions)))
        else:
            regions = [] if comparison.moved else region_claims(pair, other_regions(pair, boxes), named.stayed)
        explained = named.complete and not pair.unexplained(boxes)
        claims, left_out = counted([*named.claims, *words, *regions], counts, after.shape)
        claims = [replace(claim, text=sentence_of([claim], explained)) for claim in claims]
        if self._detector is None and not left_out:
            sentences = [region_sentence(pair.regions, comparison)] if pair.regions or not words else []
            text = " ".join([*sentences, sentence_of(words, explained=False)] if words else sentences)
        elif claims:
            text = f"{sentence_of(claims, explained)}{look_sentence(comparison)}"
        else:
            text = unchanged_sentence("Nothing" if counts is None else "Nothing that counts", comparison)
        if pair.around and not left_out:
            same = (item.name for item in named.stayed if pair.share(item.place) < _MOSTLY_CHANGED)
            text += f" The {next(same, 'rest')} is the same."
        text = " ".join(filter(None, [text, view, left_out_sentence(left_out, others, counts)]))
        confidence = min((claim.confidence for claim in claims), default=1 / (1 + ratio))
        doubt = _HIDDEN if (comparison.moved or "camera" in others) and not (self._detector and claims) else None
        if counts is not None and not claims and any(map(counts.may_have, left_out)):
            doubt = doubt or "what changed has no sure name, and may be one that counts"
        return Description(
            (Candidate(text, math.log(max(confidence, 1e-6))),),
            change_map=values, regions=tuple(pair.regions), claims=tuple(claims), objects_text=text, doubt=doubt,
        )  # fmt: skip

    def _shown(self, before: np.ndarray, after: np.ndarray) -> str:
        """A blank and what each of two images shows, people and vehicles with a sure name: neither is missed on the
        other one, where it may be smaller."""
        if self._detector is None:
            return ""
        sides = [
            sorted({
                item.name for item in instances(image, [], self._detector, self._config.names, lambda box: box)
                if item.score >= _CERTAIN and item.votes == 2 and item.family in ("person", "vehicle")
            })
            for image in (before, after)
        ]  # fmt: skip
        texts = [joined(map(with_article, names)) if names else "" for names in sides]
        if texts[0] == texts[1]:
            return f" Both show {texts[0]}." if texts[0] else ""
        pairs = zip(("before", "after"), texts, strict=True)
        return "".join(f" The image {side} shows {text}." for side, text in pairs if text)


def _undecided(text: str, change_map: np.ndarray | None, doubt: str) -> Description:
    best = (Candidate(text, math.log(0.5)),)
    return Description(best, change_map=change_map, regions=(), claims=(), objects_text=text, doubt=doubt)


def _other_differences(comparison: Comparison, view: str) -> list[Kind]:
    """Kinds of differences besides claims: of light and view."""
    light: list[Kind] = ["light"] if look_sentence(comparison) or comparison.shaded else []
    return [*light, *(["camera"] if view else [])]  # type: ignore[list-item]


def _of_picture(
    colours: str,
    others: str,
    size: tuple[int, ...],
    other_size: tuple[int, ...],
    change_map: np.ndarray | None,
    counts: Counts | None,
) -> Description:
    """Of a picture that is in other colours as a whole; within it nothing is compared."""
    box, other_box = ((0, 0, width, height) for height, width, _ in (size, other_size))
    claim = Claim("changed", PICTURE, 1, "as a whole", box, other_box, confidence=1.0, before=colours, after=others)
    text = f"The whole picture changed from {colours} to {others}; nothing smaller was compared."
    claims, left_out = counted([claim], counts, other_size)
    if left_out:
        text = f"The picture is in other colours. {left_out_sentence(left_out, [], counts)}"
        return _undecided(text, change_map, "nothing else was compared")
    return Description(
        (Candidate(text, 0.0),), change_map=change_map, regions=(), claims=tuple(claims), objects_text=text,
    )  # fmt: skip


def _reduced(image: np.ndarray) -> np.ndarray:
    scale = _SIDE / max(image.shape[:2])
    if scale >= 1:
        return image
    height, width = (max(1, round(scale * length)) for length in image.shape[:2])
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)


def _resized_boxes(description: Description, before: np.ndarray, after: np.ndarray) -> Description:
    """The description with boxes multiplied by (x, y, x, y) factors of both images."""

    def box(values: tuple[int, int, int, int] | None, factors: np.ndarray) -> Any:
        return None if values is None else tuple(int(value) for value in np.round(values * factors))

    claims = (
        replace(claim, box_before=box(claim.box_before, before), box_after=box(claim.box_after, after))
        for claim in description.claims or ()
    )
    regions = (replace(region, box=box(region.box, after)) for region in description.regions or ())
    return replace(description, claims=tuple(claims), regions=tuple(regions))


def _without_objects(
    before: np.ndarray, after: np.ndarray, claims: Sequence[Claim], pair: ComparedPair
) -> tuple[np.ndarray, np.ndarray]:
    """Both images without the single objects that came, went or moved: words on them are no change of their own."""
    single = [claim for claim in claims if claim.kind != "changed" and claim.object != OBJECT and claim.count == 1]
    boxes = pair.places(single)
    if not boxes:
        return before, after
    images = before.copy(), after.copy()
    for box in boxes:
        for image, (left, top, right, bottom) in zip(images, (pair.on_before(box), box), strict=True):
            image[round(top) : round(bottom), round(left) : round(right)] = 128
    return images


def load_captioner(path: Path | str, device: str = "cpu", speed: Speed = "auto") -> ObjectsCaptioner:
    """The captioner of an artifact of this system, else ValueError; it runs on the CPU in any case."""
    saved = read_artifact(path, system="objects").config
    return ObjectsCaptioner(ObjectsConfig(**{name: saved[name] for name in ObjectsConfig.model_fields}))


def usual_captioner(config: ObjectsConfig | None = None) -> ObjectsCaptioner:
    """The captioner with these settings, loaded once per process; without a detector where none was chosen and none is
    installed."""
    settings = config or ObjectsConfig()
    detector = settings.detector or (EMBEDDED if embedded_installed() else NONE)
    if detector != NONE and (settings.detector is not None or settings.names):
        load_detector(detector, settings.names)  # its errors before any pair
    return _shared(settings.model_copy(update={"detector": detector}))


@lru_cache(maxsize=4)
def _shared(config: ObjectsConfig) -> ObjectsCaptioner:
    return ObjectsCaptioner(config)


def objects_folder(name: str, config: ObjectsConfig | None = None) -> str:
    """The folder of the artifact with these settings, made in the cache at the first use; ``regions`` has no detector.
    It holds no weights. ValueError: the detector is not on this machine, or cannot be used."""
    settings = config or ObjectsConfig()
    settings = settings.model_copy(update={"detector": NONE if name == REGIONS else settings.detector or EMBEDDED})
    contents = {
        "version": _VERSION,
        **settings.model_dump(mode="json"),
        "text": reads_text() if settings.text is None else settings.text,
        "detector_identity": detector_identity(str(settings.detector)),
    }
    key = hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:12]
    purpose = "Names what differs between two images, without training on pairs."
    write = partial(write_artifact, system="objects", config=contents, state_dict={}, purpose=purpose)
    return str(make_once(cache_root() / f"{name}-{key}", write))
