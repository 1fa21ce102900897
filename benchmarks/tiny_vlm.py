"""Small models of each family from random weights: what tests and benchmarks run on.

The folder is an ordinary hub folder (config, safetensors, tokenizer, image processor, chat template), of the classes
and formats of the real models: nothing else in the program knows that a model is small. The tokenizer is byte-level BPE
trained on given texts, so that no text is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from idc.vlm.base import save_model
from idc.vlm.family import Family

_END, _PAD = "<|im_end|>", "<|endoftext|>"


class _Family(NamedTuple):
    processor: str
    image: str
    """An image in a turn."""
    special: tuple[str, ...]
    """Tokens of the tokenizer."""


_QWEN_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
_FAMILIES = {
    "qwen2_5_vl": _Family("Qwen2_5_VLProcessor", _QWEN_IMAGE, _QWEN_TOKENS),
    "qwen3_vl": _Family("Qwen3VLProcessor", _QWEN_IMAGE, _QWEN_TOKENS),
    "llava_onevision": _Family("LlavaOnevisionProcessor", "<image>", ("<image>", "<video>")),
    "internvl": _Family("InternVLProcessor", "<IMG_CONTEXT>\n", ("<img>", "</img>", "<IMG_CONTEXT>", "<video>")),
}
_INTERNVL_NAMES = ("start_image_token", "end_image_token", "context_image_token", "video_token")
_CHAT = (
    "{%- for message in messages -%}<|im_start|>{{ message['role'] + '\\n' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{%- if part['type'] == 'image' -%}{{ IMAGE }}{%- else -%}{{ part['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}<|im_end|>{{ '\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant{{ '\\n' }}{%- endif -%}"
)
_ROPE_THETA = 10.0
"""Base of the rotary positions of Qwen's small language models: with 1e6 neighbouring rows of a small grid turn by
0.016 rad, and a narrow head cannot tell them apart."""


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of a small model of a family.

    Attributes:
        width: of the language model; ``tower_width``: of the vision tower; multiples of 16.
        heads: of tower and language model; keys and values of the second have half as many.
        side: of an image in pixels (of Qwen: of the largest square), a multiple of two patches.
        vocabulary: largest number of entries of the tokenizer.
    """

    family: str = "internvl"
    width: int = 32
    layers: int = 2
    heads: int = 4
    tower_width: int = 32
    tower_layers: int = 2
    side: int = 64
    patch: int = 16
    vocabulary: int = 512

    @property
    def patches(self) -> int:
        """Along a side."""
        return self.side // self.patch

    @property
    def pinpoints(self) -> list[list[int]]:
        """Sizes of LLaVA-OneVision's tilings."""
        return [[rows * self.side, columns * self.side] for rows in (1, 2) for columns in (1, 2)]


def make_tiny(config: TinyConfig, texts: Iterable[str], folder: Path | str, seed: int = 0) -> Path:
    """Write a small model with random weights.

    Args:
        texts: on which the tokenizer is trained.
        folder: of the model.
        seed: of the weights.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(config, texts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = new_model(config, tokenizer)
    save_model(model, folder)
    tokenizer.save_pretrained(folder)
    make_images(config).save_pretrained(folder)
    settings: dict[str, Any] = {"processor_class": _FAMILIES[config.family].processor}
    if config.family == "llava_onevision":
        settings |= {"num_image_tokens": config.patches**2, "vision_feature_select_strategy": "full"}
    if config.family == "internvl":
        settings |= {"image_seq_length": (config.patches // 2) ** 2}
    (folder / "processor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    return folder


def make_tokenizer(config: TinyConfig, texts: Iterable[str]) -> Any:
    """A byte-level BPE tokenizer with the family's special tokens and a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    family = _FAMILIES[config.family]
    special = [_PAD, "<|im_start|>", _END, *family.special]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=config.vocabulary - len(special), initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    names = dict(zip(_INTERNVL_NAMES, family.special, strict=True)) if config.family == "internvl" else {}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=_END,
        pad_token=_PAD,
        padding_side="left",
        **({"extra_special_tokens": names} if names else {}),
    )
    fast.chat_template = _CHAT.replace("IMAGE", repr(family.image))
    return fast


