"""An evaluation over Ray: captions of two actors, gathered and scored once, give what one process gives."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from cluster.config import ClusterConfig
from cluster.session import run_chunks
from idc.config import override
from idc.evaluation import record as ev
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import run_evaluation
from tests.evaluation.test_split import Bright, job, make_pairs, quiet


@pytest.mark.ray
def test_one_process_and_ray_give_the_same_to_the_last_bit(ray_session: None, tmp_path: Path) -> None:
    pairs = make_pairs(tmp_path / "pairs")
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    (artifact / "config.json").write_text('{"system": "toy", "config": {}, "files": []}')
    metrics = ["BLEU", "ROUGE-L", "CIDEr"]
    base = job(pairs, tmp_path / "local", artifact=str(artifact), metrics=metrics, resamples=50)
    settings = {"out": str(tmp_path / "ray"), "actors": 2, "cpus_per_actor": 0.5}
    local = run_evaluation(base, Bright, quiet)
    on_ray = partial(run_chunks, False, ClusterConfig(), progress=False)
    there = run_evaluation(override(EvaluateJob, base, settings), Bright, on_ray)
    assert local.scores["CIDEr"] > 0
    assert there.model_copy(update={"seconds": local.seconds}) == local
    assert ev.load_predictions(tmp_path / "ray") == ev.load_predictions(tmp_path / "local")
