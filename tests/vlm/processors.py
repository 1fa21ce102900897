"""Transformers' own processors of the families, which ours are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idc.vlm.family import Family


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