def make_images(config: TinyConfig) -> Any:
    """The family's image processor, PIL backend."""
    import transformers

    square = {"height": config.side, "width": config.side}
    if config.family == "llava_onevision":
        return transformers.LlavaOnevisionImageProcessorPil(size=square, image_grid_pinpoints=config.pinpoints)
    if config.family == "internvl":
        return transformers.GotOcr2ImageProcessorPil(size=square)
    return transformers.Qwen2VLImageProcessorPil(
        min_pixels=(2 * config.patch) ** 2, max_pixels=config.side**2, patch_size=config.patch, merge_size=2
    )


def new_model(config: TinyConfig, tokenizer: Any) -> Any:
    """A model with random weights for the ids of a tokenizer."""
    import transformers

    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in _FAMILIES[config.family].special}
    head = config.width // config.heads
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": config.width, "intermediate_size": 2 * config.width,
        "num_hidden_layers": config.layers, "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads // 2, "tie_word_embeddings": True, "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    tower: dict[str, Any] = {
        "hidden_size": config.tower_width, "intermediate_size": 2 * config.tower_width, "patch_size": config.patch,
    }  # fmt: skip
    whole: dict[str, Any] = {"text_config": text, "vision_config": tower, "tie_word_embeddings": True}
    if config.family.startswith("qwen"):
        third = head // 2 // 3
        sections = [head // 2 - 2 * third, third, third]
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": _ROPE_THETA, "mrope_section": sections}
        tower |= {
            "depth": config.tower_layers, "num_heads": config.heads, "spatial_merge_size": 2, "temporal_patch_size": 2,
            "out_hidden_size": config.width,
        }  # fmt: skip
        whole |= {
            "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
            "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"],
        }  # fmt: skip
    else:
        text["model_type"] = "qwen2"
        tower |= {"num_hidden_layers": config.tower_layers, "num_attention_heads": config.heads}
    match config.family:
        case "qwen3_vl":
            text["head_dim"] = head
            tower |= {"num_position_embeddings": config.patches**2, "deepstack_visual_indexes": [0]}
            return transformers.Qwen3VLForConditionalGeneration(transformers.Qwen3VLConfig(**whole))
        case "qwen2_5_vl":
            tower |= {"window_size": 4 * config.patch, "fullatt_block_indexes": [config.tower_layers - 1]}
            return transformers.Qwen2_5_VLForConditionalGeneration(transformers.Qwen2_5_VLConfig(**whole))
        case "llava_onevision":
            tower |= {"model_type": "siglip_vision_model", "image_size": config.side, "vision_use_head": False}
            whole |= {
                "image_token_index": ids["<image>"], "video_token_index": ids["<video>"], "vision_feature_layer": -1,
                "vision_feature_select_strategy": "full", "image_grid_pinpoints": config.pinpoints,
            }  # fmt: skip
            return transformers.LlavaOnevisionForConditionalGeneration(transformers.LlavaOnevisionConfig(**whole))
        case _:
            tower |= {"image_size": [config.side] * 2, "patch_size": [config.patch] * 2}
            whole |= {"image_token_id": ids["<IMG_CONTEXT>"], "image_seq_length": (config.patches // 2) ** 2,
                      "downsample_ratio": 0.5}  # fmt: skip
            return transformers.InternVLForConditionalGeneration(transformers.InternVLConfig(**whole))


def without_videos(processor: str) -> Any:
    """Transformers' class of a processor, without its video part, which needs torchvision."""
    import transformers

    theirs: Any = getattr(transformers, processor)

    class ImagesOnly(theirs):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument: str, value: Any) -> Any:
            return None if argument == "video_processor" else super().check_argument_for_proper_class(argument, value)

    return ImagesOnly


def processor_of(family: Family) -> Any:
    """Transformers' processor of a family, without its video part."""
    name = {"qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen3_vl": "Qwen3VLProcessor", "internvl": "InternVLProcessor",
            "llava_onevision": "LlavaOnevisionProcessor"}[family.name]  # fmt: skip
    more: dict[str, Any] = {}
    vision = family.config.vision_config
    if family.name == "llava_onevision":
        more = {"num_image_tokens": (vision.image_size // vision.patch_size) ** 2}
        more["vision_feature_select_strategy"] = family.config.vision_feature_select_strategy
    if family.name == "internvl":
        more = {"image_seq_length": family.config.image_seq_length}
    template = family.tokenizer.chat_template
    return without_videos(name)(
        image_processor=family.images, tokenizer=family.tokenizer, video_processor=None, chat_template=template, **more
    )
