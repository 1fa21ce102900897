"""Brings the image before onto the image after: the view, the light, then the parallax that a moved camera leaves.

Images are float32 RGB (H, W, 3) in [0, 1]; a warp is a homography from pixels of the image after to those before.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import cv2
import numpy as np

from idc.systems.objects.geometry import warped_to
from idc.systems.objects.light import in_the_light_of

_BETTER = 0.9
"""A warp replaces a simpler one if its residual is below this share of the other's: resampling alone changes it too."""
_MIN_MATCHES = 15
_AGREED, _MOSTLY = 0.3, 0.45
"""Smallest shares of the matches that must agree on one view, and for it to be exact."""
_MIN_SPREAD = 0.25
"""Smallest share of the image that matched points must span: those on one object show how that object moved, not the
camera."""
_LEAST_SCALE = 0.01
"""Smallest scale from the view after to the one before."""
_MIN_COVERED = 0.5
"""Smallest share of the image after that the warped image before must cover."""
_MAX_TILT = 0.25
"""Largest change of scale across the image."""
_BLOCK = 17
"""Side of the blocks whose textures are compared, in pixels; there is one at every :data:`_STEP` pixels."""
_STEP = 8
_MIN_BLOCKS = 8
SIMILAR = 0.5
"""Correlation from which the textures of a block agree."""
SAME_TEXTURE = 0.7
"""Correlation from which a block counts as the same surface in both images."""
_EXPLAINED = 0.87
"""Share of the textures that agree along the flow if the camera moved. Of fixed cameras before which large things moved
at most 0.86 did, unless matches were uneven."""
_DISPLACED = 0.8
_MIN_FLOW = 0.5
"""If the camera moved, a share :data:`_DISPLACED` of the surfaces is displaced by more than this, in pixels."""
_ACROSS = 0.5
"""If the camera moved, displaced surfaces span at least this share of the image: fewer are a thing that turned."""
_EVEN = 5.0
"""If the camera moved, the 90th percentile of the displacements is at most this multiple of the median. What came or
went is matched with anything, far away."""
_DOUBTFUL_GAIN = 0.2
"""If flow explains this many more of the textures, but not :data:`_EXPLAINED` of them, and displaces them, not on one
thing alone, by more than the comparison tolerates, the views differ too much."""
_STILL = 0.7
"""Share of the corners that can be followed that are displaced by less than a pixel if the camera stood still, and one
minus that if it moved. Of fixed cameras at least 0.84 were, of the others at most 0.02, but for views that differ by
half a pixel."""
_BESIDE = 0.2
"""Share of the image that corners span at least that are displaced if the camera moved: fewer are a thing that did."""
_MIN_FOLLOWED = 0.25
"""Smallest share of the corners that can be followed, else nobody can tell."""


class Alignment(NamedTuple):
    """The image before in the frame of the image after.

    Attributes:
        before: with its own light.
        lit: with the light of the image after.
        warp: homography that brought it there, from pixels of the image after to those before, without optical flow.
        valid: bool (H, W), where the image before shows anything.
        shift: length in pixels of the displacements that a homography does not explain, 90th percentile over surfaces
            seen in both images; 0 without such displacements.
        sure: the views do not differ so much that surfaces may be mistaken for changes.
        settled: the camera did not move, or what followed it stands still once warped: what differs is no parallax.
        along: where the camera moved, ``lit`` also displaced by the optical flow: what it shows as the image after does
            is no change. None where it stood still, or nobody can tell.
        matches: points (N, 2) of the image after and of the one before that show the same; None if there are few.
    """

    before: np.ndarray
    lit: np.ndarray
    warp: np.ndarray
    valid: np.ndarray
    shift: float
    sure: bool
    settled: bool
    along: np.ndarray | None
    matches: tuple[np.ndarray, np.ndarray] | None


class CameraView(NamedTuple):
    """The view after by that before: ``turn`` of the camera in degrees, clockwise positive; ``zoom`` above 1 shows a
    part of the view before, larger; ``agreed``: most features of both images do."""

    turn: float
    zoom: float
    agreed: bool = False

    @classmethod
    def of(cls, warp: np.ndarray) -> CameraView:
        """That of a warp (2 or 3, 3) with little tilt."""
        (a, b), (c, d) = warp[:2, :2]
        return cls(math.degrees(math.atan2(c, a)), 1 / math.sqrt(abs(a * d - b * c)))


