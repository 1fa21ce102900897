"""Published models at their real size, on torch's meta device: parameters, adapters, image tokens; and the small bases
that come with the program: by name, and whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from idc.training.base import BaseName, full_hash
from idc.util import shipped_weights
from idc.util.shipped_weights import BASES
from idc.vlm.base import find_base, read_family
from idc.vlm.config import BaseConfig, LoraConfig
from idc.vlm.family import Family
from idc.vlm.tuning import add_lora, is_adapter
from tests.vlm.models import tiny_folder


class PublishedModel(NamedTuple):
    """A model of the hub.

    Attributes:
        config: of its config.json, nested as transformers takes it.
        images: of its preprocessor_config.json.
        parameters: that the hub shows for the safetensors; ``digits``: how many of its leading digits.
        tokens: of one image of 256x256, 640x480, 480x320 and 1024x1024, with max_pixels of 262,144; ``unlimited``: with
            the model's own limit.
    """

    config: dict[str, Any]
    images: dict[str, Any]
    parameters: int
    digits: int
    tokens: tuple[int, ...]
    unlimited: tuple[int, ...]


def _text(width: int, inner: int, layers: int, heads: int, keys: int, vocabulary: int, kind: str) -> dict[str, Any]:
    return {
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": keys, "vocab_size": vocabulary, "model_type": kind,
    }  # fmt: skip


_QWEN2_7B = (3584, 18944, 28, 28, 4)

PUBLISHED: dict[str, PublishedModel] = {
    "Qwen/Qwen2.5-VL-7B-Instruct": PublishedModel(
        {
            "model_type": "qwen2_5_vl", "tie_word_embeddings": False,
            "text_config": {
                **_text(*_QWEN2_7B, 152064, "qwen2_5_vl_text"),
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
            },
            "vision_config": {
                "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "num_heads": 16,
                "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "window_size": 112,
                "fullatt_block_indexes": [7, 15, 23, 31], "out_hidden_size": 3584,
            },
        },
        {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14,
         "temporal_patch_size": 2, "merge_size": 2},
        8_292_166_656, 10, (81, 315, 187, 324), (81, 391, 187, 1369),
    ),
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": PublishedModel(
        {
            "model_type": "llava_onevision", "tie_word_embeddings": False, "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full", "text_config": _text(*_QWEN2_7B, 152128, "qwen2"),
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
                "num_hidden_layers": 26, "num_attention_heads": 16, "patch_size": 14, "image_size": 384,
                "vision_use_head": False,
            },
        },
        {"image_processor_type": "LlavaOnevisionImageProcessor", "size": {"height": 384, "width": 384},
         "image_grid_pinpoints": [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)]},
        8_030_000_000, 3, (730,) * 4, (730,) * 4,
    ),
    "OpenGVLab/InternVL3-8B-hf": PublishedModel(
        {
            "model_type": "internvl", "downsample_ratio": 0.5, "image_seq_length": 256, "tie_word_embeddings": False,
            "text_config": _text(*_QWEN2_7B, 151674, "qwen2"),
            "vision_config": {
                "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
                "attention_bias": True, "patch_size": [14, 14], "image_size": [448, 448],
            },
        },
        {"image_processor_type": "GotOcr2ImageProcessorFast", "size": {"height": 448, "width": 448},
         "crop_to_patches": False},
        7_940_000_000, 3, (256,) * 4, (256,) * 4,
    ),
}  # fmt: skip

SIZES = ((256, 256), (480, 640), (320, 480), (1024, 1024))
ADAPTERS = {"qwen2_5_vl": 2_523_136, "llava_onevision": 2_523_136, "internvl": 2_523_136}
"""Parameters of adapters of rank 1 in the language models: M3Diff's rank 128 has 323.0 million, ChangeVG's 8 20.2
million."""


def family(name: str, folder: Path, max_pixels: int | None = 262_144) -> Family:
    """The family as it is read from a hub folder: the real config and image processor, a small tokenizer."""
    small = tiny_folder(PUBLISHED[name].config["model_type"])
    for path in small.iterdir():
        if path.name not in ("config.json", "model.safetensors", "preprocessor_config.json", "processor_config.json"):
            (folder / path.name).write_bytes(path.read_bytes())
    theirs = json.loads((small / "config.json").read_text())
    ids = {key: value for key, value in theirs.items() if key.startswith("image_token_")}  # of the small tokenizer
    (folder / "config.json").write_text(json.dumps(PUBLISHED[name].config | ids))
    means = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(PUBLISHED[name].images | means))
    return read_family(folder, folder, max_pixels)


def count(parameters: Any) -> int:
    return sum(parameter.numel() for parameter in parameters)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_adapters_and_image_tokens(name: str, tmp_path: Path) -> None:
    """The model has as many parameters as published; tower, projector and language model share them as docs/vlm.md
    says. Adapters are in the seven linear layers of each layer of the language model, or in all but the output."""
    from transformers import AutoModelForImageTextToText

    published, own = PUBLISHED[name], family(name, tmp_path)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(own.config)
    total = count(model.parameters())
    assert f"{total:.{published.digits - 1}e}" == f"{published.parameters:.{published.digits - 1}e}"
    parts = {"tower": 0, "projector": 0, "language": 0}
    for key, parameter in model.named_parameters():
        part = "tower" if own.is_tower(key) else "projector" if own.is_projector(key) else "language"
        assert (part == "language") == ("language_model" in key or key == "lm_head.weight"), key
        parts[part] += parameter.numel()
    millions = " + ".join(f"{number / 1e6:,.0f}" for number in parts.values())
    assert f"| {name} | {millions} |" in (ROOT / "docs/vlm.md").read_text(encoding="utf-8")

    assert tuple(own.num_tokens(size) for size in SIZES) == published.tokens
    assert tuple(family(name, tmp_path, None).num_tokens(size) for size in SIZES) == published.unlimited

    linears = {key for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    wanted = {"all": {key for key in linears if key != "lm_head" and not own.is_unused(key)}}
    wanted["language"] = {key for key in wanted["all"] if "language_model.layers." in key}
    assert len(wanted["language"]) == 7 * own.config.text_config.num_hidden_layers
    for targets, layers in wanted.items():
        with torch.device("meta"):
            adapted = AutoModelForImageTextToText.from_config(own.config)
            add_lora(adapted, LoraConfig(rank=64, targets=targets), own)  # type: ignore[arg-type]
        adapters = {key: parameter for key, parameter in adapted.named_parameters() if is_adapter(key)}
        assert {key.partition(".lora_")[0] for key in adapters} == layers
        assert (count(adapters.values()) == 64 * ADAPTERS[own.name]) == (targets == "language")


ROOT = Path(__file__).parents[2]
every_base = pytest.mark.parametrize("name", BASES)


@every_base
def test_a_base_is_found_by_its_name_from_everywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an artifact, which names it without a path of this machine; a folder of that name is not taken for it."""
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    base = find_base(BaseConfig(source=name))
    assert full_hash(base.folder) == json.loads((base.folder / "pretraining.json").read_text())["sha256"]
    assert base.name.source == name
    assert BaseName(**base.name.to_dict()).folder() == base.folder == ROOT / "idc/weights" / BASES[name]


def test_where_an_upload_left_the_weights_out_the_error_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped_weights, "_HERE", tmp_path / "none")
    monkeypatch.delenv(shipped_weights.WEIGHTS, raising=False)
    with pytest.raises(ValueError, match=r"the base model that comes with .* set IDC_WEIGHTS .* base\.source"):
        find_base(BaseConfig(source="shipped"))
    monkeypatch.setenv(shipped_weights.WEIGHTS, str(ROOT / "idc/weights"))
    assert find_base(BaseConfig(source="shipped")).folder.parent == ROOT / "idc/weights"
