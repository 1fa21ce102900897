"""Regions in which two images of the same place differ, once their views and lights agree."""

from __future__ import annotations

import math
from itertools import compress
from typing import NamedTuple

import cv2
import numpy as np

from idc.systems.objects.alignment import (
    SAME_TEXTURE,
    SIMILAR,
    Alignment,
    CameraView,
    align,
    along_flow,
    matches_of,
    noise_of,
    scaling,
    share_in_agreement,
    unaligned,
    view_of,
)
from idc.systems.objects.light import brightness_ratio

_SIDE = 512
"""Longer side at which images are compared, in pixels; larger ones are reduced."""
_MIN_SIDE = 32
"""Smaller images are enlarged, for the windows of the alignment."""
THRESHOLD = 13.5
"""Difference of colour that a region reaches somewhere: in CIELAB, where 2.3 is a just noticeable difference. A region
extends to a third of it."""
_WEIGHTS = np.array([0.7, 1, 1], np.float32)
"""Of lightness, a and b: shadows and reflections change lightness, and hardly the hue."""
_SMOOTHING = 1.2
"""Standard deviation of the blur of both images, in pixels; of noisy ones it is larger."""
_TOLERANCE = 0.005
"""Shifts up to this share of the longer side do not count as a difference."""
_SMALLEST = 0.001
"""Share of the image below which a region does not count."""
_HALO = 0.35
"""Share of a region's strongest differences below which a pixel is not part of it, unless it differs clearly."""
_THICKNESS = 1.5
"""Half the thickness of a region is more than this many tolerated shifts: displaced edges leave thinner ones."""
_COMPARABLE = 0.75
"""Smallest share of the textures outside the regions that must agree. It lies between the surveillance and edited pairs
that were looked at (0.79 and more) and the satellite pairs in which everything differs."""
_TEXTURED = 0.2
"""Smallest share of that part that has a texture, for this to be required: on a plain floor the only textures are those
that compression leaves."""
_SAME_HUE = 10.0
"""Median distance of hue and chroma in CIELAB below which a region whose texture stays the same is in another light."""
_MOST = 0.5
"""Share of the image above which so much differs that single regions mean nothing."""
_TURNED = 1.0
"""Degrees from which a view is turned."""
_MUCH = 0.4
"""Share of the image from which a replaced part is called much of it, or what is around the rest."""
_KEPT, _SAME, _EQUAL = 0.03, 0.55, 0.8
"""Least share of the image in the same colours, of the textures there that are the same, and their correlation, if what
differs was replaced around them. Of 390 pairs of different pictures at most 0.24 of the textures were, of 40 with
another background 0.63 or more."""
_SCALES = (0.7, 1.4, 5.0)
"""Standard deviations in pixels between which detail is fine, and coarser."""
_SAME_DETAIL, _DETAIL, _MIN_SAME = 0.8, 0.01, 16
"""Correlation of a block's coarser detail from which both images show the same there, its smallest contrast, and the
smallest number of such blocks."""
_LONG = 0.08
"""Length of a line, as a share of the longer side, from which it counts though it is thin."""
_MOST_LINES = 20
CAME = 1.0
"""Binary logarithm of the ratio of outlines (:attr:`Comparison.outlines`) from which something came, and below the
negative of which something went. Of 85 regions of fixed cameras in which a person, a car or a bottle came or went, 67
are beyond it, all but one on the right side."""
_FOLLOWED, _LEFT = 0.6, 0.45
"""Share of a region's textures that are the same along the optical flow, and of its difference that is left, if what is
there moved. Of 240 regions of fixed cameras in which something came or went no one has both."""
_OUTLINE = 2
"""Pixels on both sides of a region's border in which its outline is looked for."""


