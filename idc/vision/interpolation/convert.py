"""Weights of VFIformer: artifacts of our training, or the official checkpoints (``net_220.pth``), plain state dicts of
the full or of the small variant."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from idc.data.remote_copies import local_folder
from idc.training.foreign import find_state, layout_faults, read_checkpoint, refuse_faults
from idc.vision.interpolation.config import VFIformerConfig
from idc.vision.interpolation.model import VFIformer
from idc.vision.interpolation.window_transformer import relative_positions, shift_masks
from idc.vision.saved_network import network_fingerprint


def load_vfiformer(path: Path | str) -> VFIformer:
    """Load an artifact (a folder) or an official checkpoint (a file), for inference.

    Raises:
        ValueError: a file is missing or damaged, or does not fit the network in every tensor.
    """
    path = local_folder(path)
    return load_official(path).eval().requires_grad_(False) if path.is_file() else VFIformer.load(path)


def fingerprint_of_weights(path: Path | str) -> str:
    """A short hash of an artifact's config and weights, or of a checkpoint file.

    Raises:
        ValueError: they do not load.
    """
    load_vfiformer(path)
    return network_fingerprint(path)


def load_official(path: Path | str) -> VFIformer:
    """Load a checkpoint of the official code (``net_220.pth``); its tensors' shapes decide between the two variants.

    Every tensor is used, or is a constant table that is compared with ours (buffers, at the crop size of its masks).

    Raises:
        ValueError: the file cannot be read, or a tensor is missing, unknown or of another shape.
    """
    state = find_state(read_checkpoint(path), None, path)
    config, crop_size = _official_shape(state, path)
    with torch.device("meta"):
        layout = VFIformer(config, crop_size)
    expected = layout.state_dict()
    faults = layout_faults(state, expected, "VFIformer")
    same, wide = shift_masks(crop_size, crop_size, config.window)
    tables = {"attn_mask": same, "attn_mask_x": same, "attn_mask_y": wide}
    tables["relative_position_index"] = relative_positions(config.window)
    constants = {name: tables[name.rpartition(".")[2]] for name, _ in layout.named_buffers()}
    faults += [
        f"has other values in the constant table {name}"
        for name, value in constants.items()
        if name in state and state[name].shape == value.shape and not torch.equal(state[name].to(value.dtype), value)
    ]
    refuse_faults(faults, path, "VFIformer")
    model = VFIformer(config)
    model.load_state_dict({name: state[name] for name in expected if name not in constants})
    return model


def _official_shape(state: dict[str, Tensor], path: Path | str) -> tuple[VFIformerConfig, int]:
    """The variant, and the crop size of its attention masks."""
    first = "transformer.layers0.0.residual_group.blocks"
    norm, mask = state.get(f"{first}.0.norm1.weight"), state.get(f"{first}.1.attn_mask")
    if norm is None or mask is None or mask.ndim != 3:
        raise ValueError(f"{path} is not a checkpoint of VFIformer: it has no {first}.0.norm1.weight and .1.attn_mask")
    refine = any(name.startswith("refinenet.rf_block") for name in state)
    window = math.isqrt(mask.shape[1])
    config = VFIformerConfig(refine=refine, width=len(norm), window=window)
    return config, math.isqrt(len(mask)) * window
