"""Jobs on Ray: the rows of one process, on two nodes too, and whatever dies on the way. Trainings on nodes:
``tests/faults/test_node_lost.py``."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from cluster.config import ClusterConfig
from cluster.session import run_chunks
from idc.captioning.contract import Candidate, Captioner, Description
from idc.captioning.table import CaptionJob, caption_rows
from idc.config import override
from idc.data.pipeline import run_local
from idc.data.store import iter_rows
from idc.mining.image_features import encoder_fingerprint, extraction
from idc.mining.mining_job import mine
from tests.captioning.test_table import job, quiet
from tests.cluster.nodes import nodes
from tests.data.test_rows import table
from tests.mining import small_collection
from tests.mining.test_mining_job import digests

pytestmark = [pytest.mark.ray, pytest.mark.slow]


class Grey(Captioner):
    """Says how bright the after image is, without torch; its process is killed once, at its second batch."""

    capabilities = frozenset()
    trained_on = None

    def __init__(self, mark: str | None = None) -> None:
        self.mark, self.calls = mark, 0

    def __call__(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
        return [told.best.caption for told in self.describe(befores, afters)]

    def describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], *options: Any, **region: Any
    ) -> list[Description]:
        self.calls += 1
        if self.mark is not None and self.calls == 2 and not os.path.exists(self.mark):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return [Description((Candidate(f"it became {image.mean():.0f}", -0.5),), changed=0.5) for image in afters]


def test_two_actors_one_of_which_is_killed_give_the_rows_of_one_process(ray_session: None, artifact: str,
                                                                        tmp_path: Path) -> None:  # fmt: skip
    rows = table("bytes").to_pylist()
    rows[4]["after"] = rows[4]["after"][:30]
    pairs = table("bytes").from_pylist(rows)
    pq.write_table(pairs, tmp_path / "t.parquet")
    base = job(artifact, tmp_path / "t.parquet", tmp_path / "local", chunk_size=2, batch_size=2)
    caption_rows(base, quiet, load=Grey)
    there = override(CaptionJob, base, {"out": str(tmp_path / "ray"), "actors": 2, "cpus_per_actor": 0.5})
    on_ray = partial(run_chunks, False, ClusterConfig(), progress=False)
    done = caption_rows(there, on_ray, local=False, load=partial(Grey, str(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()
    assert (done.rows, done.done, done.workers) == (11, 11, 2)
    assert done.errors == {"after: not an image": 1}
    assert done.model_seconds > 0
    assert [row["caption"] for row in iter_rows(tmp_path / "local")] == [
        None if i == 4 else f"it became {i + 1}" for i in range(11)
    ]
    for part in (tmp_path / "local").glob("*.parquet"):
        assert part.read_bytes() == (tmp_path / "ray" / part.name).read_bytes()


def test_two_workers_on_ray_mine_what_one_process_does(ray_session: None, tmp_path: Path) -> None:
    small_collection.write_images(tmp_path / "images", scenes=6)
    alone = small_collection.job(tmp_path / "images", tmp_path / "alone")
    mine(alone, partial(run_local, progress=False), extraction(alone), encoder_fingerprint(alone))
    config = small_collection.job(tmp_path / "images", tmp_path / "ray", workers=2)
    run = partial(run_chunks, False, ClusterConfig(), progress=False)
    mine(config, run, extraction(config), encoder_fingerprint(config))
    assert digests(tmp_path / "ray") == digests(tmp_path / "alone")
    assert any(name.startswith("pairs/part-") for name in digests(tmp_path / "ray"))


DONE_S = 400.0
SETTINGS = [
    "render.num_scenes=8", "render.width=32", "render.height=32", "render.samples_per_pixel=4",
    "render.min_visible_pixels=8", "chunk_size=2",
]  # fmt: skip


def test_two_nodes_render_what_one_machine_does(tmp_path: Path) -> None:
    """Two actors of a CPU each, so one on each node."""
    with nodes(2) as cluster:
        for name, more in (("nodes", ["workers=2", f"cluster.address={cluster.address}"]), ("alone", ["--local"])):
            output = tmp_path / f"{name}.log"
            command = ["jobs/render.py", f"out={tmp_path / name}", *SETTINGS, *more]
            assert cluster.python(command, output).wait(DONE_S) == 0, output.read_text(errors="replace")
    rows = list(iter_rows(tmp_path / "nodes"))
    assert len(rows) == 16
    assert rows == list(iter_rows(tmp_path / "alone"))