class Comparison(NamedTuple):
    """Two images compared in the frame of the image after, at the size of the comparison.

    Attributes:
        before, after: float32 RGB (H, W, 3), each with its own light.
        warp: homography from pixels of the original image after to those of the original image before.
        difference: float32 (H, W), distance of the colours after alignment.
        threshold: of the difference; :data:`THRESHOLD`, or more where all of the images differ a little.
        regions: bool (H, W) each, the largest first; after them the lines.
        lines: number of regions that are long and thin, and that one of the images alone has.
        outlines: of each region the binary logarithm of how much stronger the edges along its border are after than
            before: a thing has an outline, and the ground that it covers continues across it.
        displaced: of each region whether both images show the same there, displaced: something moved.
        comparable: whether the images show the same place so that single regions mean something.
        replaced: whether they do only because a part is the same as it was; all that differs is one region then.
        background: whether the first region is what was behind the rest: half of each border, but for the lower one.
        moved: whether things are displaced as when the camera moves, by more than the tolerance, or the camera moved
            and regions may be such things.
        small: whether parts of the images differ too weakly for a region, or are too small or too little displaced.
        shaded: whether further regions differ in brightness alone: their textures and hues are the same.
        light: mean brightness after, divided by that before, where nothing changed.
        sharpness: fine detail after, divided by that before, where both show the same; 1 where that cannot be told.
        noise: standard deviation of the noise after and of that before, of brightness in [0, 1].
        view: how the views differ; None where that cannot be told.
    """

    before: np.ndarray
    after: np.ndarray
    warp: np.ndarray
    difference: np.ndarray
    threshold: float
    regions: list[np.ndarray]
    lines: int
    outlines: list[float]
    displaced: list[bool]
    comparable: bool
    replaced: bool
    background: bool
    moved: bool
    small: bool
    shaded: bool
    light: float
    sharpness: float
    noise: tuple[float, float]
    view: CameraView | None


def compare(before: np.ndarray, after: np.ndarray, region_of_interest: np.ndarray | None = None) -> Comparison:
    """Compare two images, uint8 RGB (H, W, 3) of any sizes. ``region_of_interest``: bool (H, W) over the image after,
    where differences count; None: everywhere."""
    first, second = _resized(before), _resized(after)
    reach = max(1, round(_TOLERANCE * max(second.shape[:2])))
    aligned = align(first, second, reach)
    comparison = _compared(first, second, aligned, reach, region_of_interest, replaced=False)
    if not comparison.comparable:
        edited = _compared(first, second, unaligned(first, second), reach, region_of_interest, replaced=True)
        comparison = edited if edited.comparable else comparison
    return comparison._replace(warp=scaling(first, before) @ comparison.warp @ scaling(after, second))


