"""A pickle in a checkpoint of DeepSpeed's, which reads its own files without restrictions: refused, not executed."""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
from pathlib import Path

import pytest
import torch

from idc.training.config import TrainConfig
from idc.training.context import LocalContext
from idc.training.engines import make_engine, param_groups
from tests.faults.canary import Canary
from tests.training import toy
from tests.training.test_engines import deepspeed

STAGES = (0, 1, 2, 3)


def _every_file_with_a_pickle(folder: Path, stage: int) -> None:
    """The checkpoint is loaded as it was written, and refused with a pickle in any one of its files."""
    torch.manual_seed(0)
    context, train = LocalContext(folder / "run"), TrainConfig.model_validate(deepspeed(stage))
    task = toy.ToyTask(base={"width": 20})
    engine = make_engine(task, param_groups(task)[0], context, train)
    good = folder / "good"
    good.mkdir(parents=True)
    engine.save(good)
    engine.load(good, 1)
    files = [path.relative_to(good) for path in sorted(good.rglob("*.pt"))]
    assert len(files) == 2 + (stage > 0), files  # the model's, the optimizer's, and what is frozen and stored
    canary = Canary(folder)
    for number, name in enumerate(files):
        evil = folder / f"evil{number}"
        shutil.copytree(good, evil)
        content = torch.load(good / name, weights_only=False)
        for bad in ({**content, "more": canary}, canary):
            torch.save(bad, evil / name)
            converted = stage > 0 and name.parent.name != ""  # as if two had written it: DeepSpeed converts it first
            for workers in (1, 2)[: 1 + converted]:
                with pytest.raises(ValueError, match=r"the checkpoint .* is refused: it refers to posix\.mkdir"):
                    engine.load(evil, workers)
                canary.check()
    # DeepSpeed alone would have executed it.
    with contextlib.suppress(Exception):
        engine.engine.load_checkpoint(str(folder / "evil0"), tag="deepspeed")  # type: ignore[attr-defined]
    assert canary.mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_pickle_in_any_file_of_a_checkpoint_is_refused(stage: int, tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_every_file_with_a_pickle, args=(tmp_path, stage))
    process.start()
    process.join(300)
    assert process.exitcode == 0
