"""A local Ray as other machines see it."""

from __future__ import annotations

import psutil
import pytest

from tests.sockets import open_to_others


@pytest.mark.ray
def test_a_local_ray_listens_on_loopback_alone(ray_session: None) -> None:
    import ray

    @ray.remote
    def worker() -> str:
        return str(ray.util.get_node_ip_address())

    assert ray.get(worker.remote()) == "127.0.0.1"
    assert open_to_others(psutil.Process()) == []
