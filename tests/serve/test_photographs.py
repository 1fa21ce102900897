"""Images of real size, up to the documented limits, on ``python -m serve.app`` and on a cluster behind HAProxy."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import pytest
from PIL import Image

from serve.config import LimitsConfig
from tests.serve.clustered import clustered
from tests.serve.command import serving

pytestmark = pytest.mark.ray
MIB = 2**20
LIMITS = LimitsConfig()
Form = list[tuple[str, tuple[str, bytes]]]


@pytest.fixture(scope="module", params=["command", pytest.param("cluster", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    home = tmp_path_factory.mktemp(request.param)
    if request.param == "command":
        settings = ("models.shipped=shipped", "limits.timeout_s=300")
        with serving(home, *settings) as command, command.client() as client:
            yield client
        return
    folder = Path(tempfile.mkdtemp(prefix="haproxy-", dir="/tmp"))
    with clustered(folder, home) as client:
        yield client
    shutil.rmtree(folder)


def photograph(shade: int, side: int = 3000) -> bytes:
    """A JPEG of 4:3, of 12 megapixels and some 3.5 MiB by default: smooth, with the noise of a sensor."""
    tile = np.random.default_rng(shade).normal(shade, 9, (500, 500, 3)) + np.linspace(-40, 40, 500)[:, None]
    pixels = np.tile(tile.clip(0, 255).astype(np.uint8), (side // 500 + 1, side * 4 // 1500 + 1, 1))
    out = io.BytesIO()
    Image.fromarray(pixels[:side, : side * 4 // 3]).save(out, "JPEG", quality=92)
    return out.getvalue()


def form(*sizes: int, side: int = 3000) -> Form:
    """A form of photographs that have so many bytes, before and after by turns; 0: as they are."""
    files = [photograph(shade, side) for shade in (90, 150)]
    named = enumerate(files[index % 2].ljust(size, b"\0") for index, size in enumerate(sizes))
    return [(("before", "after")[index % 2], ("photo.jpg", data)) for index, data in named]


def captions(answer: httpx2.Response, pairs: int) -> list[str]:
    """The captions of an answer in which no pair is refused."""
    assert answer.status_code == 200, answer.text[:500]
    results = answer.json()["results"]
    assert [result["error"] for result in results] == [None] * pairs
    return [result["caption"] for result in results]


def test_two_photographs_of_a_telephone_get_a_caption(client: httpx2.Client) -> None:
    files = form(0, 0)
    assert all(len(data) > 3 * MIB for _, (_, data) in files)
    answer = client.post("/v1/captions", files=files, data={"change_map": "true"})
    assert captions(answer, 1) != [""]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairs", "size", "side"),
    [(1, int(LIMITS.image_mib * MIB), 4300), (LIMITS.pairs, int(LIMITS.body_mib * MIB) // 2 // LIMITS.pairs, 600)],
    ids=["the largest files", "the most pairs"],
)
def test_a_body_of_the_largest_size_is_captioned(client: httpx2.Client, pairs: int, size: int, side: int) -> None:
    head = 300  # of each part
    sizes = [size] + [size - 2 * head] * (2 * pairs - 1) if pairs == 1 else [size - head] * (2 * pairs)
    files = form(*sizes, side=side)
    assert 0 <= LIMITS.body_mib * MIB - sum(len(data) for _, (_, data) in files) < MIB / 8
    captions(client.post("/v1/captions", files=files), pairs)
