"""An artifact of any system as the captioner of a server: image files in, captions, confidences and PNGs out. No Ray.

One call takes images of any sizes, with any options, and damaged files among them: pairs with equal options form one
batch, and the result of an unreadable pair is its error (:mod:`idc.captioning.apply`).
"""

from __future__ import annotations

from collections.abc import Sequence

from idc.captioning.apply import CaptionOptions, Fault, Pixels, Result, decode_pair, describe_batch
from idc.captioning.contract import Relevance, draw_map, require, stretched
from idc.captioning.loading import DEFAULTS, CaptionerLoader, LoadConfig
from idc.data.images import encode_png
from serve.backend import Abilities, EncodedPair, Options, PairResult, ShownRelevance

Decoded = Pixels | Fault
"""The pixels of a pair, or the reason why it has none."""


class ServedCaptioner:
    """A loaded artifact.

    Args:
        artifact: folder of the artifact.
        load: how it is loaded.
        gpus: number of GPUs of the process; the default device is cuda if there are any.
        threads: number of torch threads of the whole process; by default unchanged.

    Attributes:
        abilities: training data and supported options.

    Raises:
        ValueError: the folder is not the artifact of a captioner.
    """

    def __init__(self, artifact: str, load: LoadConfig = DEFAULTS, gpus: float = 0.0, threads: int | None = None):
        self.captioner = CaptionerLoader(artifact, load, gpus, threads)()
        imagines = "imagine" in self.captioner.capabilities
        meaningful = imagines and require(self.captioner, "imagine").frames_meaningful
        self.abilities = Abilities(self.captioner.trained_on, imagines, meaningful)

    def unsupported(self, options: Options) -> str | None:
        """The reason why pairs cannot be captioned with these options, or None."""
        try:
            _options(options).check(self.captioner)
        except ValueError as error:
            return str(error)
        return None

    def decode(self, pair: EncodedPair) -> Decoded:
        """The pixels of both images. It does not use the model and may run in another thread at the same time."""
        return decode_pair(pair.before, pair.after)

    def caption(self, pairs: Sequence[Decoded | EncodedPair], options: Sequence[Options]) -> list[PairResult]:
        """One result per pair, each with its own options; a faulty pair does not affect the others."""
        found: dict[int, PairResult] = {}
        images: dict[int, Decoded] = {}
        for place, (pair, option) in enumerate(zip(pairs, options, strict=True)):
            decoded = self.decode(pair) if isinstance(pair, EncodedPair) else pair
            if isinstance(decoded, Fault):
                found[place] = PairResult(error=str(decoded))
            elif error := self.unsupported(option):
                found[place] = PairResult(error=error)
            else:
                images[place] = decoded
        results = describe_batch(self.captioner, [*images.values()], [_options(options[place]) for place in images])
        found |= {place: _captioned(result) for place, result in zip(images, results, strict=True)}
        return [found[place] for place in range(len(pairs))]


def _options(options: Options) -> CaptionOptions:
    return CaptionOptions(options.beams, options.candidates, options.change_map, options.imagine)


def _shown(relevance: Relevance, pixels: Pixels) -> ShownRelevance:
    before, after = (
        encode_png(draw_map(stretched(places), image.shape[:2]))
        for places, image in zip((relevance.before, relevance.after), pixels, strict=True)
    )
    return ShownRelevance(relevance.words, before, after)


def _captioned(result: Result) -> PairResult:
    assert isinstance(result.pixels, Pixels)
    assert result.description is not None
    change_map, relevance = result.description.change_map, result.description.relevance
    return PairResult(
        captions=result.description.candidates,
        assessment=result.description.assessment,
        attributes=result.description.attributes,
        change_map=None if change_map is None else encode_png(draw_map(change_map, result.pixels.after.shape[:2])),
        relevance=None if relevance is None else _shown(relevance, result.pixels),
        frames=tuple(map(encode_png, result.frames)) or None,
        model_ms=1000 * result.seconds,
        batch=result.batch,
    )
