"""A family of vision-language models: what differs between families, as the base class of all.

Everything else of the stack speaks to a model through the classes of :mod:`idc.vlm.families`. A model of a family is
the class of transformers, untouched. Images become features in :meth:`Family.encode` and enter ``forward`` and
``generate`` as ``mm_encoder_outputs``, so that one vision pass serves several captions of a pair. A system may put a
module between tower and projector: :meth:`Family.levels` and :meth:`Family.project` are the two halves of ``encode``.

Letters in shapes: N images, T tokens of an image in the language model, D its width, H and W pixels; in the tower, T
tokens of the image with the most, d its width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Levels:
    """Features of images at several layers of the tower, in the tower's own order of tokens: the input of a module
    between tower and projector. A level is an index of transformers' ``hidden_states``: 0 is the input of the first
    layer, n the output of layer n.

    Attributes:
        features: of each layer (N, T, d); 0 where an image has no token.
        counts: tokens of each image.
        patch_coordinates: row and column of each token in the image's patches (N, T, 2); 0 where an image has no token.
        tower: the output of the tower, for what is none of the levels' business.
    """

    features: Sequence[Tensor]
    counts: Sequence[int]
    patch_coordinates: Tensor
    tower: Any

    @property
    def mask(self) -> Tensor | None:
        """True for tokens (N, T); None if every image has T of them."""
        if min(self.counts) == max(self.counts):
            return None
        counts = torch.tensor(self.counts, device=self.patch_coordinates.device)
        return torch.arange(self.patch_coordinates.shape[1], device=self.patch_coordinates.device) < counts[:, None]


def per_image(rows: Tensor, counts: Sequence[int]) -> Tensor:
    """(N, T, ...), padded with 0, of the tokens of N images one after another."""
    return pad_sequence(list(rows.split(list(counts))), batch_first=True)


def join_levels(padded: Tensor, counts: Sequence[int]) -> Tensor:
    """The tokens of N images one after another: the inverse of :func:`per_image`."""
    return torch.cat([tokens[:count] for tokens, count in zip(padded, counts, strict=True)])


@contextmanager
def recorded(blocks: nn.ModuleList, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Record levels while the tower runs: level -> its features, as the layers return them.

    The hooks are added for one call, so they run after those that DeepSpeed has put on the layers: under ZeRO-3 the
    recorded tensors are then those behind its own mark, through which a backward pass gathers the layer's parameters.
    The hidden states that transformers itself records may lie before that mark
    (tests/invariants/test_vlm_equivalence.py, the cases of ZeRO-3).
    """
    features: dict[int, Tensor] = {}

    def keep(level: int, module: nn.Module, inputs: Any, outputs: Any) -> None:
        features[level] = outputs[0] if isinstance(outputs, tuple) else outputs

    def keep_input(module: nn.Module, inputs: Any) -> None:
        features[0] = inputs[0]

    handles = [blocks[level - 1].register_forward_hook(partial(keep, level)) for level in layers if level]
    if 0 in layers:
        handles.append(blocks[0].register_forward_pre_hook(keep_input))
    try:
        yield features
    finally:
        for handle in handles:
            handle.remove()


