"""Weights of VFIformer: official checkpoints (``net_220.pth``), plain state dicts of the full or the small variant."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from idc.data.remote_copies import local_folder
from idc.training.foreign import Ledger, find_state, read_checkpoint
from idc.vision.interpolation.config import VFIformerConfig
from idc.vision.interpolation.model import VFIformer
from idc.vision.interpolation.window_transformer import relative_positions, shift_masks


def load_vfiformer(path: Path | str) -> VFIformer:
    """Load a checkpoint of the official code, for inference; the shapes of its tensors are those of the network.

    Every tensor is used, or is a constant table that is compared with ours (attention masks at the crop size of the
    official training, relative positions); the network computes those for the size at hand.

    Raises:
        ValueError: the file cannot be read, or a tensor is missing, unknown or of another shape.
    """
    path = local_folder(path)
    ledger = Ledger(find_state(read_checkpoint(path), None, path), str(path))
    config, crop_size = _shape(ledger)
    model = VFIformer(config)
    model.load_state_dict({name: ledger.take(name, ours.shape) for name, ours in model.state_dict().items()})
    same, wide = shift_masks(crop_size, crop_size, config.window)
    tables = {"attn_mask": same, "attn_mask_x": same, "attn_mask_y": wide}
    tables["relative_position_index"] = relative_positions(config.window)
    for name in ledger.state:
        if (table := tables.get(name.rpartition(".")[2])) is not None and not torch.equal(ledger.take(name), table):
            raise ValueError(f"{path} has other values in the constant table {name} than VFIformer")
    ledger.close()
    return model.eval().requires_grad_(False)


def _shape(ledger: Ledger) -> tuple[VFIformerConfig, int]:
    """The shape that the tensors have, and the crop size of the attention masks."""
    groups = "transformer.layers{}.{}.residual_group.blocks"
    first = groups.format(0, 0)
    masks, positions, _ = ledger.shape(f"{groups.format(0, 1)}.1.attn_mask_x")
    hidden, width = ledger.shape(f"{first}.0.mlp.fc1.weight")
    config = VFIformerConfig(
        flow_channels=tuple(ledger.shape(f"flownet.block{block}.conv1.weight")[0] for block in range(3)),
        context_channels=ledger.shape("fuse_block.0.weight")[0] // 2,
        refine=any(name.startswith("refinenet.rf_block") for name in ledger.state),
        width=width,
        heads=ledger.shape(f"{first}.0.attn.relative_position_bias_table")[1],
        window=math.isqrt(positions),
        depths=tuple(
            (
                ledger.count(groups.format(level, 0) + ".{}.norm1.weight"),
                ledger.count(groups.format(level, 1) + ".{}.norm1.weight"),
            )
            for level in range(4)
        ),
        hidden=hidden // width,
    )
    return config, math.isqrt(masks) * config.window
