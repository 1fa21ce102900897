"""Small models of each family from random weights: what tests and benchmarks run on.

The folder is an ordinary hub folder (config, safetensors, tokenizer, image processor, chat template), of the classes
and formats of the real models: nothing else in the program knows that a model is small. The tokenizer is byte-level BPE
trained on given texts, so that no text is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from idc.vlm.base import save_model
from idc.vlm.config import TinyConfig
from idc.vlm.transformers_internals import pil_processor

_END, _PAD = "<|im_end|>", "<|endoftext|>"
_SPECIAL = {
    "qwen2_5_vl": ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    "qwen3_vl": ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"),
    "llava_onevision": ("<image>", "<video>"),
    "internvl": ("<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
}
_IMAGE = {
    "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "qwen3_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "llava_onevision": "<image>",
    "internvl": "<IMG_CONTEXT>\n",
}
_INTERNVL_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
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
    (folder / "processor_config.json").write_text(json.dumps(_processor_settings(config), indent=2) + "\n")
    return folder


def _processor_settings(config: TinyConfig) -> dict[str, Any]:
    """Settings that the family's Processor class reads besides tokenizer and image processor."""
    if config.family == "llava_onevision":
        tokens = (config.side // config.patch) ** 2
        return {"processor_class": "LlavaOnevisionProcessor", "num_image_tokens": tokens,
                "vision_feature_select_strategy": "full"}  # fmt: skip
    if config.family == "internvl":
        return {"processor_class": "InternVLProcessor", "image_seq_length": (config.side // config.patch // 2) ** 2}
    return {"processor_class": "Qwen3VLProcessor" if config.family == "qwen3_vl" else "Qwen2_5_VLProcessor"}


def make_tokenizer(config: TinyConfig, texts: Iterable[str]) -> Any:
    """A byte-level BPE tokenizer with the family's special tokens and a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    special = [_PAD, "<|im_start|>", _END, *_SPECIAL[config.family]]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=config.vocabulary - len(special), initial_alphabet=alphabet, show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    more = {"extra_special_tokens": _INTERNVL_TOKENS} if config.family == "internvl" else {}
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_END, pad_token=_PAD, padding_side="left", **more
    )
    image = _IMAGE[config.family].replace("\n", "\\n")
    fast.chat_template = _CHAT.replace("IMAGE", f"'{image}'")
    return fast


def make_images(config: TinyConfig) -> Any:
    """The family's image processor, PIL backend."""
    processor = pil_processor(config.family)
    square = {"height": config.side, "width": config.side}
    if config.family == "llava_onevision":
        side = config.side
        points = [[side, side], [side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
        return processor(size=square, image_grid_pinpoints=points)
    if config.family == "internvl":
        return processor(size=square)
    return processor(
        min_pixels=(2 * config.patch) ** 2, max_pixels=config.side**2, patch_size=config.patch, merge_size=2
    )


def new_model(config: TinyConfig, tokenizer: Any) -> Any:
    """A model with random weights for the ids of a tokenizer."""
    import transformers

    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in _SPECIAL[config.family]}
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": config.width,
        "intermediate_size": 2 * config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads // 2,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    tower: dict[str, Any] = {
        "hidden_size": config.tower_width,
        "intermediate_size": 2 * config.tower_width,
        "patch_size": config.patch,
    }
    if config.family in ("qwen2_5_vl", "qwen3_vl"):
        third = config.width // config.heads // 2 // 3
        sections = [config.width // config.heads // 2 - 2 * third, third, third]
        text["rope_parameters"] = {"rope_type": "default", "rope_theta": _ROPE_THETA, "mrope_section": sections}
        tower |= {
            "depth": config.tower_layers,
            "num_heads": config.heads,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": config.width,
        }
        common = {
            "image_token_id": ids["<|image_pad|>"],
            "video_token_id": ids["<|video_pad|>"],
            "vision_start_token_id": ids["<|vision_start|>"],
            "vision_end_token_id": ids["<|vision_end|>"],
            "tie_word_embeddings": True,
        }
        if config.family == "qwen3_vl":
            text |= {"head_dim": config.width // config.heads}
            tower |= {
                "num_position_embeddings": (config.side // config.patch) ** 2,
                "deepstack_visual_indexes": [0],
            }
            return transformers.Qwen3VLForConditionalGeneration(
                transformers.Qwen3VLConfig(text_config=text, vision_config=tower, **common)
            )
        tower |= {"window_size": 4 * config.patch, "fullatt_block_indexes": [config.tower_layers - 1]}
        return transformers.Qwen2_5_VLForConditionalGeneration(
            transformers.Qwen2_5_VLConfig(text_config=text, vision_config=tower, **common)
        )
    text["model_type"] = "qwen2"
    tower |= {
        "num_hidden_layers": config.tower_layers,
        "num_attention_heads": config.heads,
    }
    if config.family == "llava_onevision":
        side = config.side
        return transformers.LlavaOnevisionForConditionalGeneration(
            transformers.LlavaOnevisionConfig(
                text_config=text,
                vision_config=tower
                | {"model_type": "siglip_vision_model", "image_size": side, "vision_use_head": False},
                image_token_index=ids["<image>"],
                video_token_index=ids["<video>"],
                vision_feature_layer=-1,
                vision_feature_select_strategy="full",
                image_grid_pinpoints=[[side, side], [side, 2 * side], [2 * side, side], [2 * side, 2 * side]],
                tie_word_embeddings=True,
            )
        )
    return transformers.InternVLForConditionalGeneration(
        transformers.InternVLConfig(
            text_config=text,
            vision_config=tower | {"image_size": [config.side] * 2, "patch_size": [config.patch] * 2},
            image_token_id=ids["<IMG_CONTEXT>"],
            image_seq_length=(config.side // config.patch // 2) ** 2,
            downsample_ratio=0.5,
            tie_word_embeddings=True,
        )
    )
