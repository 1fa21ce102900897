"""Parts of transformers that it does not export, each with what breaks if it changes and the test that says so."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor


def attention_of(model: Any) -> str:
    """The implementation of attention that a model's language model runs: sdpa, eager, flash_attention_2.

    Breaks: what masks may be given (tests/vlm/test_captioner.py,
    test_answers_that_share_a_prompt_have_the_log_probabilities_of_answers_alone).
    """
    name: str = model.config.get_text_config()._attn_implementation
    return name


def resize_as_processor(processor: Any, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """An image uint8 (H, W, 3) resized to (height, width) by the resampling of an image processor (PIL backend).

    Breaks: other pixels than transformers' own (tests/vlm/test_families.py,
    test_pixels_are_those_of_the_image_processor).
    """
    from transformers.image_processing_backends import PilBackend
    from transformers.image_utils import SizeDict

    wanted = SizeDict(height=size[0], width=size[1])
    resized = PilBackend.resize(processor, image.transpose(2, 0, 1), wanted, processor.resample)
    return np.ascontiguousarray(resized.transpose(1, 2, 0))


def qwen_size(size: tuple[int, int], factor: int, least: int, most: int) -> tuple[int, int]:
    """Height and width at which Qwen's image processor resizes an image: multiples of ``factor``, between ``least`` and
    ``most`` pixels.

    Breaks: numbers of tokens (tests/vlm/test_real_sizes.py, test_image_tokens_of_real_sizes).
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    height, width = smart_resize(*size, factor, min_pixels=least, max_pixels=most)
    return height, width


def tower_positions(grids: Tensor, merge: int) -> Tensor:
    """Row and column of each patch in the order of Qwen's tower without windows.

    Breaks: M3Diff's positions and maps (tests/systems/m3diff/test_model.py,
    test_tokens_of_the_tower_lie_where_their_places_say).
    """
    from transformers.vision_utils import get_vision_position_ids

    positions: Tensor = get_vision_position_ids(grids, merge)
    return positions


def tower_windows(grids: Tensor, vision: Any) -> Tensor:
    """Which merged token is where in the tower of Qwen2.5-VL, whose windows have their tokens together.

    Breaks: the features behind M3Diff's module (tests/systems/m3diff/test_model.py,
    test_with_the_last_level_in_place_of_the_module_nothing_changes).
    """
    from transformers.vision_utils import get_vision_window_index

    order: Tensor = get_vision_window_index(
        grids, spatial_merge_size=vision.spatial_merge_size, window_size=vision.window_size,
        patch_size=vision.patch_size,
    )[0]  # fmt: skip
    return order.to(grids.device)
