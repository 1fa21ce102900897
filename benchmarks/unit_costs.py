"""What one item costs in each stage at the papers' sizes, for estimates of other scales: processor time of the stages
that need no GPU, and the operations of those that do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.measurement import Measurement, environment
from benchmarks.pretraining import count_flops

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDS = 5
_SIDE = 224
_WORDS = 60
"""Words of a description and of a text of the dual encoder, begin and end included."""


def measure_unit_costs() -> Iterator[Measurement]:
    """Rows of one core's time per item, then rows of operations per item."""
    where = environment(threads=1)
    for title, unit, action in _on_the_processor():
        seconds = []
        action()
        for _ in range(_ROUNDS):
            began = time.process_time()
            action()
            seconds.append(time.process_time() - began)
        yield Measurement(
            part="scale",
            title=title,
            unit=unit,
            aim="none",
            better="lower",
            above=[one * 1e3 for one in seconds],
            environment=where,
        )
    for title, count in _operations():
        yield Measurement(
            part="scale",
            title=title,
            unit="GFLOP",
            aim="none",
            better="neither",
            above=[count / 1e9],
            environment=where,
        )


def _on_the_processor() -> Iterator[tuple[str, str, Callable[[], Any]]]:
    import cv2
    import numpy as np

    from idc.data.images import decode_image, encode_png, resize_image
    from idc.vision.interpolation.middle_frames import interpolate, make_middle

    cv2.setNumThreads(1)
    rng = np.random.default_rng(0)
    small = rng.integers(0, 255, (2, 12, 18, 3), np.uint8)
    before, after = (cv2.resize(one, (480, 320), interpolation=cv2.INTER_CUBIC) for one in small)
    png = encode_png(before)
    yield "decoding a PNG of 480x320 and resizing it to 224", "CPU ms", lambda: resize_image(decode_image(png), _SIDE)
    first, last = resize_image(before, _SIDE), resize_image(after, _SIDE)
    dis = make_middle("dis")
    yield "7 frames between two images of 224x224 by DIS", "CPU ms", lambda: interpolate(first, last, 3, dis)


def _operations() -> Iterator[tuple[str, int]]:
    """Of single items, forward and backward in training; random weights of the papers' sizes."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModel, Dinov2Config, Dinov2Model, ResNetConfig, ResNetModel

    torch.manual_seed(0)
    torch.set_num_threads(1)
    images = torch.zeros(1, 3, _SIDE, _SIDE)
    large: dict[str, Any] = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "patch_size": 14}
    clip = CLIPVisionModel(CLIPVisionConfig(intermediate_size=4096, **large)).eval()
    dino = Dinov2Model(Dinov2Config(image_size=_SIDE, **large)).eval()
    with torch.no_grad():
        both = count_flops(lambda: (clip(images), dino(images)))
    yield "features of CLIP ViT-L/14 and DINOv2 ViT-L/14 of an image of 224x224", both
    resnet = ResNetModel(ResNetConfig(depths=[3, 4, 23, 3])).eval()
    with torch.no_grad():
        yield "NAMC: grid features of ResNet-101 of an image of 224x224", count_flops(lambda: resnet(images))
    yield "NAMC: pre-training on a pair, without ResNet and the image tokenizer, dual encoder of 12x768", _namc_step()


def _namc_step() -> int:
    """Operations of NAMC's pre-training step, forward and backward, for each of two pairs."""
    import torch

    from idc.config import load
    from idc.data.text import SPECIALS, Vocabulary
    from idc.systems.namc.config import PretrainJob
    from idc.systems.namc.task import PretrainTask

    encoder = {"width": 768, "layers": 12, "heads": 12}
    job = load(PretrainJob, None, {"pairs": "random", "tokenizer": "random", "nim": {"encoder": encoder}})
    vocabulary = Vocabulary([f"word{n}" for n in range(30_522 - len(SPECIALS))])
    codebook = 1024

    def tokens(images: Tensor, keys: Any = None) -> Tensor:
        return torch.zeros(len(images), positions, dtype=torch.long)

    class Grid:
        """Stands for ResNet's features, which are counted on their own."""

        channels = 1024

        def __call__(self, images: Tensor) -> Tensor:
            return torch.randn(len(images), positions, self.channels)

    positions = job.model.image.grid**2
    grid: Any = Grid()
    task = PretrainTask(job, grid, vocabulary, tokens, codebook)
    pairs = 2
    texts, words = 2 * pairs, _WORDS - 2
    ids = torch.randint(len(SPECIALS), 1000, (texts, _WORDS))
    word_of = torch.cat([torch.tensor([-1]), torch.arange(words), torch.tensor([-1])]).repeat(texts, 1)
    said = torch.randint(len(SPECIALS), 1000, (pairs, _WORDS))
    size = job.model.image.size
    batch = {
        "images": torch.zeros(texts, size, size, 3, dtype=torch.uint8),
        "keys": list(range(texts)),
        "text": {"ids": ids, "words": word_of, "end": torch.full((texts,), _WORDS - 1), "num_words": words},
        "ids": said[:, :-1],
        "targets": said[:, 1:],
        "place": torch.full((pairs, _WORDS - 1), -1),
        "uniform_images": torch.rand(texts, positions),
        "uniform_texts": torch.rand(texts, words),
    }
    return count_flops(lambda: task.train().training_step(batch)[0].backward()) // pairs
