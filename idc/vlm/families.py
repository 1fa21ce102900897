"""Families of vision-language models: what differs between them, one class each.

Everything else of the stack speaks to a model through these classes. A model of a family is the class of transformers,
untouched. Images become features in :meth:`Family.encode` and enter ``forward`` and ``generate`` as
``mm_encoder_outputs``, so that one vision pass serves several captions of a pair, and a system may put a module between
tower and language model.

Letters in shapes: N images, T tokens of an image in the language model, D its width, H and W pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from idc.vlm.config import FAMILIES


class Family:
    """A family of models. Subclasses say where its parts are and how images become tokens.

    Args:
        config: the model's transformers config.
        tokenizer: its tokenizer.
        images: its image processor of transformers (PIL backend).
        max_pixels: of :class:`idc.vlm.config.BaseConfig`.

    Attributes:
        tower, projector: prefixes of parameter names of the vision tower and of the module between it and the language
            model. What is neither belongs to the language model.
        unused: prefixes of parameters that no loss reaches.
        pixel_keys: tensors of :meth:`pixels`; their first dimension runs over all images of a batch.
        language_keys: further tensors of a batch that the language model needs.
    """

    name: ClassVar[str]
    tower: ClassVar[tuple[str, ...]]
    projector: ClassVar[tuple[str, ...]]
    unused: ClassVar[tuple[str, ...]] = ()
    pixel_keys: ClassVar[tuple[str, ...]]
    language_keys: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: Any, tokenizer: Any, images: Any, max_pixels: int | None = None):
        self.config, self.tokenizer, self.images, self.max_pixels = config, tokenizer, images, max_pixels

    @property
    def image_token(self) -> str:
        """The token that is repeated for every feature of an image; the chat template writes it once."""
        raise NotImplementedError

    @property
    def inline(self) -> str:
        """How an image is written inside a sentence."""
        return self.image_token

    def token_ids(self, size: Sequence[int]) -> list[int]:
        """The ids of an image of size (height, width), in the place of the one image token in the text."""
        return [self.image_id] * self.num_tokens(size)

    @property
    def image_id(self) -> int:
        found: int = self.tokenizer.convert_tokens_to_ids(self.image_token)
        return found

    def num_tokens(self, size: Sequence[int]) -> int:
        """T of an image of size (height, width)."""
        raise NotImplementedError

    def seen_size(self, size: Sequence[int]) -> tuple[int, int]:
        """Height and width at which the model sees an image of size (height, width)."""
        raise NotImplementedError

    def fit(self, image: np.ndarray) -> np.ndarray:
        """An image uint8 (H, W, 3) as the model sees it, uint8 of :meth:`seen_size`: the one place where images are
        resized. An image of that size is not changed."""
        size = self.seen_size(image.shape[:2])
        if size == image.shape[:2]:
            return image
        from transformers.image_processing_backends import PilBackend
        from transformers.image_utils import SizeDict

        wanted = SizeDict(height=size[0], width=size[1])
        resized = PilBackend.resize(self.images, image.transpose(2, 0, 1), wanted, self.images.resample)
        return np.ascontiguousarray(resized.transpose(1, 2, 0))

    def pixels(self, images: Sequence[np.ndarray]) -> dict[str, Tensor]:
        """The tensors :attr:`pixel_keys` of images uint8 (H, W, 3) of any sizes."""
        made = self.images([self.fit(image) for image in images], do_resize=False, return_tensors="pt")
        return {key: made[key] for key in self.pixel_keys}

    def encode(self, model: Any, pixels: Mapping[str, Tensor]) -> Any:
        """Features of images: the output of the tower, with the projected tokens of each image in ``pooler_output``.

        Args:
            model: the transformers model (of a PEFT model, its base model).
        """
        raise NotImplementedError

    def tokens_of(self, encoded: Any) -> list[Tensor]:
        """Per image, its projected tokens (T, D)."""
        return list(encoded.pooler_output)

    def pick(self, encoded: Any, images: Sequence[int]) -> Any:
        """Features of some of the encoded images, which may repeat, as a new output; ``encoded`` does not change,
        though ``generate`` changes what it is given."""
        features = encoded.pooler_output
        if isinstance(features, Tensor):
            features = features[torch.tensor(list(images), device=features.device)]
        else:
            features = [features[image] for image in images]
        return type(encoded)(pooler_output=features)

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        """Rows and columns of an image's tokens; tokens after the last place of the grid have no place."""
        raise NotImplementedError

    def content(self, size: Sequence[int]) -> tuple[int, int, int, int]:
        """Where an image is in what the model sees: top, left, height and width in pixels; the rest is padding."""
        return (0, 0, *self.seen_size(size))

    def is_tower(self, name: str) -> bool:
        return name.startswith(self.tower)

    def is_projector(self, name: str) -> bool:
        return name.startswith(self.projector)

    def is_unused(self, name: str) -> bool:
        return name.startswith(self.unused)


