"""Images of real size, up to the documented limits, on ``python -m serve.app`` and on a cluster behind HAProxy."""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import yaml
from PIL import Image

from serve.config import LimitsConfig
from tests.cluster.heads import RAY, clean_environment, running_head
from tests.serve.command import free_port, is_ready, serving
from tests.serve.local import TOKEN, tokens_of
from tests.serve.waiting import PATIENCE_S, until

pytestmark = pytest.mark.ray
ROOT = Path(__file__).parents[2]
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


@contextmanager
def clustered(folder: Path, home: Path) -> Iterator[httpx2.Client]:
    """A client of the application on a cluster as documented: a head with the environment of
    ``k8s/base/settings.yaml``, HAProxy in front, and ``serve deploy`` of ``serve/configs/production.yaml``, made small
    enough for this machine.

    Args:
        folder: for HAProxy's socket, whose path must be short.
    """
    documents = yaml.safe_load_all((ROOT / "k8s" / "base" / "settings.yaml").read_text())
    settings = next(document["data"] for document in documents if document["metadata"]["name"] == "serve-settings")
    assert settings["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    proxy = {name: str(folder / name) for name in ("CONFIG_FILE_LOC", "SOCKET_PATH", "SERVER_STATE_FILE")}
    proxy["SERVER_STATE_BASE"] = str(folder)
    proxy |= {name: str(free_port()) for name in ("METRICS_PORT", "STATS_PORT")}
    environment = clean_environment(
        home, PYTHONPATH=str(ROOT), **settings, **{f"RAY_SERVE_HAPROXY_{name}": value for name, value in proxy.items()}
    )
    port = free_port()
    with running_head(environment) as head:
        config = home / "serve.yaml"
        config.write_text(yaml.safe_dump(_small(port)))
        subprocess.run(
            [str(Path(RAY).with_name("serve")), "deploy", str(config)],
            env={**environment, "RAY_DASHBOARD_ADDRESS": head.url}, check=True, timeout=PATIENCE_S,
        )  # fmt: skip
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE_S) as client:
            until(lambda: is_ready(client), "the application is ready")
            yield client


def _small(port: int) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "serve" / "configs" / "production.yaml").read_text())
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    args = config["applications"][0]["args"]
    args |= {"models": {"shipped": "shipped"}, "auth": {"tokens": tokens_of(tester=TOKEN)}}
    args["scaling"] |= {"cpus": 1, "gpus": 0, "front_replicas": 1, "max_replicas": 1}
    del args["tracking_uri"]
    return config


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
