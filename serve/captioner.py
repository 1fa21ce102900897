"""An artifact of any system as the captioner of a server: image files in, captions, confidences and PNGs out. No Ray.

One call takes images of any sizes, with any options, and damaged files among them: pairs with equal options form one
batch, and the result of an unreadable pair is its error.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from idc.captioning.contract import Description, beams_of, draw_map
from idc.data.images import ImageError, decode_image, encode_png
from idc.systems import load_captioner
from serve.backend import Abilities, EncodedPair, Options, PairResult


@dataclass(frozen=True)
class Decoded:
    """The pixels of a pair, uint8 RGB (H, W, 3) each, or the reason why it has none (``"before: ..."``)."""

    before: np.ndarray | None = None
    after: np.ndarray | None = None
    error: str | None = None


class ServedCaptioner:
    """A loaded artifact.

    Args:
        artifact: folder of the artifact.
        device: torch device, e.g. ``cuda``.
        threads: number of torch threads of the whole process; by default unchanged.

    Attributes:
        abilities: training data and supported options.

    Raises:
        ValueError: the folder is not the artifact of a captioner.
    """

    def __init__(self, artifact: str, device: str = "cpu", threads: int | None = None):
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        self.describer = load_captioner(artifact, device)
        self.abilities = Abilities(
            self.describer.trained_on, self.describer.can_imagine, self.describer.imagined_meaningful
        )

    def unsupported(self, options: Options) -> str | None:
        """The reason why pairs cannot be captioned with these options, or None."""
        try:
            beams_of(options.beams, options.candidates, validated=1)
        except ValueError as error:
            return str(error)
        if options.imagine and not self.abilities.can_imagine:
            return "imagine: this model does not generate frames between the images; leave the option out"
        return None

    def decode(self, pair: EncodedPair) -> Decoded:
        """The pixels of both images. It does not use the model and may run in another thread at the same time."""
        images = {}
        for name, data in (("before", pair.before), ("after", pair.after)):
            try:
                images[name] = decode_image(data)
            except ImageError as error:
                return Decoded(error=f"{name}: {error}")
        return Decoded(images["before"], images["after"])

    def caption(self, pairs: Sequence[Decoded | EncodedPair], options: Sequence[Options]) -> list[PairResult]:
        """One result per pair, each with its own options; a faulty pair does not affect the others."""
        decoded = [self.decode(pair) if isinstance(pair, EncodedPair) else pair for pair in pairs]
        groups: dict[tuple[int | None, int, bool], list[int]] = defaultdict(list)
        found: dict[int, PairResult] = {}
        for place, (pair, option) in enumerate(zip(decoded, options, strict=True)):
            if error := pair.error or self.unsupported(option):
                found[place] = PairResult(error=error)
            else:
                groups[option.beams, option.candidates, option.change_map].append(place)
        for (beams, candidates, change_map), places in groups.items():
            started = time.perf_counter()
            befores, afters = zip(*(_pixels(decoded[place]) for place in places), strict=True)
            described = self.describer.describe(
                befores, afters, beams=beams, candidates=candidates, change_map=change_map
            )
            model_ms = 1000 * (time.perf_counter() - started)
            for place, description, after in zip(places, described, afters, strict=True):
                found[place] = _captioned(description, after, model_ms, len(places))
        for place, option in enumerate(options):
            if option.imagine and found[place].error is None:
                frames = tuple(encode_png(frame) for frame in self.describer.imagine(*_pixels(decoded[place])))
                found[place] = replace(found[place], frames=frames)
        return [found[place] for place in range(len(decoded))]


def _pixels(pair: Decoded) -> tuple[np.ndarray, np.ndarray]:
    assert pair.before is not None
    assert pair.after is not None
    return pair.before, pair.after


def _captioned(description: Description, after: np.ndarray, model_ms: float, batch: int) -> PairResult:
    change_map = description.change_map
    return PairResult(
        captions=description.candidates,
        assessment=description.assessment,
        change_map=None if change_map is None else encode_png(draw_map(change_map, after.shape[:2])),
        model_ms=model_ms,
        batch=batch,
    )
