"""Base models: a hub id or a folder becomes a family, and on request the model with its weights.

What can be wrong is found before anything large is loaded: the folder, the kind of model, tokenizer and image
processor. Nothing is downloaded unless ``base.download`` allows it (:func:`idc.training.base.locate_base`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from idc.training.base import BaseName, locate_base
from idc.util.atomic import take_umask
from idc.vlm.config import BaseConfig
from idc.vlm.families import attend_windows_at_once, family_class
from idc.vlm.family import Family


@dataclass(frozen=True)
class FoundBase:
    """A base model on this machine, without its weights: its name for an artifact, its folder, and the family with its
    tokenizer and image processor."""

    name: BaseName
    folder: Path
    family: Family


def find_base(config: BaseConfig, weights: bool = True) -> FoundBase:
    """Find a base model, with or without its ``weights``, and read all the rest. One that is not here, incomplete, of
    no known family, or without tokenizer or image processor is a ValueError."""

    def refuse_unknown(folder: Path) -> None:
        family_class(model_type(folder), config.source)

    folder = locate_base(
        config.source, config.revision, download=config.download, check=refuse_unknown, weights=weights
    )
    kind = model_type(folder)
    family_class(kind, folder)
    name = BaseName.of(config.source, folder, kind, weights=weights)
    return FoundBase(name, folder, read_family(folder, folder, config.max_pixels))


def model_type(folder: Path) -> str:
    """The ``model_type`` of a model's config.json, or a ValueError."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"{folder} is no transformers model: it has no config.json; give the folder that has it"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); copy or download the model again") from None
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ValueError(f"{path} has no model_type; it is not the config of a transformers model")
    return str(config["model_type"])


def read_family(folder: Path, processor: Path, max_pixels: int | None) -> Family:
    """The family of a model, with the tokenizer and image processor of a folder (an artifact keeps its own). An unknown
    kind of model, and files that are missing, damaged, of another model, or name code of their own, are a
    ValueError."""
    from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

    make = family_class(model_type(folder), folder)
    refuse_code(processor)
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(processor, trust_remote_code=False)
        images = AutoImageProcessor.from_pretrained(processor, backend="pil", trust_remote_code=False)
        _take_template(tokenizer, processor)
    except Exception as error:  # transformers raises many kinds for files that are missing or damaged
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{processor} has no usable tokenizer or image processor ({reason}); copy or download the model again"
        ) from error
    family = make(config, tokenizer, images, max_pixels)
    try:
        family.check()
    except ValueError as error:
        raise ValueError(f"{processor} belongs to another model: {error}; copy or download the model again") from None
    return family


def refuse_code(folder: Path) -> None:
    """Refuse, by a ValueError, a folder of a tokenizer and image processor with Python files, or a config that names
    some: they are never run."""
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        keys: set[str] = set()
        if path.name.endswith("config.json"):
            with contextlib.suppress(ValueError, RecursionError):  # not JSON: transformers refuses it
                json.loads(path.read_bytes(), object_hook=keys.update)
        if path.suffix == ".py" or "auto_map" in keys:
            named = "is code" if path.suffix == ".py" else "names code (auto_map)"
            raise ValueError(
                f"{path} {named}, which this program never runs; if transformers has a class of its own for the model, "
                "remove that from the folder, else take another model"
            )


def _take_template(tokenizer: Any, folder: Path) -> None:
    """Give a tokenizer the chat template of the model's processor where that is in an older kind of file, which
    tokenizers do not read: theirs may be that of the language model alone, which does not write images."""
    path = folder / "chat_template.json"
    if path.is_file() and not (folder / "chat_template.jinja").is_file():
        tokenizer.chat_template = json.loads(path.read_text(encoding="utf-8"))["chat_template"]


def save_processor(family: Family, folder: Path) -> None:
    """Write the tokenizer with its chat template, the image processor and the model's config; :func:`read_family` reads
    them, also where the base itself is missing (:mod:`idc.vlm.remote`)."""
    family.config.save_pretrained(folder)
    family.tokenizer.save_pretrained(folder)
    family.images.save_pretrained(folder)


def save_model(model: Any, folder: Path) -> None:
    from transformers.utils import logging as transformers_logging

    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()

    def only_errors(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR

    deepspeed = logging.getLogger("DeepSpeed")  # imported to see whether the model is wrapped; it reports the device
    deepspeed.addFilter(only_errors)
    try:
        model.save_pretrained(folder)
        take_umask(folder)
    finally:
        deepspeed.removeFilter(only_errors)


def load_model(folder: Path, config: BaseConfig, device: torch.device | str = "cpu") -> Any:
    """The transformers model of a folder, in evaluation mode; missing weights, or weights of other shapes, are a
    ValueError."""
    from transformers import AutoModelForImageTextToText

    automatic = "bfloat16" if torch.device(device).type == "cuda" else "float32"
    dtype: torch.dtype = getattr(torch, automatic if config.dtype == "auto" else config.dtype)
    options = {"dtype": dtype, "attn_implementation": config.attention}
    model = load_transformers_model(AutoModelForImageTextToText, folder, **options).to(device)
    if config.attention == "sdpa" and model.config.model_type in ("qwen2_5_vl", "qwen3_vl"):
        attend_windows_at_once(model)
    return model


def load_transformers_model(auto: Any, folder: Path, **options: Any) -> Any:
    """:func:`load_model` by one of transformers' automatic classes, with options of its own."""
    from safetensors import SafetensorError
    from transformers.utils import logging as transformers_logging

    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    try:
        model, report = auto.from_pretrained(
            folder,
            trust_remote_code=False,
            local_files_only=True,
            use_safetensors=True,  # pickled weights could run code
            output_loading_info=True,
            **options,
        )
    except (OSError, RuntimeError, ValueError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"the weights of {folder} cannot be loaded ({reason})") from error
    if missing := sorted(report["missing_keys"]):
        raise ValueError(
            f"{folder} is incomplete: {len(missing)} weights are missing, first {missing[0]}; download it again"
        )
    return model.eval()