def align(before: np.ndarray, after: np.ndarray, tolerance: float) -> Alignment:
    """Align the image before with the image after; their sizes may differ. ``tolerance``: displacements, in pixels,
    that the comparison allows for."""
    matches = matches_of(before, after)
    warp = _warp(before, after, matches)
    warped, valid = warped_to(before, warp, after.shape[:2])
    lit = in_the_light_of(warped, after, valid)
    still = _stands_still(before, after)
    if still is None and matches is not None and view_of(matches, after.shape):  # corners could not be followed so far
        source, target = matches
        still = _are_still(source, cv2.perspectiveTransform(target[:, None], scaling(before, after))[:, 0], after.shape)
    if still:  # for speed: flow finds nothing there that moved, of none of 78 real pairs
        return Alignment(warped, lit, warp, valid, 0.0, True, True, None, matches)
    flow, moved, shift, sure = _parallax(lit, after, valid, tolerance)
    along = moved if still is False else None
    settled = along is None or _stands_still(warped, after) is True
    if flow is None:
        return Alignment(warped, lit, warp, valid, 0.0, sure, settled, along, matches)
    moved_before, inside = _moved(warped, flow)
    return Alignment(moved_before, moved, warp, valid & inside, shift, sure, settled, along, matches)


def scaling(image: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Homography from pixels of an image to those of the same image at another size."""
    return np.diag([other.shape[1] / image.shape[1], other.shape[0] / image.shape[0], 1.0])


def unaligned(before: np.ndarray, after: np.ndarray) -> Alignment:
    """The image before as it is, stretched to the size of the image after."""
    warp = scaling(after, before)
    stretched, valid = warped_to(before, warp, after.shape[:2])
    return Alignment(stretched, stretched, warp, valid, 0.0, True, True, None, None)


def share_in_agreement(
    before: np.ndarray,
    after: np.ndarray,
    where: np.ndarray,
    noise: float,
    least: float = 0.0,
    similar: float = SIMILAR,
) -> float:
    """Share in [0, 1] of the textured blocks of a part of the images (bool (H, W)) that have a similar texture in both;
    NaN where there is hardly any texture.

    Args:
        noise: standard deviation of the images' noise; weaker textures do not count.
        least: smallest share of the part's blocks that must be textured.
        similar: correlation from which textures agree.
    """
    correlation, textured = _textures(before, after, where, noise)
    blocks = cv2.resize(where.astype(np.uint8), textured.shape[::-1], interpolation=cv2.INTER_NEAREST).sum()
    if textured.sum() < max(_MIN_BLOCKS, least * blocks):
        return math.nan
    return float((correlation[textured] > similar).mean())


def noise_of(image: np.ndarray) -> float:
    """Standard deviation of an image's noise (Immerkaer 1996, with a median in place of the mean)."""
    kernel = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32) / 6
    return 1.4826 * float(np.median(np.abs(cv2.filter2D(_grey(image), -1, kernel))))


def _stands_still(before: np.ndarray, after: np.ndarray) -> bool | None:
    """Whether the corners of the background are where they were; None if nobody can tell."""
    first, second = _bytes(cv2.resize(before, after.shape[1::-1], interpolation=cv2.INTER_AREA)), _bytes(after)
    corners = cv2.goodFeaturesToTrack(second, 600, 0.01, 10)
    if corners is None:
        return None
    window, levels = (15, 15), 4
    there, seen, _ = cv2.calcOpticalFlowPyrLK(second, first, corners, np.empty(0), None, None, window, levels)
    back, seen_again, _ = cv2.calcOpticalFlowPyrLK(first, second, there, np.empty(0), None, None, window, levels)
    returned = np.linalg.norm(back - corners, axis=-1).ravel() < 0.5
    followed = returned & (np.asarray(seen) & np.asarray(seen_again)).ravel().astype(bool)
    if followed.sum() < max(_MIN_MATCHES, _MIN_FOLLOWED * len(followed)):
        return None
    return _are_still(corners[followed][:, 0], there[followed][:, 0], after.shape)


def _are_still(points: np.ndarray, others: np.ndarray, size: tuple[int, ...]) -> bool | None:
    """Whether points (N, 2) are where they were, all but those of what moved; None if nobody can tell."""
    stayed = np.linalg.norm(others - points, axis=-1) < 1
    if stayed.mean() >= _STILL:
        return True
    return False if stayed.mean() <= 1 - _STILL and _spread(points[~stayed], size) >= _BESIDE else None


