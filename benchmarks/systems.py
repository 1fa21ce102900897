"""Tokens a second of ProCap and NAMC at their papers' sizes, by turns in one process: random weights, greedy, every
caption with all its steps.

NAMC's table 5 has its own 2,248 tokens a second next to CLIP4IDC's 1,789 and FINER's 49, on an RTX 3090, from features
of ResNet-101 that were computed before; so both are measured: from images, and from the features of the images.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pydantic import Field

from benchmarks.captioning import CaptioningConfig, make_captioner, make_image_tokenizer
from benchmarks.measurement import Measurement, this_environment
from idc.config import ConfigModel

if TYPE_CHECKING:
    from torch import Tensor

PUBLISHED = {"NAMC": 2248.53, "CLIP4IDC": 1789.44, "FINER": 48.51, "BLIP2IDC": 106.17}
"""Tokens a second in NAMC's table 5."""


class SystemsConfig(ConfigModel):
    """Captioners of several papers next to each other."""

    num_pairs: int = Field(4, ge=1)
    """Pairs of a batch."""
    repeats: int = Field(5, ge=1)
    """Timed rounds, after one to warm up; the captioners take turns."""
    words: int = Field(30_522, ge=8)
    """Ids of NAMC's decoder (see its DecoderConfig)."""
    namc: dict[str, Any] = Field(default_factory=dict)
    """Settings of NAMC's `model` that differ from the paper's."""
    cnn: dict[str, Any] = Field(default_factory=dict)
    """Settings of transformers' ResNetConfig that differ from ResNet-101's."""
    threads: int = Field(2, ge=1)
    """Torch threads."""
    device: str = "cpu"
    """Torch device, e.g. cuda."""


Way = Callable[[], "Tensor"]


def measure_systems(config: SystemsConfig, procap: CaptioningConfig) -> Iterator[Measurement]:
    """One row per way; ``procap``: the size of ProCap, that of the part `captioning`."""
    import torch

    torch.set_num_threads(config.threads)
    device = torch.device(config.device)
    torch.manual_seed(0)
    ways, parameters, tokens = _ways(config, procap, device)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with torch.inference_mode():
        for _ in range(1 + config.repeats):
            for name, way in ways.items():
                if device.type == "cuda":
                    torch.cuda.synchronize()
                started = time.perf_counter()
                ids = way()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                seconds[name].append(time.perf_counter() - started)
                assert ids.shape == (config.num_pairs, tokens[name]), "every caption takes all its steps"
    where = this_environment(threads=config.threads)
    rates = {
        name: [config.num_pairs * tokens[name] / second for second in times[1:]] for name, times in seconds.items()
    }
    for source in ("images", "features"):
        yield Measurement(
            part="systems",
            title=f"NAMC from {source} over ProCap from {source}, papers' sizes",
            unit="tokens/s",
            above=rates[f"NAMC, {source}"],
            below=rates[f"ProCap, {source}"],
            more={
                "pairs": config.num_pairs,
                "parameters": f"NAMC {parameters['NAMC']:.1f} M, ProCap {parameters['ProCap']:.1f} M",
                "published": ", ".join(f"{name} {value:,.0f}" for name, value in PUBLISHED.items()),
            },
            environment=where,
        )


def _ways(
    config: SystemsConfig, procap: CaptioningConfig, device: Any
) -> tuple[dict[str, Way], dict[str, float], dict[str, int]]:
    """The captioners, their parameters in millions without what reads the images, and tokens per caption."""
    import torch
    from transformers import ResNetConfig, ResNetModel

    from idc.config import load
    from idc.data.text import OWN_IDS
    from idc.decoding import decode
    from idc.systems.namc.config import ModelConfig
    from idc.systems.namc.model import NamcNet

    rules: dict[str, Any] = {
        "bos": OWN_IDS.bos, "eos": OWN_IDS.eos, "pad": OWN_IDS.pad, "banned": (OWN_IDS.unk, OWN_IDS.eos),
        "stop_early": False,
    }  # fmt: skip
    model = load(ModelConfig, None, config.namc)
    resnet = ResNetModel(ResNetConfig(**{"depths": [3, 4, 23, 3], **config.cnn})).to(device).eval()
    channels = resnet.config.hidden_sizes[2]
    net = NamcNet(model, channels, config.words).to(device).eval()
    namc_images = torch.rand(2 * config.num_pairs, 3, model.image.size, model.image.size, device=device)

    def grid() -> Tensor:
        hidden_states = resnet(pixel_values=namc_images, output_hidden_states=True).hidden_states[3]
        return torch.as_tensor(hidden_states).flatten(2).transpose(1, 2)

    def namc(features: Tensor) -> Tensor:
        return decode(net.decoder, net.memory(features), max_length=23, **rules).ids

    sized = procap.model_copy(update={"device": config.device})
    tokenizer, captioner = make_image_tokenizer(sized), make_captioner(sized, procap.num_keyframes)
    side = procap.tokenizer.image_size
    procap_images = torch.rand(2 * config.num_pairs, 3, side, side, device=device)

    def patches() -> Tensor:
        features = tokenizer.features(procap_images)
        return torch.stack(features.chunk(2), dim=1)

    def words(features: Tensor) -> Tensor:
        return decode(captioner.decoder, captioner.procedure(features), max_length=procap.steps, **rules).ids

    with torch.inference_mode():
        kept, stored = grid().clone(), patches().clone()
    ways: dict[str, Way] = {
        "NAMC, images": lambda: namc(grid()),
        "ProCap, images": lambda: words(patches()),
        "NAMC, features": lambda: namc(kept),
        "ProCap, features": lambda: words(stored),
    }
    million = {
        name: sum(parameter.numel() for parameter in module.parameters()) / 1e6
        for name, module in (("NAMC", net), ("ProCap", captioner))
    }
    tokens = {name: 23 if name.startswith("NAMC") else procap.steps for name in ways}
    return ways, million, tokens
