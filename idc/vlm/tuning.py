"""The trained parts of a model: adapters, the language model, tower and projector, each a group of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from idc.training.config import GroupConfig
from idc.vlm.config import TuneConfig
from idc.vlm.family import Family
from idc.vlm.lora import add_lora, is_adapter


def prepare(model: nn.Module, family: Family, tune: TuneConfig) -> None:
    """Make exactly the wanted parts of a base model trainable, in float32; adapters are put into it."""
    model.requires_grad_(False)
    if tune.language == "lora":
        add_lora(model, tune.lora, family)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(group_of(name, family, tune) is not None)
    _cast(model)


def group_of(name: str, family: Family, tune: TuneConfig) -> str | None:
    """The group of a parameter of a prepared model: ``lora_a``, ``lora_b``, ``language``, ``tower`` or ``projector``;
    None if it is not trained."""
    if is_adapter(name):
        return "lora_a" if ".lora_A." in name else "lora_b"
    if family.is_unused(name):
        return None
    if family.is_tower(name):
        return "tower" if tune.tower is not None else None
    if family.is_projector(name):
        return "projector" if tune.projector is not None else None
    return "language" if tune.language == "full" else None


def groups(model: nn.Module, family: Family, tune: TuneConfig) -> list[dict[str, Any]]:
    """Parameter groups of a prepared model, as of :meth:`idc.training.task.Task.param_groups`. Vectors (norms, biases)
    do not decay."""
    plus = tune.lora.plus
    faster = {name: getattr(tune.language_optim, name) * plus for name in ("lr", "warmup_lr", "final_lr")}
    settings: dict[str, GroupConfig | None] = {
        "lora_a": tune.language_optim,
        "lora_b": tune.language_optim.model_copy(update=faster),
        "language": tune.language_optim,
        "tower": tune.tower,
        "projector": tune.projector,
    }
    parameters_of: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if (group := group_of(name, family, tune)) is not None and (optim := settings[group]) is not None:
            decays = parameter.ndim > 1 or not optim.weight_decay
            parameters_of.setdefault(group if decays else f"{group}_vectors", []).append(parameter)
    param_groups = []
    for label, parameters in parameters_of.items():
        group = label.removesuffix("_vectors")
        optim = settings[group]
        assert optim is not None
        values = optim.model_dump() | ({"weight_decay": 0.0} if label != group else {})
        param_groups.append({"name": label, "params": parameters, **values})
    return param_groups


def own_groups(module: nn.Module, optim: GroupConfig) -> list[dict[str, Any]]:
    """Parameter groups ``own`` and ``own_vectors`` of a system's own module; biases and norms do not decay."""
    parts: dict[str, list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        vector = parameter.ndim < 2 or name.endswith("bias")
        parts.setdefault("own_vectors" if vector and optim.weight_decay else "own", []).append(parameter)
    return [
        {"name": name, "params": parameters, **optim.model_dump()} | ({"weight_decay": 0.0} if name != "own" else {})
        for name, parameters in parts.items()
    ]


def _cast(model: nn.Module) -> None:
    """Trained parameters in float32, in which small updates are not lost. Also all layer normalisations: where a
    trained part meets a frozen one, autocast on a CPU refuses float32 inputs with bfloat16 weights."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.float32)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.float()
