"""ProCap's text decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from idc.systems.procap.config import DecoderConfig
from idc.systems.procap.text_decoder import TextDecoder
from tests.systems.procap.test_losses import CAPTIONS, finetune_task
from tests.systems.procap.test_model import DECODER, differs, same


@torch.no_grad()
def test_the_decoder_does_not_look_ahead() -> None:
    captioner = finetune_task().captioner.eval()
    changed = CAPTIONS["ids"].clone()
    changed[:, 3] = 12
    one, other = (captioner(CAPTIONS["ends"], ids) for ids in (CAPTIONS["ids"], changed))
    assert same(one[:, :3], other[:, :3])
    assert differs(one[:, 3], other[:, 3])


@torch.no_grad()
@pytest.mark.parametrize("official", [False, True])
def test_the_decoder_written_out(official: bool) -> None:
    """Post-norm, no biases in attention, tied embeddings times sqrt(E), sinusoids; scores over sqrt(64) or sqrt(512)
    and the norm by the unbiased deviation where official."""
    torch.manual_seed(1)
    config = DecoderConfig(**{**DECODER, "scale_by_width": official, "official_norm": official})
    decoder = TextDecoder(config, 16, 20).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ids, memory_in = CAPTIONS["ids"], torch.randn(2, 24, 16)
    layer = decoder.layers[0]

    def norm(module: Any, x: Tensor) -> Tensor:
        if not official:
            return F.layer_norm(x, (16,), module.weight, module.bias)
        deviation = (x - x.mean(-1, keepdim=True)).pow(2).sum(-1, keepdim=True).div(15).sqrt()
        return module.weight * (x - x.mean(-1, keepdim=True)) / (deviation + 1e-6) + module.bias

    def attend(module: Any, x: Tensor, y: Tensor, causal: bool) -> Tensor:
        parts = []
        for head in range(2):
            rows = slice(8 * head, 8 * head + 8)
            q, k, v = x @ module.q.weight.T[:, rows], y @ module.k.weight.T[:, rows], y @ module.v.weight.T[:, rows]
            scores = q @ k.transpose(1, 2) / (16 if official else 8) ** 0.5
            if causal:
                scores = scores + torch.full(scores.shape[1:], float("-inf")).triu(1)
            parts.append(scores.softmax(-1) @ v)
        return torch.cat(parts, -1) @ module.out.weight.T

    memory = decoder.project(memory_in)
    x = 4.0 * decoder.words[ids]
    for position in range(4):
        for i in range(8):
            angle = position * 10_000 ** (-2 * i / 16)
            x[:, position, 2 * i] += torch.tensor(angle).sin()
            x[:, position, 2 * i + 1] += torch.tensor(angle).cos()
    x = norm(layer.norm_self, x + attend(layer.self_attention, x, x, causal=True))
    x = norm(layer.norm_cross, x + attend(layer.cross_attention, x, memory, causal=False))
    x = norm(layer.norm_feedforward, x + layer.narrow(layer.widen(x).relu()))
    expected = x @ decoder.words.T + decoder.word_bias
    torch.testing.assert_close(decoder(ids, memory_in), expected, rtol=1e-4, atol=1e-4)
