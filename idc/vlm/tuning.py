"""The trained parts of a model: adapters, language model, tower and projector, each a parameter group of its own;
adapters (LoRA) by PEFT: added, written, read and merged; and the artifact of a tuned model: what was trained, and the
name of its base.

The adapters' layers are put into the transformers model itself, without PEFT's wrapper, so that the names of all other
parameters stay. The files are PEFT's own: ``PeftModel.from_pretrained`` and vLLM read them. Of the artifact:

config.json        ``job`` with the sections ``base``, ``prompt``, ``generation`` and ``tune``; the base's name
adapter/           LoRA adapters in PEFT's format, if there are any
model.safetensors  parameters that were trained whole, by the names of the transformers model, and those of a system's
                   own modules, by the names of its task; empty if there are none
processor/         the base's tokenizer, chat template and image processor"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from idc.training.artifact import ADAPTER, PROCESSOR, Artifact, write_artifact
from idc.training.base import BaseName
from idc.training.config import GroupConfig
from idc.training.foreign import layout_faults
from idc.vlm.base import FoundBase, load_model, read_family, save_processor
from idc.vlm.config import BaseConfig, LoraConfig, TuneConfig
from idc.vlm.family import Family

LANGUAGE = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
"""Matches the linear layers of a language model, but none of a tower, which may have layers of the same names."""
WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
_NAME = "default"
_PREFIX = "base_model.model."
"""How PEFT's parameter names begin in its files (tests/vlm/test_sft.py, test_peft_reads_the_adapter...)."""


