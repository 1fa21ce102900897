"""A toy whose frozen base is ten times its trained part, and the sizes of what a run of it writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.training.toy import ToyTask

PAYLOAD: dict[str, Any] = {"hidden": 256, "dropout": 0.2, "base": {"width": 40_000, "dropout": 0.5}}


def numel(*, trained: bool) -> int:
    task = ToyTask(hidden=PAYLOAD["hidden"], base=PAYLOAD["base"])
    return sum(parameter.numel() for parameter in task.parameters() if parameter.requires_grad == trained)


def written(run_dir: Path) -> dict[str, int]:
    """Bytes of the newest checkpoint, of the best weights and of the artifact's weights."""
    newest = sorted((run_dir / "checkpoints").iterdir())[-1]
    best, artifact = next((run_dir / "best").iterdir()), run_dir / "artifact" / "model.safetensors"
    return {
        "checkpoint": sum(file.stat().st_size for file in newest.rglob("*") if file.is_file()),
        "best": best.stat().st_size,
        "artifact": artifact.stat().st_size,
    }


def check_sizes(run_dir: Path) -> None:
    """What a run writes follows its trained part: weights once, in a checkpoint with Adam's two averages and ZeRO's
    copy at most four times; 64 KB for names and shapes."""
    trained, frozen = numel(trained=True), numel(trained=False)
    assert frozen > 10 * trained
    sizes = written(run_dir)
    print(f"{run_dir.name}: {4 * trained} bytes trained, {4 * frozen} frozen, written {sizes}")
    assert 3 * 4 * trained < sizes["checkpoint"] < 4 * 4 * trained + 65536
    for name in ("best", "artifact"):
        assert 4 * trained < sizes[name] < 4 * trained + 65536
