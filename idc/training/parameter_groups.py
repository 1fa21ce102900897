"""Groups of parameters: their settings, and which of them are clipped together."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from idc.training.config import GroupConfig, TrainConfig
from idc.training.task import Task

CLIP_NORM = "clip_norm"
"""Key of a group's own limit, which no optimizer knows."""


def param_groups(task: Task) -> tuple[list[dict[str, Any]], list[GroupConfig]]:
    """The task's groups for :func:`make_engine`, and their schedules.

    Raises:
        ValueError: if a trainable parameter is in no group or in two, or a group has an unknown setting.
    """
    groups, schedules = [], []
    names = {id(parameter): name for name, parameter in task.named_parameters()}
    seen: dict[int, str] = {}
    for group in task.param_groups():
        settings = {key: value for key, value in group.items() if key not in ("name", "params")}
        parameters = [parameter for parameter in group["params"] if parameter.requires_grad]
        for parameter in parameters:
            if id(parameter) in seen:
                raise ValueError(
                    f"parameter {names.get(id(parameter))} is in two groups: {seen[id(parameter)]} and {group['name']}"
                )
            seen[id(parameter)] = group["name"]
        if not parameters:
            continue
        schedule = GroupConfig(**settings)
        groups.append({"params": parameters, "lr": schedule.lr, "weight_decay": schedule.weight_decay})
        schedules.append(schedule)
        groups[-1] |= {"name": group["name"], CLIP_NORM: schedule.clip_norm}
    left_out = [name for name, p in task.named_parameters() if p.requires_grad and id(p) not in seen]
    if left_out:
        raise ValueError(f"param_groups() leaves out trainable parameters: {', '.join(left_out[:8])}")
    return groups, schedules


def clipped_together(groups: list[dict[str, Any]], train: TrainConfig) -> list[tuple[str, list[nn.Parameter], float]]:
    """Parameters with one norm, and its limit: those of all groups without a limit of their own (under an empty name),
    then each other group's."""
    shared = [parameter for group in groups if group[CLIP_NORM] is None for parameter in group["params"]]
    single = [(group["name"], group["params"], group[CLIP_NORM]) for group in groups if group[CLIP_NORM] is not None]
    return [*([("", shared, train.clip_norm)] if shared else []), *single]


def norms_by_name(clipped: list[tuple[str, list[nn.Parameter], float]], norms: list[Tensor]) -> dict[str, Tensor]:
    return {name: norm for (name, _, _), norm in zip(clipped, norms, strict=True) if name}


def without_keys(groups: list[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key not in keys} for group in groups]
