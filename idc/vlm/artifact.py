"""The artifact of a tuned model: what was trained, and the name of its base.

config.json        ``job`` with the sections ``base``, ``prompt``, ``generation`` and ``tune``; the base's name
adapter/           LoRA adapters in PEFT's format, if there are any
model.safetensors  parameters that were trained whole, by the names of the transformers model, and those of a system's
                   own modules, by the names of its task; empty if there are none
processor/         the base's tokenizer, chat template and image processor
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idc.training.artifact import ADAPTER, PROCESSOR, Artifact, write_artifact
from idc.training.foreign import layout_faults
from idc.vlm.base import FoundBase, load_model, read_family, save_processor
from idc.vlm.config import BaseConfig, TuneConfig
from idc.vlm.family import Family
from idc.vlm.tuning import group_of, is_adapter, load_adapter, merge_adapter, write_adapter

_MODEL = "model."
"""Prefix of the transformers model in the names of a task (:class:`idc.vlm.sft.SftTask`)."""


def write_tuned(
    path: Path | str, *, system: str, config: dict[str, Any], state: Mapping[str, Tensor], model: Any, base: FoundBase,
    **more: Any,
) -> Path:  # fmt: skip
    """Write the artifact of a tuned model, or without a state that of a base as it is.

    Args:
        state: the weights of :meth:`idc.training.task.Task.checkpoint_keys`, by its names; those that are not of the
            transformers model keep their names.
        model: the task's transformers model, for the settings of its adapters, if it has some.
        more: as of :func:`idc.training.artifact.write_artifact`.
    """
    weights = {name.removeprefix(_MODEL): tensor for name, tensor in state.items()}
    whole = {name: tensor for name, tensor in weights.items() if not is_adapter(name)}
    with tempfile.TemporaryDirectory() as folder:
        extras = {PROCESSOR: Path(folder) / PROCESSOR}
        save_processor(base.family, extras[PROCESSOR])
        if len(whole) < len(weights):
            extras[ADAPTER] = Path(folder) / ADAPTER
            write_adapter(extras[ADAPTER], model, weights, base.name)
        return write_artifact(
            path,
            system=system,
            config=config,
            state_dict=whole,
            preprocess={"family": base.family.name, "max_pixels": base.family.max_pixels, "backend": "pil"},
            extras={**more.pop("extras", {}), **extras},
            base=base.name,
            **more,
        )


def find_tuned(artifact: Artifact, config: BaseConfig, source: str | None = None) -> tuple[Path, Family]:
    """The folder of an artifact's base (``source``, or where it was when the artifact was made), and the family with
    the artifact's own processor; no weights are read. A base that is not on this machine, or is another model, is a
    ValueError."""
    if artifact.base is None:
        raise ValueError(f"artifact {artifact.path} names no base model; copy it again, or make it again")
    folder = artifact.base.folder(source)
    return folder, read_family(folder, artifact.folder(PROCESSOR), config.max_pixels)


def load_found(
    artifact: Artifact,
    folder: Path,
    family: Family,
    config: BaseConfig,
    tune: TuneConfig,
    device: torch.device | str = "cpu",
    own_modules: Mapping[str, nn.Module] | None = None,
) -> Any:
    """The tuned model in evaluation mode, its adapters merged; the base and the family are those of :func:`find_tuned`.
    A system's own modules, by their names in the task, get the artifact's weights. Weights that do not fit the base, or
    are not exactly those that ``tune`` names and the own modules have, are a ValueError."""
    model, state = load_model(folder, config, device), artifact.state_dict()
    expected = {name: tensor for name, tensor in model.state_dict().items() if group_of(name, family, tune) is not None}
    modules = {f"{name}.": module for name, module in (own_modules or {}).items()}
    for prefix, module in modules.items():
        expected |= {prefix + name: tensor for name, tensor in module.state_dict().items()}
    if faults := layout_faults(state, expected, "the base model"):
        raise ValueError(f"{artifact.path}: model.safetensors does not fit the base model: it {faults[0]} "
                         f"({len(faults)} differences); copy the artifact again")  # fmt: skip
    for prefix, module in modules.items():
        module.load_state_dict(
            {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}
        )
    # Not strict: what was not trained keeps the base's weights; the trained names and shapes are checked above.
    model.load_state_dict(state, strict=False)
    if tune.language == "lora":
        assert artifact.base is not None
        load_adapter(artifact.folder(ADAPTER), model, artifact.base)
        merge_adapter(model)
    return model.eval()
