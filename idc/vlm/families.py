"""The families of vision-language models, one class each (:class:`idc.vlm.family.Family`).

Letters in shapes: N images, T tokens of an image, in the language model or in the tower; H and W pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from idc.vlm.config import FAMILIES
from idc.vlm.family import Family, Levels, join_levels, per_image


class QwenVL(Family):
    """Qwen2.5-VL: any aspect ratio, 2x2 patches are one token; the language model knows rows and columns (M-RoPE)."""

    name = "qwen2_5_vl"
    tower: ClassVar[tuple[str, ...]] = ("model.visual.patch_embed", "model.visual.blocks")
    projector: ClassVar[tuple[str, ...]] = ("model.visual.merger",)
    pixel_keys = ("pixel_values", "image_grid_thw")
    image_token = "<|image_pad|>"
    image_processor = "Qwen2VLImageProcessor"
    language_keys = ("image_grid_thw", "mm_token_type_ids")
    blocks = "model.visual.blocks"

    @property
    def inline(self) -> str:
        return "<|vision_start|><|image_pad|><|vision_end|>"

    def seen_size(self, size: Sequence[int]) -> tuple[int, int]:
        # Not exported by transformers: test_image_tokens_of_real_sizes.
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        least, most = (self.limits["size"][name] for name in ("shortest_edge", "longest_edge"))
        height, width = smart_resize(size[0], size[1], self.factor, min_pixels=least, max_pixels=most)
        return height, width

    @property
    def limits(self) -> dict[str, Any]:
        most, least = self.images.size["longest_edge"], self.images.size["shortest_edge"]
        if self.max_pixels is not None:
            most = max(least, min(most, self.max_pixels))
        return {"size": {"longest_edge": most, "shortest_edge": least}}

    def _image_sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        vision = self.config.vision_config
        return (self.images.patch_size, self.factor), (vision.patch_size, vision.patch_size * vision.spatial_merge_size)

    @property
    def factor(self) -> int:
        """Pixels of a token's side."""
        return int(self.images.patch_size * self.images.merge_size)

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        height, width = self.seen_size(size)
        return height // self.factor, width // self.factor

    def encode(self, model: Any, pixels: Mapping[str, Tensor]) -> Any:
        return model.model.get_image_features(
            pixels["pixel_values"].to(model.model.visual.dtype), pixels["image_grid_thw"], return_dict=True
        )

    def positions(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        if "image_grid_thw" not in batch:  # nor has the model three axes then
            return super().positions(model, batch)
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask", *self.language_keys)}
        return cast(Tensor, model.model.get_rope_index(**inputs)[0])

    @property
    def depth(self) -> int:
        return int(self.config.vision_config.depth)

    def run_tower(self, model: Any, pixels: Mapping[str, Tensor]) -> Any:
        visual = model.model.visual
        return visual(pixels["pixel_values"].to(visual.dtype), grid_thw=pixels["image_grid_thw"], return_dict=True)

    def tower_tokens(self, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        return per_image(hidden, counts)

    def patch_coordinates(self, pixels: Mapping[str, Tensor]) -> list[Tensor]:
        grids = pixels["image_grid_thw"]
        from transformers.vision_utils import get_vision_position_ids

        positions = get_vision_position_ids(grids, self.images.merge_size)
        if (order := self.window_order(grids)) is not None:
            positions = positions.unflatten(0, (-1, self.images.merge_size**2))[order].flatten(0, 1)
        return list(positions.split(grids.prod(-1).tolist()))

    def window_order(self, grids: Tensor) -> Tensor | None:
        """Which merged token is where in the tower, whose windows have their tokens together; None: all in place."""
        # Not exported by transformers: test_with_the_last_level_in_place_of_the_module_nothing_changes.
        from transformers.vision_utils import get_vision_window_index

        vision = self.config.vision_config
        order, _ = get_vision_window_index(
            grids, spatial_merge_size=vision.spatial_merge_size, window_size=vision.window_size,
            patch_size=vision.patch_size,
        )  # fmt: skip
        return cast(Tensor, order.to(grids.device))

    def project(self, model: Any, pixels: Mapping[str, Tensor], levels: Levels, features: Tensor) -> Any:
        merged = model.model.visual.merger(join_levels(features, levels.counts))
        if (order := self.window_order(pixels["image_grid_thw"])) is not None:
            merged = merged[torch.argsort(order)]
        return type(levels.tower)(pooler_output=torch.split(merged, self._merged_counts(levels)))

    def _merged_counts(self, levels: Levels) -> list[int]:
        return [count // self.images.merge_size**2 for count in levels.counts]


class Qwen3VL(QwenVL):
    """Qwen3-VL: as Qwen2.5-VL without windows; features of three more layers of its tower ("deepstack") are added
    inside the language model. What :meth:`project` is given replaces the last level alone: deepstack stays the
    tower's."""

    name = "qwen3_vl"
    tower = ("model.visual.patch_embed", "model.visual.blocks", "model.visual.pos_embed")
    projector = ("model.visual.merger", "model.visual.deepstack_merger_list")

    def window_order(self, grids: Tensor) -> None:
        return None

    def project(self, model: Any, pixels: Mapping[str, Tensor], levels: Levels, features: Tensor) -> Any:
        output = super().project(model, pixels, levels, features)
        sizes = self._merged_counts(levels)
        output.deepstack_features = [torch.split(layer, sizes) for layer in levels.tower.deepstack_features]
        return output

    def pick(self, encoded: Any, images: Sequence[int]) -> Any:
        picked = super().pick(encoded, images)
        picked.deepstack_features = [[layer[image] for image in images] for layer in encoded.deepstack_features]
        return picked


class LlavaOneVision(Family):
    """LLaVA-OneVision: an image is padded to a square and resized; a newline token ends it.

    The model cuts the one image of a sample with a single image into patches ("anyres"). Here no image is: a pair's are
    not either, and an image then has the same tokens in every sample. No setting of its image processor turns that off:
    it depends on how images are given (`images=[[before, after]]`).
    """

    name = "llava_onevision"
    tower = ("model.vision_tower",)
    projector = ("model.multi_modal_projector", "model.image_newline")
    unused = ("model.vision_tower.post_layernorm", "model.vision_tower.vision_model.post_layernorm")
    pixel_keys = ("pixel_values",)
    image_token = "<image>"
    image_processor = "LlavaOnevisionImageProcessor"
    blocks = "model.vision_tower.encoder.layers"
    in_vllm = (
        "vLLM cuts every image into tiles for LLaVA-OneVision (1,485 tokens and more for the 730 that the model sees "
        "here), and has no adapters for it, so that its captions would be other ones"
    )

    @property
    def side(self) -> int:
        size = self.images.size
        return int(size["height"] if size.get("height") else size["shortest_edge"])

    def seen_size(self, size: Sequence[int]) -> tuple[int, int]:
        return self.side, self.side

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        patches = self.config.vision_config.image_size // self.config.vision_config.patch_size
        return patches, patches

    def num_tokens(self, size: Sequence[int]) -> int:
        return super().num_tokens(size) + 1  # the newline

    def content(self, size: Sequence[int]) -> tuple[int, int, int, int]:
        longest = max(size)
        height, width = (max(1, round(self.side * length / longest)) for length in size)
        top, left = (round(self.side * ((longest - length) // 2) / longest) for length in size)
        return top, left, height, width

    def fit(self, image: np.ndarray) -> np.ndarray:
        height, width = image.shape[:2]
        if height != width:
            colour = tuple(int(255 * value) for value in self.images.image_mean)
            # As its preprocess does for the base image of a pair (test_pixels_are_those_of_the_image_processor).
            padded = self.images.pad_to_square(image=image.transpose(2, 0, 1), background_color=colour)
            image = np.ascontiguousarray(padded.transpose(1, 2, 0))
        return super().fit(image)

    def pixels(self, images: Sequence[np.ndarray]) -> dict[str, Tensor]:
        fitted = [self.fit(image) for image in images]
        # A sample's images in a list of their own; two of them, so that none is cut into patches.
        values = self.images([fitted + fitted[:1]], do_resize=False, return_tensors="pt")["pixel_values"]
        return {"pixel_values": values[: len(images), 0]}

    def encode(self, model: Any, pixels: Mapping[str, Tensor]) -> Any:
        values = pixels["pixel_values"].to(model.dtype)
        sizes = torch.full((len(values), 2), self.side, device=values.device)
        together = torch.tensor([max(2, len(values))])  # as of one sample: no image is cut into patches
        return model.model.get_image_features(values, sizes, batch_num_images=together, return_dict=True)

    def project(self, model: Any, pixels: Mapping[str, Tensor], levels: Levels, features: Tensor) -> Any:
        inner = model.model
        projected = inner.multi_modal_projector(features)
        tokens = [torch.cat((image, inner.image_newline[None].to(image))) for image in projected]
        return type(levels.tower)(pooler_output=tokens)


class InternVL(Family):
    """InternVL3: an image is one tile; 2x2 patches are one token, between a start and an end token."""

    name = "internvl"
    tower = ("model.vision_tower",)
    projector = ("model.multi_modal_projector",)
    pixel_keys = ("pixel_values",)
    image_token = "<IMG_CONTEXT>"
    image_processor = "GotOcr2ImageProcessor"
    blocks = "model.vision_tower.encoder.layer"

    def token_ids(self, size: Sequence[int]) -> list[int]:
        start, end = self.tokenizer.convert_tokens_to_ids(["<img>", "</img>"])
        return [start, *super().token_ids(size), end]

    def seen_size(self, size: Sequence[int]) -> tuple[int, int]:
        return int(self.images.size["height"]), int(self.images.size["width"])

    @property
    def limits(self) -> dict[str, Any]:
        # InternVLProcessor asks for tiles whatever the file says of crop_to_patches; the number is its own.
        return {"crop_to_patches": False, "min_patches": 1, "max_patches": 1}

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        vision, ratio = self.config.vision_config, self.config.downsample_ratio
        height, width = (
            int(side // patch * ratio) for side, patch in zip(vision.image_size, vision.patch_size, strict=True)
        )
        return height, width

    def pixels(self, images: Sequence[np.ndarray]) -> dict[str, Tensor]:
        fitted = [self.fit(image) for image in images]
        batch = self.images(fitted, do_resize=False, crop_to_patches=False, return_tensors="pt")
        return {"pixel_values": batch["pixel_values"]}

    def encode(self, model: Any, pixels: Mapping[str, Tensor]) -> Any:
        return model.model.get_image_features(pixel_values=pixels["pixel_values"], return_dict=True)

    def tower_tokens(self, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        return hidden[:, 1:]  # without the class token

    def project(self, model: Any, pixels: Mapping[str, Tensor], levels: Levels, features: Tensor) -> Any:
        inner = model.model
        if self.read_level == self.depth:  # behind the tower's last norm, which most towers lack
            features = inner.vision_tower.layernorm(features)
        side = math.isqrt(features.shape[1])  # images are square, as in get_image_features
        patches = features.unflatten(1, (side, side))
        # The steps of get_image_features after the tower (M3Diff's test_with_the_last_level_in_place_...).
        merged = inner.pixel_shuffle(patches, scale_factor=self.config.downsample_ratio).flatten(1, 2)
        return type(levels.tower)(pooler_output=inner.multi_modal_projector(merged))


_CLASSES: dict[str, type[Family]] = {family.name: family for family in (QwenVL, LlavaOneVision, InternVL, Qwen3VL)}
assert tuple(_CLASSES) == FAMILIES


def family_class(model_type: str, where: Path | str) -> type[Family]:
    """The class of a ``model_type``, or a ValueError."""
    if model_type not in _CLASSES:
        raise ValueError(
            f"{where} is a model of type {model_type!r}, which is none of {', '.join(FAMILIES)}; take a base model of "
            "one of these, or add a class to idc/vlm/families.py"
        )
    return _CLASSES[model_type]


_NAME = "flash_windows_at_once"


def attend_windows_at_once(model: Any) -> None:
    """Let the tower of a Qwen model compute attention with :func:`windows_at_once`."""
    AttentionInterface.register(_NAME, windows_at_once)
    model.config.vision_config._attn_implementation = _NAME


def windows_at_once(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    scaling: float,
    cu_seq_lens_q: Tensor,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention within each window, of which ``cu_seq_lens_q`` has the ends, from 0: (1, H, L, D) each to
    (1, L, H, D)."""
    starts, lengths = cu_seq_lens_q[:-1], cu_seq_lens_q.diff()
    parts = torch.stack([query[0], key[0], value[0]]).transpose(1, 2)  # (3, L, H, D)
    mixed = torch.empty_like(parts[0])
    for length in lengths.unique().tolist():
        at = (starts[lengths == length, None] + torch.arange(length, device=starts.device)).flatten()
        q, k, v = parts[:, at].unflatten(1, (-1, length)).transpose(2, 3)
        out = F.scaled_dot_product_attention(q, k, v, scale=scaling, dropout_p=dropout)
        mixed = mixed.index_copy(0, at, out.transpose(1, 2).flatten(0, 1))
    return mixed[None], None
