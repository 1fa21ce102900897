"""Any system's artifact as the captioner of a server: image files in, captions, confidences and PNGs out. No Ray.

What comes in together may be of any sizes and options, and files that are no images stand between the others: pairs of
equal options go through the model as one batch, and a pair that cannot be read gets its error.
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
from serve.schema import Abilities, Captioned, EncodedPair, Options


@dataclass(frozen=True)
class Decoded:
    """The pixels of a pair, uint8 RGB (H, W, 3) each, or why it has none: ``"before: ..."``, ``"after: ..."``."""

    before: np.ndarray | None = None
    after: np.ndarray | None = None
    error: str | None = None


class Captioner:
    """An artifact in use.

    Args:
        artifact: its folder.
        device: where to run, e.g. ``cuda``.
        threads: of torch, in the whole process; by default they stay as they are.

    Attributes:
        abilities: what it was trained on and can do.

    Raises:
        ValueError: the folder is no artifact of a captioner.
    """

    def __init__(self, artifact: str, device: str = "cpu", threads: int | None = None):
        if threads is not None:
            import torch

            torch.set_num_threads(threads)
        self.describer = load_captioner(artifact, device)
        self.abilities = Abilities(
            self.describer.trained_on, self.describer.can_imagine, self.describer.imagined_meaningful
        )

    def can(self, options: Options) -> str | None:
        """Why pairs cannot be captioned like this, or None."""
        try:
            beams_of(options.beams, options.candidates, validated=1)
        except ValueError as error:
            return str(error)
        if options.imagine and not self.abilities.can_imagine:
            return "imagine: this model has no part that shows what it imagines between the images; leave it out"
        return None

    def decode(self, pair: EncodedPair) -> Decoded:
        """The pixels of both images; touches no model, so that it may run beside it in another thread."""
        images = {}
        for name, data in (("before", pair.before), ("after", pair.after)):
            try:
                images[name] = decode_image(data)
            except ImageError as error:
                return Decoded(error=f"{name}: {error}")
        return Decoded(images["before"], images["after"])

    def caption(self, pairs: Sequence[Decoded | EncodedPair], options: Sequence[Options]) -> list[Captioned]:
        """What becomes of each pair, with the options at its place; no pair's fault is another's."""
        decoded = [self.decode(pair) if isinstance(pair, EncodedPair) else pair for pair in pairs]
        groups: dict[tuple[int | None, int, bool], list[int]] = defaultdict(list)
        found: dict[int, Captioned] = {}
        for place, (pair, wish) in enumerate(zip(decoded, options, strict=True)):
            if error := pair.error or self.can(wish):
                found[place] = Captioned(error=error)
            else:
                groups[wish.beams, wish.candidates, wish.change_map].append(place)
        for (beams, candidates, change_map), places in groups.items():
            started = time.perf_counter()
            befores, afters = zip(*(_pixels(decoded[place]) for place in places), strict=True)
            told = self.describer.describe(befores, afters, beams=beams, candidates=candidates, change_map=change_map)
            model_ms = 1000 * (time.perf_counter() - started)
            for place, description, after in zip(places, told, afters, strict=True):
                found[place] = _captioned(description, after, model_ms, len(places))
        for place, wish in enumerate(options):
            if wish.imagine and found[place].error is None:
                frames = tuple(encode_png(frame) for frame in self.describer.imagine(*_pixels(decoded[place])))
                found[place] = replace(found[place], frames=frames)
        return [found[place] for place in range(len(decoded))]


def _pixels(pair: Decoded) -> tuple[np.ndarray, np.ndarray]:
    assert pair.before is not None
    assert pair.after is not None
    return pair.before, pair.after


def _captioned(description: Description, after: np.ndarray, model_ms: float, batch: int) -> Captioned:
    change_map = description.change_map
    return Captioned(
        captions=description.candidates,
        assessment=description.assessment,
        change_map=None if change_map is None else encode_png(draw_map(change_map, after.shape[:2])),
        model_ms=model_ms,
        batch=batch,
    )