def prepare(model: nn.Module, family: Family, tune: TuneConfig) -> None:
    """Make exactly the wanted parts of a base model trainable, in float32, in which small updates are not lost; add the
    adapters. All layer normalisations become float32 too: where a trained part meets a frozen one, autocast on a CPU
    refuses float32 inputs with bfloat16 weights."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    model.requires_grad_(False)
    if tune.language == "lora":
        add_lora(model, tune.lora, family)
    for name, parameter in model.named_parameters():
        if group_of(name, family, tune) is not None:
            parameter.requires_grad_()
            parameter.data = parameter.data.to(torch.float32)
        else:
            parameter.requires_grad_(False)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.float()
        elif isinstance(module, BaseTunerLayer):
            # PEFT casts a layer's input to the adapter's float32, and autocast casts it back to bfloat16: two copies of
            # the activations a layer, two more in the backward pass. Without autocast all weights are float32.
            module.cast_input_dtype_enabled = False  # type: ignore[assignment]


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
    """Parameter groups of a prepared model (:meth:`idc.training.task.Task.param_groups`)."""
    plus = tune.lora.plus
    faster = {name: getattr(tune.language_optim, name) * plus for name in ("lr", "warmup_lr", "final_lr")}
    optims = {
        "lora_a": tune.language_optim,
        "lora_b": tune.language_optim.model_copy(update=faster),
        "language": tune.language_optim,
        "tower": tune.tower,
        "projector": tune.projector,
    }
    parameters_of: dict[str, list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in model.named_parameters():
        if (group := group_of(name, family, tune)) is not None:
            parameters_of.setdefault(group, []).append((name, parameter))
    param_groups = []
    for group, parameters in parameters_of.items():
        optim = optims[group]
        assert optim is not None, "a group with parameters is trained"
        param_groups += optim_groups(group, parameters, optim)
    return param_groups


def optim_groups(
    group: str, parameters: Iterable[tuple[str, nn.Parameter]], optim: GroupConfig
) -> list[dict[str, Any]]:
    """Parameter groups ``group`` and ``group_vectors`` of named parameters; vectors (norms, biases) do not decay."""
    parts: dict[str, list[nn.Parameter]] = {}
    for name, parameter in parameters:
        vector = bool(optim.weight_decay) and (parameter.ndim < 2 or name.endswith("bias"))
        parts.setdefault(f"{group}_vectors" if vector else group, []).append(parameter)
    return [
        {"name": name, "params": params, **optim.model_dump()} | ({"weight_decay": 0.0} if name != group else {})
        for name, params in parts.items()
    ]


def add_lora(model: nn.Module, config: LoraConfig, family: Family) -> None:
    """Add adapters, which change nothing yet, to a transformers model."""
    from peft import LoraConfig as PeftLora

    targets: str | list[str] = LANGUAGE
    if config.targets == "all":
        # Without the output layer, as PEFT's "all-linear" does.
        output = id(model.get_output_embeddings())  # type: ignore[operator]
        targets = sorted(
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and id(module) != output and not family.is_unused(name)
        )
    settings = PeftLora(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=targets,
        bias="none",
        task_type="CAUSAL_LM",
    )
    _inject(model, settings)


def _inject(model: nn.Module, settings: Any) -> None:
    from peft import inject_adapter_in_model

    inject_adapter_in_model(settings, model, _NAME)
    # Where PEFT's wrapper and transformers keep it.
    model.peft_config = {_NAME: settings}  # type: ignore[assignment]


def is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def _peft_name(name: str) -> str:
    return _PREFIX + name.replace(f".{_NAME}.", ".")


def write_adapter(folder: Path, model: nn.Module, state: Mapping[str, Tensor], base: BaseName) -> None:
    """Write an adapter as PEFT does. ``state``: parameters of the model by name, on the CPU; those of no adapter are
    left out."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    adapter = {_peft_name(name): tensor.contiguous() for name, tensor in state.items() if is_adapter(name)}
    save_file(adapter, folder / WEIGHTS, metadata={"format": "pt"})
    settings: Any = model.peft_config[_NAME]  # type: ignore[index]
    kept = settings.to_dict() | {"base_model_name_or_path": base.source, "revision": base.revision}
    kept["inference_mode"] = True  # as PEFT's save_pretrained writes it
    # Sets, which PEFT has of module names, as sorted lists: equal adapters get equal files.
    text = json.dumps({key: sorted(value) if isinstance(value, set) else value for key, value in kept.items()})
    (folder / SETTINGS).write_text(json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_adapter(folder: Path, model: nn.Module, base: BaseName) -> None:
    """Add an adapter of :func:`write_adapter`, or of PEFT, to a transformers model, in float32. Adapters of models with
    equal language models have equal shapes, so the base's name decides. One that is not LoRA, is damaged, or belongs to
    another model is a ValueError."""
    from peft import PeftConfig
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        settings: Any = PeftConfig.from_pretrained(str(folder))
        state = load_file(folder / WEIGHTS)
    except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{folder} has no usable adapter ({reason}); copy it again") from None
    if str(settings.peft_type).rpartition(".")[2] != "LORA":
        raise ValueError(f"{folder} is an adapter of type {settings.peft_type}; only LoRA adapters can be read")
    try:
        if settings.base_model_name_or_path != base.source:
            raise ValueError(f"which is {base.source}")
        _inject(model, settings)
        for name, parameter in model.named_parameters():
            if is_adapter(name):
                parameter.data = parameter.data.to(torch.float32)
        names = {_peft_name(name): name for name in model.state_dict() if is_adapter(name)}
        expected = {theirs: model.state_dict()[ours] for theirs, ours in names.items()}
        if faults := layout_faults(state, expected, "the model"):
            raise ValueError(faults[0])
    except ValueError as error:
        raise ValueError(
            f"the adapter {folder} does not fit this base model ({str(error).splitlines()[0][:200]}); it was trained "
            f"on {settings.base_model_name_or_path}: give that one with base.source=/path"
        ) from None
    # Not strict: all other parameters stay; the adapters' names and shapes are checked above.
    model.load_state_dict({names[name]: tensor for name, tensor in state.items()}, strict=False)


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Within the block the model computes as its base, exactly; which parameters are trained does not change."""
    from peft.tuners.lora import LoraLayer

    layers = [module for module in model.modules() if isinstance(module, LoraLayer)]
    try:
        for layer in layers:
            # PEFT's own enable_adapters(False) also sets requires_grad of the adapters, which the optimizer holds.
            layer._disable_adapters = True  # type: ignore[attr-defined]
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False  # type: ignore[attr-defined]


@torch.no_grad()
def merge_adapter(model: nn.Module) -> None:
    """Add the adapters to the weights that they adapt, and remove them. The sum is computed in float32, layer by layer,
    and cast to the type of the weights once."""
    from peft.tuners.lora import LoraLayer

    for name, layer in list(model.named_modules()):
        # PEFT's own merge rounds twice (tests/vlm/test_sft.py, test_merging_into_bfloat16_rounds_once).
        if isinstance(layer, LoraLayer):
            base: Any = layer.get_base_layer()
            delta: Tensor = layer.get_delta_weight(_NAME)  # type: ignore[attr-defined]
            base.weight.copy_((base.weight.float() + delta.float()).to(base.weight.dtype))
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, base)
    if hasattr(model, "peft_config"):
        del model.peft_config


_MODEL = "model."
"""Prefix of the transformers model in the names of a task (:class:`idc.vlm.system.SftTask`)."""


def write_tuned(
    path: Path | str, *, system: str, config: dict[str, Any], state: Mapping[str, Tensor], model: Any, base: FoundBase,
    **more: Any,
) -> Path:  # fmt: skip
    """Write the artifact of a tuned model, or without a state that of a base as it is. ``state``: the weights of
    :meth:`idc.training.task.Task.checkpoint_keys`, by its names; ``model``: the task's transformers model, for the
    settings of its adapters; ``more``: as of :func:`idc.training.artifact.write_artifact`."""
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