class Family:
    """A family of models. Subclasses say where its parts are and how images become tokens.

    Attributes:
        images: the image processor of transformers (PIL backend).
        tower, projector: prefixes of parameter names of the vision tower and of the module between it and the language
            model. What is neither belongs to the language model.
        unused: prefixes of parameters that no loss reaches.
        pixel_keys: tensors of :meth:`pixels`; their first dimension runs over all images of a batch.
        language_keys: further tensors of a batch that the language model needs.
        image_token: the token that is repeated for every feature of an image; the chat template writes it once.
        image_processor: class of transformers, without the ending of a backend.
        in_vllm: how a model differs in vLLM from what it is here; None if it does not.
        blocks: name of the list of the tower's layers.
    """

    name: ClassVar[str]
    tower: ClassVar[tuple[str, ...]]
    projector: ClassVar[tuple[str, ...]]
    unused: ClassVar[tuple[str, ...]] = ()
    pixel_keys: ClassVar[tuple[str, ...]]
    language_keys: ClassVar[tuple[str, ...]] = ()
    image_token: ClassVar[str]
    image_processor: ClassVar[str]
    in_vllm: ClassVar[str | None] = None
    blocks: ClassVar[str]

    def __init__(self, config: Any, tokenizer: Any, images: Any, max_pixels: int | None = None):
        self.config, self.tokenizer, self.images, self.max_pixels = config, tokenizer, images, max_pixels

    def check(self) -> None:
        """Raise ValueError where tokenizer or image processor are those of another model."""
        wanted, kind = self.config.image_token_id, type(self.images).__name__
        if self.image_id != wanted:
            raise ValueError(f"the tokenizer has {self.image_token} as {self.image_id}, the model {wanted}")
        if kind.removesuffix("Pil") != self.image_processor:
            raise ValueError(f"the image processor is a {kind}, the model's a {self.image_processor}")
        if (sizes := self._image_sizes())[0] != sizes[1]:
            raise ValueError(f"the image processor is set to {sizes[0]} pixels, the model to {sizes[1]}")

    def _image_sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Sizes in pixels that the image processor and the model must have in common."""
        size = self.config.vision_config.image_size
        return self.seen_size((1, 1)), tuple(size) if isinstance(size, Sequence) else (size, size)

    @property
    def inline(self) -> str:
        """How an image is written inside a sentence."""
        return self.image_token

    def token_ids(self, size: Sequence[int]) -> list[int]:
        """The ids of an image of size (height, width), in the place of the one image token in the text."""
        return [self.image_id] * self.num_tokens(size)

    @property
    def image_id(self) -> int:
        token_id: int = self.tokenizer.convert_tokens_to_ids(self.image_token)
        return token_id

    def num_tokens(self, size: Sequence[int]) -> int:
        """T of an image of size (height, width)."""
        rows, columns = self.grid(size)
        return rows * columns

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

        # Not exported by transformers: test_pixels_are_those_of_the_image_processor.
        wanted, processor = SizeDict(height=size[0], width=size[1]), self.images
        resized = PilBackend.resize(processor, image.transpose(2, 0, 1), wanted, processor.resample)
        return np.ascontiguousarray(resized.transpose(1, 2, 0))

    @property
    def limits(self) -> dict[str, Any]:
        """Settings with which the image processor of transformers resizes as :meth:`fit` does, for its file."""
        return {}

    def pixels(self, images: Sequence[np.ndarray]) -> dict[str, Tensor]:
        """The tensors :attr:`pixel_keys` of images uint8 (H, W, 3) of any sizes."""
        tensors = self.images([self.fit(image) for image in images], do_resize=False, return_tensors="pt")
        return {key: tensors[key] for key in self.pixel_keys}

    def encode(self, model: Any, pixels: Mapping[str, Tensor]) -> Any:
        """Features of images: the output of the tower, with the projected tokens of each image in ``pooler_output``.
        ``model``: the transformers model (of a PEFT model, its base model)."""
        raise NotImplementedError

    def positions(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        """Positions of the tokens of a batch padded on the right, (B, L) or (axes, B, L), as the model gives them.
        ``batch``: ``input_ids``, ``attention_mask`` and the tensors that the language model reads."""
        count = batch["input_ids"].shape[1]
        return torch.arange(count, device=batch["input_ids"].device).expand(len(batch["input_ids"]), count)

    @property
    def depth(self) -> int:
        """Number of layers of the tower."""
        return int(self.config.vision_config.num_hidden_layers)

    @property
    def read_level(self) -> int:
        """The level that the projector reads. ValueError: it reads several."""
        layer = getattr(self.config, "vision_feature_layer", -1)
        if not isinstance(layer, int):
            raise ValueError(f"the base model's projector reads the levels {layer} together; take one that reads one")
        return layer if layer >= 0 else self.depth + 1 + layer

    @property
    def tower_width(self) -> int:
        return int(self.config.vision_config.hidden_size)

    def run_tower(self, model: Any, pixels: Mapping[str, Tensor]) -> Any:
        """The output of the tower alone."""
        return model.model.vision_tower(pixels["pixel_values"].to(model.dtype), return_dict=True)

    def patch_coordinates(self, pixels: Mapping[str, Tensor]) -> list[Tensor]:
        """Per image, row and column of each token of the tower (T, 2), in its order of tokens."""
        vision = self.config.vision_config
        sides = [
            side if isinstance(side, Sequence) else (side, side) for side in (vision.image_size, vision.patch_size)
        ]
        rows, columns = (length // patch for length, patch in zip(*sides, strict=True))
        device = pixels["pixel_values"].device
        positions = torch.cartesian_prod(torch.arange(rows, device=device), torch.arange(columns, device=device))
        return [positions] * len(pixels["pixel_values"])

    def tower_tokens(self, hidden: Tensor, counts: Sequence[int]) -> Tensor:
        """Features of a level per image (N, T, d), without tokens that are no part of the image."""
        return hidden

    def levels(self, model: Any, pixels: Mapping[str, Tensor], layers: Sequence[int]) -> Levels:
        """Features of images at several levels (:class:`Levels`), in ascending order."""
        with recorded(model.get_submodule(self.blocks), layers) as hidden:
            output = self.run_tower(model, pixels)
        positions = self.patch_coordinates(pixels)
        counts = [len(rows) for rows in positions]
        features = [self.tower_tokens(hidden[level], counts) for level in layers]
        return Levels(features, counts, per_image(torch.cat(positions), counts), output)

    def project(self, model: Any, pixels: Mapping[str, Tensor], levels: Levels, features: Tensor) -> Any:
        """The rest of :meth:`encode`, which it equals exactly for the features of :attr:`read_level`; ``features`` (N,
        T, d) is what the projector reads in place of that level."""
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
        """Rows and columns of an image's tokens; tokens after the last position of the grid have none."""
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
