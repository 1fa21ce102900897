"""A data job on two nodes writes what one machine does. Trainings on nodes: ``tests/faults/test_node_lost.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from idc.data.store import iter_rows
from tests.cluster.nodes import nodes

DONE_S = 400.0
SETTINGS = [
    "render.num_scenes=8", "render.width=32", "render.height=32", "render.samples_per_pixel=4",
    "render.min_visible_pixels=8", "chunk_size=2",
]  # fmt: skip


@pytest.mark.slow
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
