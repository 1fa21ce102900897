"""An artifact as the captioner of a replica, where HTTP does not show it: what it loads, and whose parts count in a
batch of several requests."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from idc.captioning.loading import AUTO, SHIPPED, LoadConfig
from idc.captioning.objects_config import ObjectsConfig
from idc.data.images import decode_image, encode_png
from idc.systems import OBJECTS, REGIONS
from serve.backend import EncodedPair, Options, PairResult
from serve.captioner import ServedCaptioner
from serve.decoding import Decoders
from tests.serve.local import described
from tests.serve.test_captions import DISKS
from tests.serve.test_openai import BOTTLES, RENDERED


def caption(captioner: ServedCaptioner, *pairs: EncodedPair) -> list[PairResult]:
    async def decoded() -> list[Any]:
        decoders = Decoders(2, 60)
        return [await decoders.pair(pair) for pair in pairs]

    return captioner.caption(asyncio.run(decoded()), Options())


def test_after_its_warm_up_nothing_is_loaded_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    served = ServedCaptioner(AUTO, LoadConfig(objects=ObjectsConfig(text=False)))
    served.warm_up()
    for loader in ("idc.captioning.loading.load_captioner", "idc.systems.objects.captioner.load_detector"):
        monkeypatch.setattr(loader, None)
    results = caption(served, EncodedPair(*RENDERED), EncodedPair(*BOTTLES))
    assert [result.description and result.description.captioner for result in results] == [SHIPPED, OBJECTS]


def test_a_model_that_fails_when_it_is_warmed_up_is_served_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint may be down for a moment."""
    served = ServedCaptioner(SHIPPED)

    def down(*_: Any, **__: Any) -> Any:
        raise ConnectionError("the endpoint is down")

    with monkeypatch.context() as patch:
        patch.setattr(served.captioner, "describe", down)
        served.warm_up()
    assert caption(served, EncodedPair(*RENDERED))[0].captions


def test_what_does_not_count_is_each_pairs_own_in_one_batch() -> None:
    """Of requests with equal options, which share it: with a mask, and with boxes in pixels and in shares."""
    height, width = decode_image(DISKS.after).shape[:2]
    left = np.zeros((height, width, 3), np.uint8)
    left[:, : width // 2] = 255
    mask = encode_png(left)
    parts: list[dict[str, Any]] = [
        {}, {"ignore": ((0, 0, width // 2, height),)}, {"ignore": ((0.5, 0, 1, 1),)}, {"only": (mask,)},
    ]  # fmt: skip
    results = caption(ServedCaptioner(REGIONS), *(EncodedPair(*DISKS, **part) for part in parts))
    only_left: list[dict[str, Any]] = [{}, {"ignore": [(0, 0, 0.5, 1)]}, {"only": [(0, 0, 0.5, 1)]}]
    whole, right, of_left = (described(REGIONS, DISKS, **part)[0].description.objects_text for part in only_left)
    assert [result.description and result.description.objects_text for result in results] == [
        whole, right, of_left, of_left,
    ]  # fmt: skip
    assert len({whole, right, of_left}) == 3
    assert {result.batch for result in results} == {4}
