"""Tiny random models of transformers, saved to disk: what a hub id stands for in tests."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch

from idc.vision.pair_encoder.config import PairEncoderConfig


def save_tiny_clip(folder: Path, shape: PairEncoderConfig, hidden_act: str = "quick_gelu") -> Any:
    """A CLIP of this shape with a tokenizer of single letters and some words; the model, in eval mode."""
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    letters = [*string.ascii_lowercase]
    words = ("the", "red", "cube", "blue", "is", "a", "and")
    merges, vocabulary = [], [*letters, *(letter + "</w>" for letter in letters)]
    for word in words:
        parts = [*word[:-1], word[-1] + "</w>"]
        while len(parts) > 1:
            merge = (parts[0], parts[1])
            if merge not in merges:
                merges.append(merge)
                vocabulary.append("".join(merge))
            parts = ["".join(merge), *parts[2:]]
    vocabulary = [*dict.fromkeys(vocabulary), "<|startoftext|>", "<|endoftext|>"]
    ids = {word: n for n, word in enumerate(vocabulary)}
    CLIPTokenizer(vocab=ids, merges=merges).save_pretrained(folder)
    layers = shape.separate_layers + shape.joint_layers
    config = CLIPConfig(
        text_config={
            "vocab_size": len(ids), "hidden_size": shape.text_width, "intermediate_size": 4 * shape.text_width,
            "num_hidden_layers": shape.text_layers, "num_attention_heads": shape.text_heads,
            "max_position_embeddings": shape.text_positions, "hidden_act": hidden_act,
            "bos_token_id": ids["<|startoftext|>"], "eos_token_id": ids["<|endoftext|>"],
        },
        vision_config={
            "hidden_size": shape.width, "intermediate_size": 4 * shape.width, "num_hidden_layers": layers,
            "num_attention_heads": shape.heads, "image_size": shape.image_size, "patch_size": shape.patch_size,
            "hidden_act": hidden_act,
        },
        projection_dim=shape.embedding,
    )  # fmt: skip
    torch.manual_seed(3)
    model = CLIPModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def save_tiny_dinov2(folder: Path) -> Any:
    """A DINOv2 of one block; the model, in eval mode."""
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
    torch.manual_seed(4)
    model = Dinov2Model(config).eval()
    model.save_pretrained(folder)
    return model