class QwenVL(Family):
    """Qwen2.5-VL: any aspect ratio, 2x2 patches are one token; the language model knows rows and columns (M-RoPE)."""

    name = "qwen2_5_vl"
    tower: ClassVar[tuple[str, ...]] = ("model.visual.patch_embed", "model.visual.blocks")
    projector: ClassVar[tuple[str, ...]] = ("model.visual.merger",)
    pixel_keys = ("pixel_values", "image_grid_thw")
    language_keys = ("image_grid_thw", "mm_token_type_ids")

    @property
    def image_token(self) -> str:
        return "<|image_pad|>"

    @property
    def inline(self) -> str:
        return "<|vision_start|><|image_pad|><|vision_end|>"

    def seen_size(self, size: Sequence[int]) -> tuple[int, int]:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        limits = self.images.size
        most, least = limits["longest_edge"], limits["shortest_edge"]
        if self.max_pixels is not None:
            most = max(least, min(most, self.max_pixels))
        height, width = smart_resize(size[0], size[1], self.factor, min_pixels=least, max_pixels=most)
        return height, width

    @property
    def factor(self) -> int:
        """Pixels of a token's side."""
        return int(self.images.patch_size * self.images.merge_size)

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        height, width = self.seen_size(size)
        return height // self.factor, width // self.factor

    def num_tokens(self, size: Sequence[int]) -> int:
        rows, columns = self.grid(size)
        return rows * columns

    def encode(self, model: Any, pixels: Mapping[str, Tensor]) -> Any:
        return model.model.get_image_features(
            pixels["pixel_values"].to(model.model.visual.dtype), pixels["image_grid_thw"], return_dict=True
        )


class Qwen3VL(QwenVL):
    """Qwen3-VL: as Qwen2.5-VL; features of three more layers of its tower are added inside the language model."""

    name = "qwen3_vl"
    tower = ("model.visual.patch_embed", "model.visual.blocks", "model.visual.pos_embed")
    projector = ("model.visual.merger", "model.visual.deepstack_merger_list")

    def pick(self, encoded: Any, images: Sequence[int]) -> Any:
        found = super().pick(encoded, images)
        found.deepstack_features = [[layer[image] for image in images] for layer in encoded.deepstack_features]
        return found


