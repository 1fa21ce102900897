"""Sizes of published vision-language models: what their config.json and preprocessor_config.json on the hub say.

Only what a shape or a number of tokens depends on is here. ``parameters`` are those that the hub shows for
the safetensors: to the last one for the Qwen models, else rounded.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class PublishedModel(NamedTuple):
    """A model of the hub.

    Attributes:
        config: of its config.json, nested as transformers takes it.
        images: of its preprocessor_config.json.
        parameters: published number.
        digits: how many of its leading digits are published.
    """

    config: dict[str, Any]
    images: dict[str, Any]
    parameters: int
    digits: int = 10


def _text(width: int, inner: int, layers: int, heads: int, keys: int, vocabulary: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": keys, "vocab_size": vocabulary, **more,
    }  # fmt: skip


def _qwen2_5(text: dict[str, Any], tied: bool) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    vision = {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112, "in_channels": 3,
        "fullatt_block_indexes": [7, 15, 23, 31], "out_hidden_size": text["hidden_size"],
    }  # fmt: skip
    text = text | {"model_type": "qwen2_5_vl_text", "rope_parameters": rope}
    return _model("qwen2_5_vl", text, vision, tie_word_embeddings=tied)


def _qwen3(text: dict[str, Any], vision: dict[str, Any], tied: bool) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
    common = {
        "num_heads": 16, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
        "num_position_embeddings": 2304, "out_hidden_size": text["hidden_size"],
    }  # fmt: skip
    text = text | {"model_type": "qwen3_vl_text", "head_dim": 128, "rope_parameters": rope}
    return _model("qwen3_vl", text, vision | common, tie_word_embeddings=tied)


def _internvl(text: dict[str, Any]) -> dict[str, Any]:
    vision = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "attention_bias": True, "patch_size": [14, 14], "image_size": [448, 448],
    }  # fmt: skip
    text = text | {"model_type": "qwen2"}
    return _model("internvl", text, vision, downsample_ratio=0.5, image_seq_length=256, tie_word_embeddings=False)


def _model(kind: str, text: dict[str, Any], vision: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model_type": kind, "text_config": text, "vision_config": vision, **more}


_QWEN2_7B = (3584, 18944, 28, 28, 4)
_QWEN2_5_IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14,
    "temporal_patch_size": 2, "merge_size": 2,
}  # fmt: skip
_QWEN3_IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
}  # fmt: skip
_INTERNVL_IMAGES = {
    "image_processor_type": "GotOcr2ImageProcessorFast", "size": {"height": 448, "width": 448},
    "crop_to_patches": False,
}  # fmt: skip
_LLAVA_IMAGES = {
    "image_processor_type": "LlavaOnevisionImageProcessor", "size": {"height": 384, "width": 384},
    "image_grid_pinpoints": [[384 * rows, 384 * columns] for rows in range(1, 7) for columns in range(1, 7)],
}  # fmt: skip
_SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26,
    "num_attention_heads": 16, "patch_size": 14, "image_size": 384, "vision_use_head": False,
}  # fmt: skip

PUBLISHED: dict[str, PublishedModel] = {
    "Qwen/Qwen2.5-VL-3B-Instruct": PublishedModel(
        _qwen2_5(_text(2048, 11008, 36, 16, 2, 151936), tied=True), _QWEN2_5_IMAGES, 3_754_622_976
    ),
    "Qwen/Qwen2.5-VL-7B-Instruct": PublishedModel(
        _qwen2_5(_text(*_QWEN2_7B, 152064), tied=False), _QWEN2_5_IMAGES, 8_292_166_656
    ),
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": PublishedModel(
        _model(
            "llava_onevision",
            _text(*_QWEN2_7B, 152128, model_type="qwen2"),
            _SIGLIP,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
            tie_word_embeddings=False,
        ),
        _LLAVA_IMAGES,
        8_030_000_000,
        digits=3,
    ),
    "OpenGVLab/InternVL3-2B-hf": PublishedModel(
        _internvl(_text(1536, 8960, 28, 12, 2, 151674)), _INTERNVL_IMAGES, 2_090_000_000, digits=3
    ),
    "OpenGVLab/InternVL3-8B-hf": PublishedModel(
        _internvl(_text(*_QWEN2_7B, 151674)), _INTERNVL_IMAGES, 7_940_000_000, digits=3
    ),
    "Qwen/Qwen3-VL-4B-Instruct": PublishedModel(
        _qwen3(
            _text(2560, 9728, 36, 32, 8, 151936),
            {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]},
            tied=True,
        ),
        _QWEN3_IMAGES,
        4_437_815_808,
    ),
    "Qwen/Qwen3-VL-8B-Instruct": PublishedModel(
        _qwen3(
            _text(4096, 12288, 36, 32, 8, 151936),
            {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]},
            tied=False,
        ),
        _QWEN3_IMAGES,
        8_767_123_696,
    ),
}