def is_turned(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether the view after is turned, as a page scanned again, by features that both images, uint8 RGB (H, W, 3) of
    any sizes, show."""
    first, second = _resized(before), _resized(after)
    view = view_of(matches_of(first, second), second.shape)
    return view is not None and view.agreed and abs(view.turn) > _TURNED


def _compared(
    first: np.ndarray,
    second: np.ndarray,
    aligned: Alignment,
    reach: int,
    region_of_interest: np.ndarray | None,
    replaced: bool,
) -> Comparison:
    """The comparison of reduced images; ``replaced``: of two of one view and light, by what is the same in both."""
    noise_after = noise_of(second)
    noise = max(noise_of(aligned.before), noise_after)
    sigma = _SMOOTHING * (1 + 33 * noise)
    blurred = (cv2.GaussianBlur(image, (0, 0), sigma) for image in (aligned.lit, second))
    colour, other = (cv2.cvtColor(image, cv2.COLOR_RGB2LAB) * _WEIGHTS for image in blurred)
    inner = cv2.erode(aligned.valid.astype(np.uint8), _disk(reach + 1), borderValue=1) > 0
    if region_of_interest is not None:
        # Where any pixel of a reduced one does not count, it does not count.
        inner &= (
            cv2.resize(region_of_interest.astype(np.float32), inner.shape[::-1], interpolation=cv2.INTER_AREA) > 0.999
        )
    one_sided = [distance * inner for distance in _distances(colour, other, reach)]
    difference = cv2.GaussianBlur(np.minimum(*one_sided), (0, 0), sigma) * inner
    # Where everything differs a little (seasons, compression), only what stands out of it is a region.
    spread = 1.4826 * float(np.median(difference[inner])) if inner.any() and not replaced else 0.0
    threshold = max(THRESHOLD, 9 * spread)
    parts = _regions(difference, threshold, reach)
    if (along := aligned.along) is not None:
        parts = [
            mask
            for mask in parts
            if not share_in_agreement(along, second, _widened(mask, 3 * reach), noise) >= _COMPARABLE
        ]
    shaded = [_only_lighter(mask, colour - other, reach, aligned.lit, second, noise) for mask in parts]
    regions = [mask for mask, light in zip(parts, shaded, strict=True) if not light]
    covered = np.any(regions, axis=0) if regions else np.zeros_like(inner)
    near = _widened(covered, 3 * reach)
    rest, far = inner & ~near, inner & ~_widened(covered, 5 * reach)
    alike = _EQUAL if replaced else SIMILAR
    agreement = share_in_agreement(aligned.lit, second, rest, noise, _TEXTURED, alike)
    if replaced:
        regions = [covered] if regions else []
        comparable = bool(covered.mean() >= _MUCH and rest.mean() >= _KEPT and agreement >= _SAME)
    else:
        comparable = aligned.sure and threshold <= 2 * THRESHOLD and covered.mean() <= _MOST
        comparable &= not agreement < _COMPARABLE  # it is NaN on a plain floor
    fixed, strength = comparable and aligned.shift <= reach and aligned.along is None, np.maximum(*one_sided)
    thin = _thin_parts(strength, threshold, near, reach) if fixed and not replaced else []
    outlines = _outlines([*regions, *thin], aligned.lit, second)
    shown = [abs(outline) > CAME for outline in outlines[len(regions) :]]  # what both images have is an edge
    lines = list(compress(thin, shown))
    for mask in lines:
        difference[mask] = strength[mask]
    steady = comparable and aligned.shift <= reach and aligned.settled and not replaced
    displaced = _displaced(regions, outlines, aligned.lit, second, reach, noise) if steady else [False] * len(regions)
    levels = (float(image[rest].mean()) if rest.any() else 1.0 for image in (aligned.before, second))
    weak = np.linalg.norm(colour - other, axis=2)[far] > threshold / 3  # a single pixel may be noise
    view = view_of(aligned.matches, second.shape)
    if comparable and not (view and view.agreed):
        view = CameraView.of(_unstretched(aligned.warp, first, second))
    return Comparison(
        before=aligned.before,
        after=second,
        warp=aligned.warp,
        difference=difference,
        threshold=threshold,
        regions=[*regions, *lines],
        lines=len(lines),
        outlines=[*outlines[: len(regions)], *compress(outlines[len(regions) :], shown)],
        displaced=[*displaced, *[False] * len(lines)],
        comparable=comparable,
        replaced=replaced,
        background=bool(regions) and _is_around(regions[0]),
        moved=aligned.shift > reach or (bool(regions) and not aligned.settled),
        small=threshold > THRESHOLD or int(weak.sum()) > 4,
        shaded=any(shaded),
        light=brightness_ratio(*levels),
        sharpness=_sharpness(aligned.before, second) if comparable else 1.0,
        noise=(noise_after, noise_of(first)),
        view=view,
    )


def _is_around(region: np.ndarray) -> bool:
    """Whether a region takes up more than half of the upper, the left and the right border: things stand on the lower
    one."""
    return bool(min(border.mean() for border in (region[0], region[:, 0], region[:, -1])) > 0.5)


def _outlines(regions: list[np.ndarray], before: np.ndarray, after: np.ndarray) -> list[float]:
    edges = [_edges(image) for image in (before, after)] if regions else []
    result = []
    for region in regions:
        filled = cv2.morphologyEx(region.astype(np.uint8), cv2.MORPH_CLOSE, _disk(_OUTLINE))
        band = cv2.dilate(filled, _disk(_OUTLINE)) != cv2.erode(filled, _disk(_OUTLINE), borderValue=1)
        first, second = (float(strength[band].mean()) + 1 if band.any() else 1.0 for strength in edges)
        result.append(math.log2(second / first))
    return result


def _displaced(
    regions: list[np.ndarray], outlines: list[float], lit: np.ndarray, after: np.ndarray, reach: int, noise: float
) -> list[bool]:
    unclear = [abs(outline) <= CAME for outline, _ in zip(outlines, regions, strict=False)]
    if not any(unclear):
        return unclear
    flow, moved = along_flow(lit, after)
    lengths, result = np.linalg.norm(flow, axis=-1), []
    for region, is_unclear in zip(regions, unclear, strict=True):
        before, left = (float(np.abs(image - after)[region].mean()) for image in (lit, moved))
        far = is_unclear and left < _LEFT * before and np.median(lengths[region]) > reach
        around_it = _widened(region, 3 * reach)
        result.append(far and share_in_agreement(moved, after, around_it, noise, similar=SAME_TEXTURE) >= _FOLLOWED)
    return result


def _edges(image: np.ndarray) -> np.ndarray:
    """Gradient of the CIELAB channel that has the largest one, (H, W)."""
    lab = cv2.cvtColor(cv2.GaussianBlur(image, (0, 0), 1.0), cv2.COLOR_RGB2LAB)
    across, down = (cv2.Sobel(lab, cv2.CV_32F, *order) for order in ((1, 0), (0, 1)))
    return np.hypot(across, down).max(axis=-1)


def _only_lighter(
    mask: np.ndarray, distance: np.ndarray, reach: int, lit: np.ndarray, after: np.ndarray, noise: float
) -> bool:
    hues = np.linalg.norm(distance[mask][:, 1:], axis=1)
    agree = share_in_agreement(lit, after, _widened(mask, 3 * reach), noise) >= _COMPARABLE
    return bool(np.median(hues) < _SAME_HUE and agree)


def _sharpness(before: np.ndarray, after: np.ndarray) -> float:
    """The ratio of fine to coarser detail after, divided by that before: the median over blocks with the same coarser
    detail, so that neither contrast nor what changed counts."""
    fine, coarse = [], []
    for image in (before, after):
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        scales = [cv2.GaussianBlur(grey, (0, 0), sigma) for sigma in _SCALES]
        fine.append(scales[0] - scales[1])
        coarse.append(scales[1] - scales[2])

    def mean(values: np.ndarray) -> np.ndarray:
        return cv2.blur(values, (17, 17))[8::8, 8::8]

    (first, second), (old, new) = ([np.maximum(mean(band**2), 1e-12) for band in bands] for bands in (coarse, fine))
    same = mean(coarse[0] * coarse[1]) > _SAME_DETAIL * np.sqrt(first * second)
    same &= (np.minimum(first, second) > _DETAIL**2) & (np.maximum(old, new) > (_DETAIL / 3) ** 2)
    return float(np.median(np.sqrt(new / old * first / second)[same])) if same.sum() >= _MIN_SAME else 1.0


def _widened(mask: np.ndarray, radius: int) -> np.ndarray:
    return cv2.dilate(mask.astype(np.uint8), _disk(radius)) > 0


def _regions(difference: np.ndarray, threshold: float, reach: int) -> list[np.ndarray]:
    """Connected parts above a third of the threshold that reach the whole one (hysteresis)."""
    low = difference > threshold / 3
    joined = cv2.morphologyEx(low.astype(np.uint8), cv2.MORPH_CLOSE, _disk(2 * reach))
    count, labels = cv2.connectedComponents(joined, connectivity=8)
    areas = np.bincount(labels[low], minlength=count)
    strong = set(np.unique(labels[difference > threshold]))
    masks = []
    for label in range(1, count):
        if label in strong and areas[label] >= _SMALLEST * labels.size:
            mask = low & (labels == label)
            # Without the halo that the blur leaves around a strong difference.
            mask &= difference > min(_HALO * np.quantile(difference[mask], 0.9), 0.75 * threshold)
            if cv2.distanceTransform(mask.astype(np.uint8), cv2.DIST_L2, 3).max() > _THICKNESS * reach:
                masks.append(mask)
    return sorted(masks, key=lambda mask: -int(mask.sum()))


def _distances(first: np.ndarray, second: np.ndarray, reach: int) -> list[np.ndarray]:
    """Distance of each colour of one image from the range of the other image's colours nearby, (H, W), of the first and
    of the second. Where an edge is displaced by up to ``reach`` pixels both are 0, where a thin line came or went one
    of them."""
    kernel = _disk(reach)
    distances = []
    for values, others in ((first, second), (second, first)):
        low, high = cv2.erode(others, kernel), cv2.dilate(others, kernel)
        outside = np.maximum(np.maximum(low - values, values - high), 0)
        distances.append(np.sqrt((outside**2).sum(axis=-1)))
    return distances


def _thin_parts(strength: np.ndarray, threshold: float, covered: np.ndarray, reach: int) -> list[np.ndarray]:
    """Long, thin connected parts above the threshold, the longest first."""
    strong = (strength > threshold) & ~covered
    joined = cv2.morphologyEx(strong.astype(np.uint8), cv2.MORPH_CLOSE, _disk(1))
    _, labels, stats, _ = cv2.connectedComponentsWithStats(joined, connectivity=8)
    lengths = np.hypot(stats[:, 2], stats[:, 3])
    thin = (lengths >= _LONG * max(strong.shape)) & (stats[:, 4] <= 2 * _THICKNESS * reach * lengths)
    chosen = [label for label in np.argsort(-lengths) if label and thin[label]][:_MOST_LINES]
    return [strong & (labels == label) for label in chosen]


def _disk(radius: int) -> np.ndarray:
    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))


def _unstretched(warp: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """A warp without the part that brings both images to one size: they may show the same view at two sizes."""
    quarter = abs(warp[0, 1]) > abs(warp[0, 0])
    height, width = (before.shape[1], before.shape[0]) if quarter else before.shape[:2]
    return np.diag([after.shape[1] / width, after.shape[0] / height, 1.0]) @ warp


def _resized(image: np.ndarray) -> np.ndarray:
    scale = min(1.0, _SIDE / max(image.shape[:2]))
    height, width = (max(_MIN_SIDE, round(length * scale)) for length in image.shape[:2])
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32) / 255