class LlavaOneVision(Family):
    """LLaVA-OneVision: an image is padded to a square and resized; a newline token ends it.

    The model cuts the one image of a sample with a single image into patches ("anyres"). Here no image is: a pair's are
    not either, and an image then has the same tokens in every sample.
    """

    name = "llava_onevision"
    tower = ("model.vision_tower",)
    projector = ("model.multi_modal_projector", "model.image_newline")
    unused = ("model.vision_tower.post_layernorm", "model.vision_tower.vision_model.post_layernorm")
    pixel_keys = ("pixel_values",)

    @property
    def image_token(self) -> str:
        return "<image>"

    @property
    def side(self) -> int:
        size = self.images.size
        return int(size["height"] if size.get("height") else size["shortest_edge"])

    def seen_size(self, size: Sequence[int]) -> tuple[int, int]:
        return self.side, self.side

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        places = self.config.vision_config.image_size // self.config.vision_config.patch_size
        return places, places

    def num_tokens(self, size: Sequence[int]) -> int:
        rows, columns = self.grid(size)
        return rows * columns + 1

    def content(self, size: Sequence[int]) -> tuple[int, int, int, int]:
        longest = max(size)
        height, width = (max(1, round(self.side * length / longest)) for length in size)
        top, left = (round(self.side * ((longest - length) // 2) / longest) for length in size)
        return top, left, height, width

    def fit(self, image: np.ndarray) -> np.ndarray:
        height, width = image.shape[:2]
        if height != width:
            colour = tuple(int(255 * value) for value in self.images.image_mean)
            padded = self.images.pad_to_square(image=image.transpose(2, 0, 1), background_color=colour)
            image = np.ascontiguousarray(padded.transpose(1, 2, 0))
        return super().fit(image)

    def pixels(self, images: Sequence[np.ndarray]) -> dict[str, Tensor]:
        fitted = [self.fit(image) for image in images]
        # A sample's images in a list of their own; two of them, so that none is cut into patches.
        made = self.images([fitted + fitted[:1]], do_resize=False, return_tensors="pt")["pixel_values"]
        return {"pixel_values": made[: len(images), 0]}

    def encode(self, model: Any, pixels: Mapping[str, Tensor]) -> Any:
        values = pixels["pixel_values"].to(model.dtype)
        sizes = torch.full((len(values), 2), self.side, device=values.device)
        together = torch.tensor([max(2, len(values))])  # as of one sample: no image is cut into patches
        return model.model.get_image_features(values, sizes, batch_num_images=together, return_dict=True)


class InternVL(Family):
    """InternVL3: an image is one tile; 2x2 patches are one token, between a start and an end token."""

    name = "internvl"
    tower = ("model.vision_tower",)
    projector = ("model.multi_modal_projector",)
    pixel_keys = ("pixel_values",)

    @property
    def image_token(self) -> str:
        return "<IMG_CONTEXT>"

    def token_ids(self, size: Sequence[int]) -> list[int]:
        start, end = self.tokenizer.convert_tokens_to_ids(["<img>", "</img>"])
        return [start, *super().token_ids(size), end]

    def seen_size(self, size: Sequence[int]) -> tuple[int, int]:
        return int(self.images.size["height"]), int(self.images.size["width"])

    def grid(self, size: Sequence[int]) -> tuple[int, int]:
        vision, ratio = self.config.vision_config, self.config.downsample_ratio
        height, width = (
            int(side // patch * ratio) for side, patch in zip(vision.image_size, vision.patch_size, strict=True)
        )
        return height, width

    def num_tokens(self, size: Sequence[int]) -> int:
        rows, columns = self.grid(size)
        return rows * columns

    def pixels(self, images: Sequence[np.ndarray]) -> dict[str, Tensor]:
        fitted = [self.fit(image) for image in images]
        made = self.images(fitted, do_resize=False, crop_to_patches=False, return_tensors="pt")
        return {"pixel_values": made["pixel_values"]}

    def encode(self, model: Any, pixels: Mapping[str, Tensor]) -> Any:
        return model.model.get_image_features(pixel_values=pixels["pixel_values"], return_dict=True)


_CLASSES: dict[str, type[Family]] = {one.name: one for one in (QwenVL, LlavaOneVision, InternVL, Qwen3VL)}
assert tuple(_CLASSES) == FAMILIES


def family_class(model_type: str, where: Path | str) -> type[Family]:
    """The class of a ``model_type``.

    Raises:
        ValueError: there is none.
    """
    if model_type not in _CLASSES:
        raise ValueError(
            f"{where} is a model of type {model_type!r}, which is none of {', '.join(FAMILIES)}; take a base model of "
            "one of these, or add a class to idc/vlm/families.py"
        )
    return _CLASSES[model_type]
