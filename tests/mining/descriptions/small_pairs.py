"""A small folder of pairs whose images differ from pair to pair, and a model's side of the conversation about them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np

from idc.data.images import decode_image, encode_png
from idc.data.schema import ChangePair
from idc.mining.descriptions.config import DescribeJob
from idc.mining.descriptions.template import PairDescription
from tests.folders import write_rows

SHAPE = (8, 12, 3)


def image(number: int, after: bool) -> bytes:
    pixels = np.full(SHAPE, number, np.uint8)
    pixels[..., 2] = 255 * after
    return encode_png(pixels)


def write_pairs(folder: Path, count: int, **changed: Any) -> str:
    """``count`` pairs ``p00``, ...; ``changed``: pair -> other fields."""
    rows = []
    for number in range(count):
        pair = {
            "pair_id": f"p{number:02}", "before": image(number, False), "after": image(number, True), "source": "cc3m",
            "split": "val" if number % 4 == 3 else "train", "captions": ("an old caption",), "meta": {"number": number},
        }  # fmt: skip
        rows.append(ChangePair(**{**pair, **changed.get(f"p{number:02}", {})}))
    return write_rows(folder, rows, fingerprint=f"small {count}")


def number_in(content: Any) -> int:
    before, after = (part["image_url"]["url"] for part in content if part["type"] == "image_url")
    pixels = [decode_image(base64.b64decode(url.partition("base64,")[2])) for url in (before, after)]
    assert [int(one[0, 0, 2]) == 255 for one in pixels] == [False, True], "the images are in another order"
    return int(pixels[0][0, 0, 0])


def good(number: int) -> str:
    return PairDescription("shows", f"{number} red cubes", "has", f"{number} blue cubes").sentence()


def described(number: int) -> tuple[int, str]:
    return 200, good(number)


def job(pairs: str, url: str, **more: Any) -> DescribeJob:
    endpoint = {"url": url, "model": "Qwen2-VL", **more.pop("endpoint", {})}
    return DescribeJob(pairs=pairs, out=str(Path(pairs).parent / "described"), endpoint=endpoint, chunk_size=5, **more)
