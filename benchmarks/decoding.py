"""ProCap's text decoder alone: cached over uncached decoding."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pydantic import Field

from idc.config import ConfigModel

if TYPE_CHECKING:
    import torch

    from idc.decoding import CachedDecoder
import copy

from benchmarks.measurement import Measurement, by_turns, this_environment
from idc.systems.procap.config import DecoderConfig, EncoderConfig


class DecodingConfig(ConfigModel):
    """Decoding at ProCap's size on CLEVR-Change (the paper's appendix H), random weights, no early stop."""

    batch_size: int = Field(32, ge=1)
    """Pairs per batch (official evaluation: 32)."""
    steps: int = Field(24, ge=1)
    """Tokens per caption, padding included, as in the official tokens per second."""
    vocabulary_size: int = Field(80, ge=5)
    """Vocabulary size (official for CLEVR-Change: 80)."""
    repeats: int = Field(3, ge=1)
    """Timed greedy searches of each kind, after one warm-up."""
    beams: int = Field(3, ge=2)
    """Beams of the beam search."""
    beam_repeats: int = Field(1, ge=1)
    """Timed beam searches of each kind, after the greedy ones."""
    encoder_batch: int = Field(4, ge=1)
    """Pairs per pass of the procedure encoder, whose time is recorded next to the decoder's."""
    threads: int = Field(2, ge=1)
    """Torch threads."""
    device: str = "cpu"
    """Torch device, e.g. cuda."""


def measure_decoder(config: DecodingConfig) -> list[Measurement]:
    """The decoder alone, cached over uncached, at the paper's CLEVR-Change size with random weights."""
    import torch

    from idc.systems.procap.captioner import CaptioningModel
    from idc.systems.procap.model import Shapes

    torch.manual_seed(0)
    torch.set_num_threads(config.threads)
    shapes = Shapes(
        num_keyframes=2, grid=(14, 14), feature_dim=256, codebook_size=1024, vocabulary_size=config.vocabulary_size
    )
    encoder = EncoderConfig(init="normal")  # runs as fast as the other one and is initialised faster
    captioner = CaptioningModel(encoder, DecoderConfig(), shapes).to(config.device).eval()
    memory = torch.randn(config.batch_size, shapes.frames * shapes.patches, encoder.width, device=config.device)
    ends = torch.randn(config.encoder_batch, 2, shapes.patches, shapes.feature_dim, device=config.device)
    without = copy.deepcopy(captioner.decoder)
    project, without.project = without.project, torch.nn.Sequential()

    @torch.no_grad()
    def encode() -> torch.Tensor:
        return captioner.procedure(ends)

    return measure_decoding(config, captioner.decoder, (without, project), memory, encode)


def measure_decoding(
    config: DecodingConfig,
    decoder: CachedDecoder,
    projected: tuple[CachedDecoder, Callable[[torch.Tensor], torch.Tensor]],
    memory_BSD: torch.Tensor,
    encode: Callable[[], Any],
) -> list[Measurement]:
    """Cached over uncached decoding in tokens per second, greedy and by beam search, with the encoder's time.

    Args:
        decoder: with random weights, in eval mode.
        projected: the same decoder without the projection of its memory, and that projection. Uncached, ``decoder``
            projects the memory at every step; this one projects it once, which isolates that part of the ratio.
        memory_BSD: output of the encoder, (B, S, D).
        encode: one pass of the encoder over ``config.encoder_batch`` pairs.
    """
    import torch

    from idc.data.text import BOS, EOS, PAD
    from idc.decoding import decode

    torch.set_num_threads(config.threads)
    cuda = config.device.startswith("cuda")
    sync = torch.cuda.synchronize if cuda else (lambda: None)
    options: dict[str, Any] = {"bos": BOS, "eos": EOS, "pad": PAD, "max_length": config.steps, "stop_early": False}
    without, project = projected

    def search(beams: int, cached: bool, once: bool = False) -> torch.Tensor:
        if once:
            with torch.no_grad():
                memory = project(memory_BSD)
            return decode(without, memory, beams=beams, cached=cached, **options).ids
        return decode(decoder, memory_BSD, beams=beams, cached=cached, **options).ids

    greedy: dict[str, Callable[[], Any]] = {
        "cached": lambda: search(1, cached=True),
        "uncached": lambda: search(1, cached=False),
        "projected once": lambda: search(1, cached=False, once=True),
    }
    first = {name: action() for name, action in greedy.items()}  # also the warm-up
    agree = float((first["cached"] == first["uncached"]).float().mean())
    seconds = by_turns(greedy, config.repeats, sync)
    wide: dict[str, Callable[[], Any]] = {
        "cached": lambda: search(config.beams, cached=True),
        "uncached": lambda: search(config.beams, cached=False),
    }
    beam_seconds = by_turns(wide, config.beam_repeats, sync)
    encode()
    encoder = by_turns({"encoder": encode}, 2, sync)["encoder"]

    tokens = config.batch_size * config.steps
    where = this_environment(config.threads, config.device)
    size = f"{config.batch_size} pairs, memory {memory_BSD.shape[1]} x {memory_BSD.shape[2]}, {config.steps} steps"

    def rates(values: list[float]) -> list[float]:
        return [tokens / value for value in values]

    def measured(title: str, aim: str, cached: list[float], other: list[float], **more: Any) -> Measurement:
        return Measurement(
            part="decoding",
            title=f"{title} ({size}, decoder alone)",
            unit="tokens/s",
            aim=aim,
            above=rates(cached),
            below=rates(other),
            more={"seconds_cached": cached, "seconds_uncached": other, **more},
            environment=where,
        )

    encoder_seconds = statistics.median(encoder) / config.encoder_batch
    return [
        measured(
            "greedy decoding, cached over uncached",
            "at least 4",
            seconds["cached"],
            seconds["uncached"],
            share_of_equal_tokens=agree,
            encoder_seconds_a_pair=encoder_seconds,
            decoder_seconds_a_pair_cached=statistics.median(seconds["cached"]) / config.batch_size,
            encoder_seconds=encoder,
            encoder_batch=config.encoder_batch,
        ),
        measured(
            "greedy decoding, cached over uncached that projects its memory once",
            "",
            seconds["cached"],
            seconds["projected once"],
        ),
        measured(
            f"beam search with {config.beams} beams, cached over uncached",
            "",
            beam_seconds["cached"],
            beam_seconds["uncached"],
        ),
    ]
