"""The application on a cluster as documented: a head with the environment of ``k8s/base/settings.yaml``, HAProxy in
front, and ``serve deploy`` of ``serve/configs/production.yaml``, made small enough for this machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.cluster.heads import RAY, clean_environment, running_head
from tests.serve.command import free_port
from tests.serve.local import TOKEN, tokens_of
from tests.serve.waiting import PATIENCE_S, until

ROOT = Path(__file__).parents[2]


@contextmanager
def clustered(folder: Path, home: Path) -> Iterator[httpx2.Client]:
    """A client of the application with the captioner ``shipped`` behind HAProxy.

    Args:
        folder: for HAProxy's socket, whose path must be short.
    """
    documents = yaml.safe_load_all((ROOT / "k8s" / "base" / "settings.yaml").read_text())
    settings = next(one["data"] for one in documents if one["metadata"]["name"] == "serve-settings")
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
            until(lambda: _ready(client), "the application is ready")
            yield client


def _small(port: int) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((ROOT / "serve" / "configs" / "production.yaml").read_text())
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    args = config["applications"][0]["args"]
    args |= {"models": {"shipped": "shipped"}, "auth": {"tokens": tokens_of(tester=TOKEN)}}
    args["scaling"] |= {"cpus": 1, "gpus": 0, "front_replicas": 1, "max_replicas": 1}
    del args["tracking_uri"]
    return config


def _ready(client: httpx2.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx2.HTTPError:
        return False
