"""The published models at their real sizes, on torch's meta device: parameters, shapes, adapters, image tokens."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from idc.vlm.base import read_family
from idc.vlm.config import LoraConfig
from idc.vlm.family import Family
from idc.vlm.lora import add_lora, is_adapter
from tests.vlm.models import tiny_folder
from tests.vlm.published_models import PUBLISHED

every_model = pytest.mark.parametrize("name", PUBLISHED)
OF_EACH_FAMILY = {published.config["model_type"]: name for name, published in PUBLISHED.items()}.values()
SIZES = {"LEVIR-CC": (256, 256), "640x480": (480, 640), "CLEVR-Change": (320, 480), "1024x1024": (1024, 1024)}
TOKENS = {  # of one image of each size, with max_pixels of 262,144
    "qwen2_5_vl": (81, 315, 187, 324),
    "qwen3_vl": (64, 234, 150, 256),
    "llava_onevision": (730,) * 4,
    "internvl": (256,) * 4,
}
ADAPTERS = {"qwen2_5_vl": 2_523_136, "qwen3_vl": 2_727_936, "llava_onevision": 2_523_136, "internvl": 2_523_136}
"""Parameters of adapters of rank 1 in the language models of 7B and 8B: M3Diff's rank 128 has 323.0 million, ChangeVG's
8 20.2 million."""
UNLIMITED = {"qwen2_5_vl": (81, 391, 187, 1369), "qwen3_vl": (64, 300, 150, 1024)}
"""With the model's own limit."""


@cache
def family(name: str, max_pixels: int | None = 262_144) -> Family:
    """The family as it is read from a hub folder: the real config and image processor, a small tokenizer."""
    import tempfile

    folder, small = Path(tempfile.mkdtemp()), tiny_folder(PUBLISHED[name].config["model_type"])
    for path in small.iterdir():
        if path.name not in ("config.json", "model.safetensors", "preprocessor_config.json", "processor_config.json"):
            (folder / path.name).write_bytes(path.read_bytes())
    theirs = json.loads((small / "config.json").read_text())
    ids = {key: value for key, value in theirs.items() if key.startswith("image_token_")}  # of the small tokenizer
    (folder / "config.json").write_text(json.dumps(as_on_the_hub(PUBLISHED[name].config) | ids))
    means = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(PUBLISHED[name].images | means))
    return read_family(folder, folder, max_pixels)


def as_on_the_hub(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json as transformers 4 wrote it: rotary positions in two fields, and of Qwen2.5-VL the language model's
    settings next to the others."""
    text = dict(config["text_config"])
    if (rope := text.pop("rope_parameters", None)) is None:
        return config
    rope = dict(rope)
    text |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    if config["model_type"] != "qwen2_5_vl":
        return config | {"text_config": text}
    text.pop("model_type")
    text["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    return {key: value for key, value in config.items() if key != "text_config"} | text


def meta(name: str) -> Any:
    from transformers import AutoModelForImageTextToText

    config = family(name).config
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(config)


def count(parameters: Any) -> int:
    return sum(parameter.numel() for parameter in parameters)


@every_model
def test_parameters_of_each_part(name: str) -> None:
    """The model has as many as published; tower, projector and language model share them as docs/vlm.md says."""
    published, model, own = PUBLISHED[name], meta(name), family(name)
    found = count(model.parameters())
    assert f"{found:.{published.digits - 1}e}" == f"{published.parameters:.{published.digits - 1}e}"
    parts = {"tower": 0, "projector": 0, "language": 0}
    for key, parameter in model.named_parameters():
        part = "tower" if own.is_tower(key) else "projector" if own.is_projector(key) else "language"
        assert (part == "language") == ("language_model" in key or key == "lm_head.weight"), key
        parts[part] += parameter.numel()
    assert sum(parts.values()) == found
    millions = " + ".join(f"{number / 1e6:,.0f}" for number in parts.values())
    assert f"| {name} | {millions} |" in Path("docs/vlm.md").read_text(encoding="utf-8")


@every_model
def test_image_tokens_of_real_sizes(name: str) -> None:
    own = family(name)
    assert tuple(own.num_tokens(size) for size in SIZES.values()) == TOKENS[own.name]
    assert tuple(family(name, None).num_tokens(size) for size in SIZES.values()) == (
        UNLIMITED.get(own.name, TOKENS[own.name])
    )


@pytest.mark.parametrize("name", ["llava-hf/llava-onevision-qwen2-7b-ov-hf", "OpenGVLab/InternVL3-8B-hf"])
def test_features_of_a_pair_fit_the_language_model(name: str) -> None:
    """A pair through tower and projector at real size: as many tokens as are counted, as wide as the language model."""
    model, own = meta(name), family(name)
    side = own.seen_size((480, 640))
    encoded = own.encode(model, {"pixel_values": torch.zeros(2, 3, *side, device="meta")})
    tokens = own.tokens_of(encoded)
    assert [tuple(one.shape) for one in tokens] == [(own.num_tokens((480, 640)), 3584)] * 2


@pytest.mark.parametrize("name", OF_EACH_FAMILY)
@pytest.mark.parametrize("targets", ["language", "all"])
def test_adapters_are_in_the_seven_linear_layers_or_in_all_but_the_output(name: str, targets: str) -> None:
    model, own = meta(name), family(name)
    linears = {key for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    wanted = {key for key in linears if key != "lm_head" and not own.is_unused(key)}
    if targets == "language":
        wanted = {key for key in wanted if "language_model.layers." in key}
        assert len(wanted) == 7 * own.config.text_config.num_hidden_layers
    with torch.device("meta"):
        add_lora(model, LoraConfig(rank=64, targets=targets), own)  # type: ignore[arg-type]
    adapters = {key: parameter for key, parameter in model.named_parameters() if is_adapter(key)}
    assert {key.partition(".lora_")[0] for key in adapters} == wanted
    assert (count(adapters.values()) == 64 * ADAPTERS[own.name]) == (targets == "language")
