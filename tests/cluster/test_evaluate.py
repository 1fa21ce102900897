"""An evaluation over Ray: captions of two actors, gathered and scored once, give what one process gives."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster.config import ClusterConfig
from cluster.session import run_chunks
from idc.config import override
from idc.evaluation import record as ev
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import run_evaluation
from tests.evaluation.test_split import Bright, job, make_pairs, quiet

pytestmark = pytest.mark.ray


class Dying(Bright):
    """A captioner whose process is killed once, at its second batch."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def __call__(self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray]) -> list[str]:
        if self.seen and not os.path.exists(self.mark):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(befores, afters)


def test_one_process_ray_and_an_interrupted_run_give_the_same_to_the_last_bit(
    ray_session: None, tmp_path: Path
) -> None:
    pairs = make_pairs(tmp_path / "pairs")
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    (artifact / "config.json").write_text('{"system": "toy", "config": {}, "files": []}')
    base = job(pairs, tmp_path / "local", artifact=str(artifact), metrics=["BLEU", "ROUGE-L", "CIDEr"],
               resamples=50)  # fmt: skip

    def at(name: str, **settings: Any) -> EvaluateJob:
        return override(EvaluateJob, base, {"out": str(tmp_path / name), **settings})

    on_ray = partial(run_chunks, False, ClusterConfig(), progress=False)
    found = {
        "local": run_evaluation(base, Bright, quiet),
        "ray": run_evaluation(at("ray", actors=2, cpus_per_actor=0.5), Bright, on_ray),
        "killed": run_evaluation(
            at("killed", actors=2, cpus_per_actor=0.5), partial(Dying, str(tmp_path / "mark")), on_ray
        ),
    }
    with pytest.raises(RuntimeError, match="out of memory"):
        run_evaluation(at("stopped"), lambda: Bright(fails_at=14), quiet)
    found["stopped"] = run_evaluation(at("stopped", actors=2, cpus_per_actor=0.5), Bright, on_ray)
    assert (tmp_path / "mark").exists()
    assert found["local"].scores["CIDEr"] > 0
    for name, evaluation in found.items():
        assert evaluation.model_copy(update={"seconds": found["local"].seconds}) == found["local"], name
        assert ev.load_predictions(tmp_path / name) == ev.load_predictions(tmp_path / "local")
