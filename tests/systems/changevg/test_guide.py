"""The guide's parts: the paper's equations against a second implementation, decoding, sizes, the image encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import SegformerConfig, SegformerModel

from idc.config import load
from idc.systems.changevg.config import GuideConfig
from idc.systems.changevg.guide import GuideNet
from tests.systems.changevg import naive
from tests.systems.changevg.tiny import MODEL, SIDE

WORDS = 12


def net_of(**settings: Any) -> GuideNet:
    """A guide of random weights and statistics."""
    torch.manual_seed(0)
    net = GuideNet(load(GuideConfig, None, {**MODEL, **settings}), WORDS)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point():
                tensor.add_(0.1 * torch.randn(tensor.shape))
    return net.eval()


def images(count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(0, 256, (count, 2, SIDE, SIDE, 3), dtype=torch.uint8, generator=generator)


def both(net: GuideNet, pairs: Tensor) -> list[list[Tensor]]:
    """The levels of the images before, and of those after."""
    pixels = (pairs.permute(0, 1, 4, 2, 3).float() - net.mean) / net.deviation
    levels = net._levels(pixels.flatten(0, 1))
    return [[level[side::2] for level in levels] for side in range(2)]


@torch.no_grad()
def test_the_papers_equations() -> None:
    net, pairs = net_of(map="paper", summary="paper"), images()
    guided, state = net(pairs), net.state_dict()
    befores, afters = both(net, pairs)
    for pair in range(2):
        levels = [
            naive.fused(state, f"map.fusions.{level}", befores[level][pair], afters[level][pair]) for level in range(4)
        ]
        refined = levels[3].unsqueeze(0)
        for layer in net.map.refine:  # type: ignore[union-attr]
            refined = layer(refined, refined)
        kinds = naive.mask_logits(state, levels, refined[0])
        assert kinds.shape == (2, SIDE, SIDE)
        assert torch.allclose(guided.classes[pair, 1:], kinds, atol=1e-4)
        assert not guided.classes[pair, 0].any()
        chosen = guided.classes[pair].argmax(dim=0)
        assert torch.equal(chosen == 0, (kinds.sigmoid() <= 0.5).all(dim=0)), "background where no sigmoid is above 1/2"
        last = [maps[3][pair : pair + 1] for maps in (befores, afters)]
        first, second = (part[0] for part in net.exchange(*last))
        assert torch.allclose(guided.memory[pair], naive.transformed(state, first, second), atol=1e-4)


@torch.no_grad()
def test_a_refining_block_is_self_attention() -> None:
    """With an input alone there is no difference to attend to: keys and values are of the map itself."""
    block = net_of(map="paper").map.refine[0]  # type: ignore[union-attr,index]
    x = torch.randn(1, 24, 2, 2)
    queries, keys = (part(x).flatten(2)[0].T for part in (block.query_shapes, block.key_shapes))
    query, key, value = block.query(queries), block.key(keys), block.value(keys)
    width = 24 // block.heads
    attended = torch.cat(
        [
            (query[:, part] @ key[:, part].T / width**0.5).softmax(1) @ value[:, part]
            for part in (slice(head * width, (head + 1) * width) for head in range(block.heads))
        ],
        dim=1,
    )
    normed = block.norm_attention(block.out(attended) + queries)
    expected = block.norm_feedforward(block.narrow(block.widen(normed).relu()) + normed)
    assert torch.allclose(block(x, x)[0].flatten(1).T, expected, atol=1e-5)


def test_the_encoder_starts_from_a_folder_of_weights(tmp_path: Path) -> None:
    sizes = MODEL["backbone"]
    config = SegformerConfig(
        hidden_sizes=sizes["widths"], depths=sizes["depths"], num_attention_heads=sizes["heads"],
        sr_ratios=sizes["reductions"], strides=[2, 2, 2, 2],
    )  # fmt: skip
    theirs = SegformerModel(config)
    theirs.save_pretrained(tmp_path / "mit")
    backbone = {**sizes, "weights": str(tmp_path / "mit"), "drop_path": 0.3}
    model = load(GuideConfig, None, {**MODEL, "backbone": backbone})
    net = GuideNet(model, WORDS, pretrained=True)
    state = net.encoder.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in theirs.state_dict().items())
    eps = [stage.layer_norm.eps for stage in net.encoder.stages]
    assert eps == [block.layernorm_before.eps for stage in net.encoder.stages for block in stage.blocks] == [1e-6] * 4
    assert net.encoder.stages[0].patch_embeddings.layer_norm.eps == 1e-5
    rates = [block.drop_path.drop_prob for stage in net.encoder.stages[1:] for block in stage.blocks]
    assert rates == pytest.approx([0.1, 0.2, 0.3])
    other = load(GuideConfig, None, {**MODEL, "backbone": {**backbone, "depths": [2, 1, 1, 1]}})
    with pytest.raises(ValueError, match=r"backbone.weights=.*depths are \(1, 1, 1, 1\); give its sizes"):
        GuideNet(other, WORDS, pretrained=True)


def test_keys_and_values_update_the_running_statistics_twice() -> None:
    """As the official code does, which calls one module for each on the same map."""
    net = net_of()
    block = net.exchange.layers[0][0]  # type: ignore[index]
    convolutions = block.key_shapes
    x = torch.randn(3, 24, 4, 4)
    shapes = torch.cat([part(x) for part in (convolutions.square, convolutions.row, convolutions.column)], dim=1)
    expected = convolutions.norm.running_mean.clone()
    for _ in range(2):
        expected = 0.9 * expected + 0.1 * shapes.mean(dim=(0, 2, 3))
    convolutions.train()
    convolutions(x)
    assert torch.allclose(convolutions.norm.running_mean, expected.detach(), atol=1e-6)
