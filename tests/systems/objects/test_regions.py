"""The captioner without training, on drawn scenes whose changes are known: what it finds and what it leaves out."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_image

from idc.captioning.contract import Description, SearchOptions
from idc.captioning.objects_config import NONE, ObjectsConfig
from idc.metrics.change_maps import average_precision
from idc.systems.objects.alignment import align, view_of
from idc.systems.objects.captioner import ObjectsCaptioner
from idc.systems.objects.wording import INCOMPARABLE, MIXED, colour_of

HEIGHT, WIDTH = 240, 320
RED, BLUE, GREEN = (200, 30, 30), (40, 60, 200), (40, 150, 50)


def ground(seed: int = 0, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    rng = np.random.default_rng(seed)
    coarse = cv2.resize(rng.uniform(90, 170, (height // 12, width // 12)).astype(np.float32), (width, height))
    fine = cv2.GaussianBlur(rng.normal(0, 40, (height, width)).astype(np.float32), (0, 0), 1.2)
    return np.repeat((coarse + fine).clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)


def with_disk(image: np.ndarray, x: int, y: int, colour: tuple[int, int, int], radius: int = 20) -> np.ndarray:
    return np.asarray(cv2.circle(image.copy(), (x, y), radius, colour, -1, cv2.LINE_AA))


def described(before: np.ndarray, after: np.ndarray) -> Description:
    captioner = ObjectsCaptioner(ObjectsConfig(detector=NONE, mode="photographs"))
    [description] = captioner.describe([before], [after], SearchOptions(change_map=True))
    return description


def shifted(image: np.ndarray, x: int, y: int) -> np.ndarray:
    matrix = np.array([[1, 0, x], [0, 1, y]], np.float32)
    return np.asarray(cv2.warpAffine(image, matrix, (image.shape[1], image.shape[0]), borderMode=cv2.BORDER_REFLECT))


def test_a_region_has_a_box_a_share_a_position_and_colours() -> None:
    description = described(with_disk(ground(), 60, 50, RED), with_disk(ground(), 60, 50, BLUE))
    [region] = description.regions or ()
    left, top, right, bottom = region.box
    assert np.abs(np.array([left, top, right, bottom]) - (40, 30, 81, 71)).max() <= 4
    assert region.share == pytest.approx(np.pi * 20**2 / (HEIGHT * WIDTH), rel=0.2)
    assert (region.position, region.before, region.after) == ("at the top left", "red", "blue")
    assert description.best.caption == (
        "One region changed: at the top left (2 % of the picture, red before and blue after)."
    )
    assert description.verdict == "changed"
    assert description.objects_text == description.best.caption
    assert description.to_dict()["regions"] == [{**vars(region), "box": list(region.box)}]


def _blobs(channels: tuple[int, ...], seed: int = 4) -> np.ndarray:
    """Fluorescence: soft spots in some of the channels, on black."""
    rng = np.random.default_rng(seed)
    image = np.zeros((HEIGHT, WIDTH, 3), np.float32)
    for channel in channels:
        layer = np.zeros((HEIGHT, WIDTH), np.float32)
        for x, y in rng.integers(10, (WIDTH - 10, HEIGHT - 10), (12, 2)):
            cv2.circle(layer, (int(x), int(y)), int(rng.integers(4, 15)), float(rng.uniform(60, 255)), -1)
        image[..., channel] = cv2.GaussianBlur(layer, (0, 0), 2.0)
    return image.astype(np.uint8)


def _written(colour: str, paper: str) -> np.ndarray:
    image = Image.new("RGB", (WIDTH, HEIGHT), paper)
    ImageDraw.Draw(image).text((20, 60), "OPEN 24 h", fill=colour, font=ImageFont.load_default(34))
    return np.array(image)


NOISE = np.random.default_rng(6).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
KINDS: dict[str, np.ndarray] = {
    **{str(rgb): np.full((HEIGHT, WIDTH, 3), rgb, np.uint8) for rgb in ((0, 0, 0), (255, 255, 0), (90, 90, 90))},
    "dark": NOISE // 20, "noise": NOISE, "stars": np.where(NOISE > 254, NOISE, 0).astype(np.uint8),
    "green fluorescence": _blobs((1,)), "two dyes": _blobs((1, 2)), "red text": _written("red", "black"),
    "silhouette": with_disk(np.full((HEIGHT, WIDTH, 3), 255, np.uint8), 100, 100, (0, 0, 0), 40),
    "1 x 1": NOISE[:1, :1], "240 x 3": NOISE[:, :3], "photograph": load_sample_image("china.jpg"),
    "gradient": np.repeat(np.linspace(0, 255, WIDTH).astype(np.uint8)[None, :, None], 3, axis=2).repeat(HEIGHT, axis=0),
    "checkerboard": cv2.merge([((np.indices((HEIGHT, WIDTH)) // 8).sum(axis=0) % 2 * 255).astype(np.uint8)] * 3),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_an_image_is_equal_to_itself_compressed_and_in_a_tenth_less_light(name: str) -> None:
    image = KINDS[name]
    description = described(image, image)
    assert (description.best.caption, description.verdict) == ("No region changed.", "unchanged")
    assert (description.regions, description.doubt) == ((), None)
    assert description.change_map is not None
    assert description.change_map.max() < 0.05
    assert not described(image, (image * 0.9).astype(np.uint8)).regions or image is NOISE
    jpeg = cv2.imdecode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 80])[1], cv2.IMREAD_COLOR)
    assert not described(image, np.asarray(jpeg)).regions or name in ("noise", "240 x 3")


def _noisy(image: np.ndarray) -> np.ndarray:
    return (image + np.random.default_rng(1).normal(0, 12, image.shape)).clip(0, 255).astype(np.uint8)


def _light(image: np.ndarray) -> np.ndarray:
    slope = np.linspace(0.55, 0.8, image.shape[1])[None, :, None]
    return (image * slope * (0.95, 1.0, 1.1) + 8).clip(0, 255).astype(np.uint8)


PERTURBATIONS = {
    "noise": _noisy,
    "light": _light,
    "shift": lambda image: shifted(image, 9, -6),
    "shift and light": lambda image: _light(shifted(image, -7, 5)),
}


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_the_change_is_found_under_noise_light_and_shift_where_pixel_difference_is_lost(name: str) -> None:
    before = with_disk(ground(), 60, 50, RED)
    assert not described(before, PERTURBATIONS[name](before)).regions
    after = PERTURBATIONS[name](with_disk(before, 240, 180, GREEN))
    drawn = PERTURBATIONS[name](with_disk(np.zeros_like(before), 240, 180, (255, 255, 255))).max(axis=2)
    truth = drawn > drawn.max() / 2
    description = described(before, after)
    assert [region.position for region in description.regions or ()] == ["at the bottom right"]
    assert description.change_map is not None
    pixels = np.abs(before.astype(float) - after).mean(axis=2)
    found = average_precision(truth, description.change_map)
    assert found > 0.85
    assert found > average_precision(truth, pixels)


def test_different_places_are_not_compared_region_by_region() -> None:
    description = described(ground(1), ground(2))
    assert description.best.caption == INCOMPARABLE
    assert (description.verdict, description.regions) == ("unsure", ())
    assert description.verdict_text is not None


@pytest.mark.parametrize("size", [(1, 1), (40, 33), (2000, 1500)])
def test_any_size_is_described_and_boxes_are_in_pixels_of_the_image_after(size: tuple[int, int]) -> None:
    before = cv2.resize(ground(), (size[1], size[0]), interpolation=cv2.INTER_AREA)
    after = before.copy()
    after[size[0] // 2 :, size[1] // 2 :] = RED
    small = cv2.resize(before, (max(1, size[1] // 2), max(1, size[0] // 2)))
    description = described(small, after)
    assert description.change_map is not None
    assert np.isfinite(description.change_map).all()
    for region in description.regions or ():
        left, top, right, bottom = region.box
        assert 0 <= left < right <= size[1]
        assert 0 <= top < bottom <= size[0]


def test_displacements_that_no_camera_turn_explains_are_no_change_and_leave_doubt() -> None:
    """As when the camera moves past near and far things: rows of the image are displaced by different lengths."""
    before = with_disk(with_disk(ground(), 60, 50, RED), 240, 170, BLUE)
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    after = cv2.remap(before, columns + 6 * np.sin(rows / 25), rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    description = described(before, after)
    assert (
        description.best.caption
        == "No change was found, but positions differ, as when the camera or what it shows moves."
    )
    assert (description.verdict, description.regions) == ("unsure", ())
    assert description.verdict_text == "positions differ, and a change cannot be told from what the other view hides"


def test_regions_of_a_moved_thing_are_two_and_more_than_three_are_counted_and_summed_up() -> None:
    scene = with_disk(with_disk(ground(), 160, 40, BLUE), 160, 200, RED)
    description = described(with_disk(scene, 60, 120, GREEN), with_disk(scene, 250, 120, GREEN))
    assert {region.position for region in description.regions or ()} == {"on the left", "on the right"}
    before = after = ground()
    for x in (40, 110, 180, 250):
        after = with_disk(after, x, 120, RED)
    caption = described(before, after).best.caption
    assert caption.startswith("4 regions changed: 7 % of the picture in all, the largest ")
    assert caption.count("red after") == 3


NAMES = {
    "black": (10, 10, 12), "grey": (128, 128, 128), "white": (250, 250, 250), "red": (200, 30, 30),
    "green": (40, 150, 50), "brown": (120, 70, 30), "pink": (240, 150, 170), "dark yellow": (150, 145, 40),
}  # fmt: skip


def test_colours_have_their_common_names_if_most_pixels_have_them() -> None:
    for name, rgb in NAMES.items():
        assert colour_of(np.full((4, 3), np.array(rgb) / 255, np.float32)) == name
    assert colour_of(np.array([[1, 0, 0]] * 5 + [[0, 0, 1]] * 5, np.float32)) == MIXED


VIEWS = {
    "left": (lambda image: np.rot90(image), "The image after is turned by a quarter to the left."),
    "right": (lambda image: np.rot90(image, -1), "The image after is turned by a quarter to the right."),
    "upside down": (lambda image: np.rot90(image, 2), "The image after is turned upside down."),
    "zoom": (
        lambda image: cv2.resize(image[50:-50, 75:-75], None, fx=1.5, fy=1.5),
        "The view after is a part of the one before, 1.3 times as large.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_turns_and_parts_of_the_view_are_named_and_no_change(name: str) -> None:
    turn, sentence = VIEWS[name]
    image = load_sample_image("china.jpg")
    description = described(image, np.ascontiguousarray(turn(image)))
    assert description.best.caption.endswith(sentence)
    assert (description.verdict, description.regions) == ("unsure", ())
    assert "turned" not in described(image, cv2.resize(image, None, fx=0.5, fy=0.7)).best.caption


@pytest.mark.parametrize("scene", ["china.jpg", "flower.jpg"])
@pytest.mark.parametrize("width", [2, 5, 9])
def test_a_thin_line_is_a_change(scene: str, width: int) -> None:
    before = cv2.resize(load_sample_image(scene), (512, 341), interpolation=cv2.INTER_AREA)
    x = np.linspace(100, 410, 60)
    points = np.stack([x, 170 + 40 * np.sin(x / 60)], 1).astype(np.int32)
    after = cv2.polylines(before.copy(), [points], False, (20, 20, 30), width, cv2.LINE_AA)
    for first, second, kind in ((before, after, "appeared"), (after, before, "gone")):
        claims = described(first, second).claims or ()
        assert {claim.kind for claim in claims} == {kind}
        assert {claim.object for claim in claims} <= {"line", "region"}
    jpeg = cv2.imdecode(cv2.imencode(".jpg", before, [cv2.IMWRITE_JPEG_QUALITY, 25])[1], cv2.IMREAD_COLOR)
    for unchanged in (np.asarray(jpeg), shifted(before, 4, 3)):
        assert not described(before, unchanged).claims


def test_before_a_camera_that_stands_still_flow_explains_nothing_away() -> None:
    """What moved in front of it is a change, though flow could move it back; under a moved camera it is not."""
    still = with_disk(ground(), 100, 120, RED, 40), with_disk(ground(), 112, 120, RED, 40)
    assert align(*(image.astype(np.float32) / 255 for image in still), 1).along is None
    assert described(*still).regions
    moved = ground(), shifted(ground(), 8, 5)
    assert align(*(image.astype(np.float32) / 255 for image in moved), 1).along is not None


@pytest.mark.parametrize(("agreeing", "zoom"), [(200, 2.0), (100, 2.0), (40, None)])
def test_the_view_is_that_of_most_matches_or_nobody_can_tell(agreeing: int, zoom: float | None) -> None:
    """Of 200 points the others match anything; a view of a fifth of them is that of one thing."""
    points = np.random.default_rng(0).uniform(0, 500, (2, 200, 2)).astype(np.float32)
    points[1, :agreeing] = points[0, :agreeing] / 2 + 100
    view = view_of((points[0], points[1]), (500, 500))
    assert (None if view is None else round(view.zoom, 2)) == zoom
    assert (view is not None and view.agreed) == (agreeing >= 100)
    of_a_part = view_of((points[0] / 3, points[1] / 3), (500, 500))
    assert of_a_part is None or not of_a_part.agreed, "a thing may have turned"
    assert view_of((points[0], np.full_like(points[1], 100)), (500, 500)) is None, "all are matched with one"
