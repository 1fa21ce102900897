"""What the tests of serving share: a tiny real captioner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.systems.procap.world import World


@pytest.fixture(scope="session")
def artifact(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a ProCap of 32x32 pixels, trained for 30 steps."""
    from cluster.train import launch

    job = world.finetune({"train.steps": 30})
    payload = job.model_dump(mode="json", exclude={"train"})
    folder = tmp_path_factory.mktemp("serve") / "run"
    launch("idc.systems.procap.task:finetune", payload, job.train, folder, local=True)
    return str(folder / "artifact")
