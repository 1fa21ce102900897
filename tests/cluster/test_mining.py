"""Mining on Ray: the same files as in one process, with several workers and the whole command."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from cluster.config import ClusterConfig
from cluster.session import run_chunks
from idc.data.pipeline import run_local
from idc.mining.mining_job import mine
from idc.vision.mining_features import encoder_fingerprint, extraction
from tests.mining.small_collection import job, write_images
from tests.mining.test_mining_job import digests

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_two_workers_on_ray_mine_what_one_process_does(ray_session: None, tmp_path: Path) -> None:
    write_images(tmp_path / "images", scenes=6)
    alone = job(tmp_path / "images", tmp_path / "alone")
    mine(alone, partial(run_local, progress=False), extraction(alone), encoder_fingerprint(alone))
    config = job(tmp_path / "images", tmp_path / "ray", workers=2)
    run = partial(run_chunks, False, ClusterConfig(), progress=False)
    mine(config, run, extraction(config), encoder_fingerprint(config))
    assert digests(tmp_path / "ray") == digests(tmp_path / "alone")
    assert any(name.startswith("pairs/part-") for name in digests(tmp_path / "ray"))
