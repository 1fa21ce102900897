"""To whom ``auto`` gives a pair: real pictures in any state to ``objects``, and what it contradicts too."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import skimage.data
from PIL import Image

import serve
from idc.captioning.contract import FAMILIAR_FROM, Candidate, Captioner, Claim, Description, SearchOptions
from idc.captioning.counts import counts_of
from idc.captioning.familiarity import Familiarity
from idc.captioning.loading import AutoCaptioner
from idc.captioning.objects_config import ObjectsConfig
from idc.captioning.sources import SHIPPED, artifact_folder
from idc.data.images import decode_image

EXAMPLES = Path(serve.__file__).parent / "web" / "examples"
Change = Callable[[np.ndarray], np.ndarray]


def screen(ground: int, ink: int) -> np.ndarray:
    """A window with lines of code."""
    image = np.full((600, 900, 3), ground, np.uint8)
    for line in range(20):
        corner = 20 + 20 * (line % 3), 30 + 26 * line
        cv2.putText(image, "return timeout(30)"[: 5 + line % 13], corner, cv2.FONT_HERSHEY_SIMPLEX, 0.6, (ink,) * 3, 1)
    return image


def stars() -> np.ndarray:
    random, sky = np.random.default_rng(0), np.zeros((400, 600, 3), np.uint8)
    sky[random.integers(0, 400, 300), random.integers(0, 600, 300)] = 255
    return sky


PICTURES = [
    *(decode_image(path.read_bytes()) for path in sorted((EXAMPLES / "photographs").glob("*.jpg"))),
    *(getattr(skimage.data, name)() for name in ("astronaut", "chelsea", "coffee", "rocket", "hubble_deep_field")),
    *(cv2.cvtColor(getattr(skimage.data, name)(), cv2.COLOR_GRAY2RGB) for name in ("brick", "gravel", "moon", "page")),
    screen(30, 210), screen(0, 160), screen(255, 20), screen(150, 90), stars(),
    *(np.full((200, 300, 3), level, np.uint8) for level in (0, 60, 128, 255)),
]  # fmt: skip


def mean(level: float) -> Change:
    return lambda image: (image * (level / max(image.mean(), 1))).clip(0, 255).astype(np.uint8)


def jpeg(image: np.ndarray) -> np.ndarray:
    Image.fromarray(image).save(file := io.BytesIO(), "JPEG", quality=30)
    return decode_image(file.getvalue())


CHANGES: dict[str, Change] = {
    "as it is": lambda image: image, "mean 20": mean(20), "mean 40": mean(40), "JPEG": jpeg,
    "fog": lambda image: (0.35 * image + 130).astype(np.uint8),
    "low contrast": lambda image: (0.3 * image + 0.7 * image.mean()).astype(np.uint8),
    "grey": lambda image: cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB),
    "blurred": lambda image: cv2.GaussianBlur(image, (0, 0), max(image.shape) / 100),
}  # fmt: skip


def familiarity_of(name: str) -> Familiarity:
    familiarity = Familiarity.read(artifact_folder(name))
    assert familiarity is not None
    return familiarity


@pytest.mark.parametrize("change", CHANGES)
def test_no_real_picture_in_any_state_is_familiar_to_what_was_trained_on_rendered_ones(change: str) -> None:
    familiarity = familiarity_of(SHIPPED)
    pictures = [CHANGES[change](image) for image in PICTURES]
    assert [index for index, image in enumerate(pictures) if familiarity(image, image) >= FAMILIAR_FROM] == []


def test_both_images_must_be_familiar() -> None:
    familiarity = familiarity_of(SHIPPED)
    rendered = [decode_image(path.read_bytes()) for path in sorted(EXAMPLES.glob("*.png"))]
    assert sum(familiarity(*pair) >= FAMILIAR_FROM for pair in zip(rendered[::2], rendered[1::2], strict=True)) >= 4
    assert familiarity(rendered[0], PICTURES[0]) < FAMILIAR_FROM
    assert familiarity(PICTURES[0], rendered[0]) < FAMILIAR_FROM


class Says(Captioner):
    """Always the same."""

    capabilities = frozenset({"map"})

    def __init__(self, description: Description) -> None:
        self.description = description

    def _describe(self, befores: Any, afters: Any, options: Any) -> list[Description]:
        return [self.description] * len(befores)


def claim(name: str, confidence: float = 0.9) -> Claim:
    return Claim("changed", name, 1, "on the left", (0, 0, 9, 9), (0, 0, 9, 9), confidence)


SAME, MOVED = (Description((Candidate(text, -0.1),)) for text in ("the scene is the same", "the red cube moved"))
KNOWS = type("KnowsAll", (), {"__call__": lambda self, before, after: 1.0})()


@pytest.mark.parametrize(
    ("trained", "claims", "captioner", "why"),
    [
        (MOVED, (), "x", "objects does not object"),
        (MOVED, (claim("region"),), "x", "objects does not object"),
        (SAME, (), "x", "objects does not object"),
        (SAME, (claim("region"),), "objects", "objects finds a change, which x does not"),
        (MOVED, (claim("words"),), "objects", "objects names words, which x does not"),
        (MOVED, (claim("car"), claim("region")), "objects", "objects names car, which x does not"),
        (MOVED, (claim("cup", 0.6),), "x", "objects does not object"),
        (SAME, (claim("cup", 0.6),), "objects", "objects finds a change, which x does not"),
        (MOVED, (), "objects", "no familiarity was fitted of x"),
    ],
)
def test_objects_decides_where_it_contradicts_and_the_answer_says_why(
    trained: Description, claims: tuple[Claim, ...], captioner: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    familiarity = None if why.startswith("no familiarity") else KNOWS
    sees = Description((Candidate("Something changed." if claims else "Nothing changed.", -0.1),), claims=claims)
    monkeypatch.setattr("idc.captioning.loading.untrained_captioner", lambda config: Says(sees))
    auto = AutoCaptioner("x", lambda: Says(trained), familiarity, ObjectsConfig(detector="embedded"))
    [description] = auto.describe([PICTURES[0]], [PICTURES[0]])
    assert description.captioner == captioner
    assert why in (description.chosen or "")
    assert description.best == (trained if captioner == "x" else sees).best


def test_what_counts_is_told_apart_by_objects_even_where_the_trained_one_knows_the_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("idc.captioning.loading.untrained_captioner", lambda config: Says(SAME))
    auto = AutoCaptioner("x", lambda: Says(MOVED), KNOWS, ObjectsConfig(detector="embedded"))
    for counts, captioner in ((None, "x"), (counts_of(["traffic"]), "objects")):
        [description] = auto.describe([PICTURES[0]], [PICTURES[0]], SearchOptions(counts=counts))
        assert description.captioner == captioner
    assert description.chosen == "it tells apart what counts, which x does not"
