"""A captioner over rows: equal options in one batch, faults where they are, and no batch decoded too early."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idc.captioning.apply import Fault, Pixels, decode_pair, describe_batch, describe_rows, with_objects
from idc.captioning.contract import Candidate, Description, SearchOptions
from idc.captioning.objects_config import ObjectsConfig
from idc.data.images import encode_png
from tests.captioning.toy import ToyCaptioner


class Recording(ToyCaptioner):
    """Remembers the batches and their options."""

    def __init__(self) -> None:
        super().__init__(lambda befores, afters: [f"it became {after.mean():.0f}" for after in afters])
        self.batches: list[tuple[int, SearchOptions]] = []

    def describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], *options: Any, **region: Any
    ) -> list[Description]:
        self.batches.append((len(befores), *options))
        return super().describe(befores, afters)


def grey(value: int) -> np.ndarray:
    return np.full((4, 4, 3), value, np.uint8)


def test_rows_keep_their_order_and_their_faults() -> None:
    captioner, taken = Recording(), []

    def rows() -> Any:
        for i in range(7):
            taken.append(i)
            yield i

    def decode(i: int) -> Pixels | Fault:
        return decode_pair(encode_png(grey(0)), b"text" if i in (1, 3, 4, 5) else encode_png(grey(i)))

    with ThreadPoolExecutor(2) as pool:
        found = describe_rows(captioner, rows(), decode, pool, 3)
        first = next(found)
        assert taken == list(range(6)), "one batch ahead is decoded, not more"
        every = [first, *found]
    assert [i for i, _ in every] == list(range(7))
    for i, result in every:
        if i in (1, 3, 4, 5):
            assert str(result.pixels).startswith("after: not an image")
            assert (result.description, result.batch) == (None, 0)
        else:
            assert result.description.best.caption == f"it became {i}"
    assert [size for size, _ in captioner.batches] == [2, 1], "the second batch has no readable pair"
    assert [result.batch for _, result in every] == [2, 0, 2, 0, 0, 0, 1]


@pytest.mark.parametrize("error", [ValueError("too thin"), RuntimeError("out of memory")])
def test_an_error_of_one_pair_is_its_own_and_one_of_the_machine_ends_the_job(error: Exception) -> None:
    def say(befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
        if any(after.mean() in (2, 5) for after in afters):
            raise error
        return [f"it became {after.mean():.0f}" for after in afters]

    with ThreadPoolExecutor(2) as pool:
        rows = describe_rows(ToyCaptioner(say), range(7), lambda i: Pixels(grey(0), grey(i)), pool, 4)
        if isinstance(error, RuntimeError):
            with pytest.raises(RuntimeError, match="out of memory"):
                list(rows)
            return
        for i, result in rows:
            if i in (2, 5):
                assert isinstance(result.pixels, Fault)
                assert result.pixels.named() == str(result.pixels) == "pair: not captioned: too thin"
                assert result.description is None
            else:
                assert result.description.best.caption == f"it became {i}"
    assert i == 6


def test_equal_options_are_one_batch_and_unsupported_ones_are_refused() -> None:
    captioner = Recording()
    images = [Pixels(grey(0), grey(i)) for i in range(4)]
    plain, three = SearchOptions(), SearchOptions(beams=3, candidates=2)
    found = describe_batch(captioner, images, [plain, three, plain, three])
    assert [result.description.best.caption for result in found if result.description] == [
        f"it became {i}" for i in range(4)
    ]
    assert captioner.batches == [(2, plain), (2, three)]
    with pytest.raises(ValueError, match="map: this captioner"):
        describe_batch(captioner, images[:1], [SearchOptions(change_map=True)])
    with pytest.raises(ValueError, match="need as many beams"):
        SearchOptions(1, 2)


@pytest.mark.parametrize(("brightest", "warned"), [(0, False), (1000, True), (4095, True), (4096, False)])
def test_twelve_bits_in_a_file_of_sixteen_get_a_warning(brightest: int, warned: bool) -> None:
    """Of the brighter image; a dark one with a bright one is dark."""
    dark, bright = np.zeros((2, 4, 4), np.uint16)
    dark[:2], bright[0, 0] = min(brightest, 300), brightest
    for pair in ((dark, bright), (bright, dark)):
        pixels = decode_pair(*map(sixteen_bits, pair))
        [result] = describe_batch(Recording(), [pixels], [SearchOptions()])
        warning = result.description.to_dict()["warning"] or ""
        assert warning.startswith(f"Both images are nearly black: no value is above {brightest // 256} of") == warned
        assert ("scale both images alike first" in warning) == warned


@pytest.mark.parametrize(("familiarity", "asked"), [(None, False), (0.01, True), (0.5, False)])
def test_objects_is_asked_of_unfamiliar_pairs_and_not_where_no_familiarity_was_fitted(
    familiarity: float | None, asked: bool
) -> None:
    description = Description((Candidate("it became grey", -1.0),), familiarity=familiarity)
    completed = with_objects(description, Pixels(grey(9), grey(9)), objects=ObjectsConfig(detector="none", text=False))
    assert (completed.claims is not None) == asked


def sixteen_bits(values: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(values).save(out, "PNG")
    return out.getvalue()