def _warp(before: np.ndarray, after: np.ndarray, matches: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """The warp: stretched to the same size, a homography from features, or ECC from the better of both; each only if it
    explains the pair clearly better than the one before."""
    size = after.shape[:2]
    stretch = scaling(after, before)
    detail = _detail(after)
    best, residual = stretch, _residual(before, detail, stretch)
    for estimate in (partial(_by_features, matches, size), partial(_by_correlation, before, after)):
        warp = estimate(best)
        if warp is None or not _plausible(warp, stretch, size):
            continue
        if (other := _residual(before, detail, warp)) < _BETTER * residual:
            best, residual = warp, other
    return best


def _by_features(
    matches: tuple[np.ndarray, np.ndarray] | None, size: tuple[int, ...], start: np.ndarray
) -> np.ndarray | None:
    """From SIFT matches; None without enough of them."""
    if matches is None:
        return None
    source, target = matches
    cv2.setRNGSeed(0)  # RANSAC draws its samples from it; equal pairs must give equal captions
    warp, inliers = cv2.findHomography(source, target, cv2.USAC_MAGSAC, 2.0, maxIters=5000, confidence=0.999)
    if warp is None or inliers is None or inliers.sum() < _MIN_MATCHES:
        return None
    return warp if _spread(source[inliers.ravel() > 0], size) >= _MIN_SPREAD else None


def matches_of(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Points (N, 2) of the image after and of the one before that show the same, by SIFT; None if there are few."""
    sift = cv2.SIFT.create(nfeatures=1000, contrastThreshold=0.02)
    (points, descriptors), (others, other_descriptors) = (
        sift.detectAndCompute(_bytes(x), None) for x in (after, before)
    )
    if descriptors is None or other_descriptors is None or min(len(points), len(others)) < _MIN_MATCHES:
        return None
    pairs = cv2.BFMatcher(cv2.NORM_L2).knnMatch(descriptors, other_descriptors, k=2)
    matches = [pair[0] for pair in pairs if len(pair) == 2 and pair[0].distance < 0.75 * pair[1].distance]
    if len(matches) < _MIN_MATCHES:
        return None
    source = np.array([points[match.queryIdx].pt for match in matches], np.float32)
    return source, np.array([others[match.trainIdx].pt for match in matches], np.float32)


def view_of(matches: tuple[np.ndarray, np.ndarray] | None, size: tuple[int, ...]) -> CameraView | None:
    """How the view after, of a size, relates to the one before; None if features do not agree on it. ``matches``: as
    :attr:`Alignment.matches`."""
    if matches is None:
        return None
    cv2.setRNGSeed(0)
    warp, inliers = cv2.estimateAffinePartial2D(*matches, ransacReprojThreshold=4.0)
    if warp is None or inliers.sum() < max(2 * _MIN_MATCHES, _AGREED * len(inliers)):
        return None
    if np.linalg.norm(warp[0, :2]) < _LEAST_SCALE:  # all features of the view after are matched with one
        return None
    agreed = inliers.mean() >= _MOSTLY and _spread(matches[0][inliers.ravel() > 0], size) >= _MIN_SPREAD
    return CameraView.of(warp)._replace(agreed=bool(agreed))


def _by_correlation(before: np.ndarray, after: np.ndarray, start: np.ndarray) -> np.ndarray | None:
    """By ECC at half the size; None where it does not converge."""
    half = np.diag([0.5, 0.5, 1.0])
    # ECC finds the warp from the first image to the second: after first, as `start` has it.
    small, other = (cv2.resize(_grey(x), None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA) for x in (after, before))
    warp = (half @ start @ np.linalg.inv(half)).astype(np.float32)
    criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 60, 1e-5)
    try:
        _, warp = cv2.findTransformECC(
            small, other, warp, cv2.MOTION_HOMOGRAPHY, criteria, np.full_like(other, 255, np.uint8), 5
        )
    except cv2.error:  # plain images, or no overlap
        return None
    return np.linalg.inv(half) @ warp.astype(np.float64) @ half


def _plausible(warp: np.ndarray, stretch: np.ndarray, size: tuple[int, int]) -> bool:
    """Whether a camera that moved a little gives this warp: no mirror, half to twice the size, little tilt."""
    relative = np.linalg.inv(stretch) @ warp
    if not np.isfinite(relative).all() or abs(relative[2, 2]) < 1e-6:
        return False
    relative = relative / relative[2, 2]
    tilt = np.abs(relative[2, :2] * (size[1], size[0])).max()
    return bool(0.25 < np.linalg.det(relative[:2, :2]) < 4.0 and tilt < _MAX_TILT)


def _residual(before: np.ndarray, detail: np.ndarray, warp: np.ndarray) -> float:
    """Mean difference of the details, each clipped so that what changed counts little; infinite if little overlaps.
    ``detail`` is that of the image after."""
    warped, valid = warped_to(before, warp, detail.shape)
    if valid.mean() < _MIN_COVERED:
        return np.inf
    first, second = _detail(warped)[valid], detail[valid]
    scale = 1.4826 * float(np.median(np.abs(second))) + 1e-3
    return float(np.minimum(np.abs(first - second) / scale, 2.0).mean())


def _parallax(
    lit: np.ndarray, after: np.ndarray, valid: np.ndarray, tolerance: float
) -> tuple[np.ndarray | None, np.ndarray, float, bool]:
    """Optical flow from the image after to the one before, the image before along it, and its length
    (:attr:`Alignment.shift`), if the camera moved: if flow explains nearly all textures, and nearly all of them are
    displaced. Otherwise None in place of the flow: it would also follow the one thing that moved in front of a fixed
    camera, and hide that it did. Then :attr:`Alignment.sure`."""
    flow, moved = along_flow(lit, after)
    noise = max(noise_of(lit), noise_of(after))
    correlation, textured = _textures(moved, after, valid, noise)
    same = textured & (correlation > SAME_TEXTURE)
    if same.sum() < _MIN_BLOCKS:
        return None, moved, 0.0, True
    every = np.linalg.norm(flow, axis=-1)[_STEP::_STEP, _STEP::_STEP]
    lengths, points = every[same], np.argwhere(same & (every > _MIN_FLOW)).astype(np.float32)
    displacement = np.quantile(lengths, 1 - _DISPLACED)
    explained = float((correlation[textured] > SIMILAR).mean())
    longest, middle = np.quantile(lengths, [0.9, 0.5])
    across = _spread(points, same.shape)
    if explained >= _EXPLAINED and displacement > _MIN_FLOW and longest <= _EVEN * middle and across >= _ACROSS:
        return flow, moved, float(longest), True
    gain = explained - share_in_agreement(lit, after, valid, noise)
    return None, moved, 0.0, not (gain >= _DOUBTFUL_GAIN and displacement > tolerance and across >= _BESIDE)


def along_flow(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Optical flow (H, W, 2) in pixels from the image after to the one before, and the image before displaced by it."""
    dis = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)
    flow = dis.calc(_bytes(after), _bytes(before), np.zeros((*after.shape[:2], 2), np.float32))
    flow = np.dstack([cv2.medianBlur(np.ascontiguousarray(flow[..., axis]), 5) for axis in (0, 1)])
    flow = cv2.GaussianBlur(flow, (0, 0), 2.0)
    return flow, _moved(before, flow)[0]


def _moved(image: np.ndarray, flow: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An image displaced by a flow (H, W, 2), and where it shows anything."""
    rows, columns = np.mgrid[0 : flow.shape[0], 0 : flow.shape[1]].astype(np.float32)
    x, y = columns + flow[..., 0], rows + flow[..., 1]
    inside = (x >= 0) & (y >= 0) & (x <= flow.shape[1] - 1) & (y <= flow.shape[0] - 1)
    return cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE), inside


def _textures(before: np.ndarray, after: np.ndarray, where: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Per block the correlation of the brightness of both images, and whether one of them has a texture there."""
    first, second = (cv2.GaussianBlur(_grey(image), (0, 0), 1.5) for image in (before, after))
    weights = where.astype(np.float32)

    def sums(values: np.ndarray) -> np.ndarray:
        return cv2.boxFilter(values * weights, -1, (_BLOCK, _BLOCK), normalize=False)[_STEP::_STEP, _STEP::_STEP]

    pixels = sums(np.ones_like(first))
    count = np.maximum(pixels, 1)
    mean, other = sums(first) / count, sums(second) / count
    variance, other_variance = sums(first**2) / count - mean**2, sums(second**2) / count - other**2
    covariance = sums(first * second) / count - mean * other
    textured = (pixels > 0.6 * _BLOCK**2) & (np.maximum(variance, other_variance) > (0.015 + noise / 3) ** 2)
    return covariance / np.sqrt(np.maximum(variance * other_variance, 1e-12)), textured


def _spread(points: np.ndarray, size: tuple[int, ...]) -> float:
    """Share of an image that the convex hull of points (N, 2) covers."""
    return cv2.contourArea(cv2.convexHull(points)) / (size[0] * size[1]) if len(points) >= 3 else 0.0


def _grey(image: np.ndarray) -> np.ndarray:
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)


def _bytes(image: np.ndarray) -> np.ndarray:
    return (255 * _grey(image)).clip(0, 255).astype(np.uint8)


def _detail(image: np.ndarray) -> np.ndarray:
    """The brightness without its local mean, which follows the light."""
    grey = _grey(image)
    return cv2.GaussianBlur(grey, (0, 0), 1.0) - cv2.GaussianBlur(grey, (0, 0), 8.0)
