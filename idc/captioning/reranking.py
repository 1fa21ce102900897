"""Best of n: captions that a captioner draws at random, reranked by log-probabilities, by the pair encoder, or by both.

The score of a caption of a pair, in natural logarithms:

- ``captioner``: its log-probability, the sum over its tokens, under a captioner that can score captions. With a
  reference, less its log-probability under that: for a model that was tuned by preferences, and the model that its
  tuning began with as the reference, this is the reward that the tuning taught it, up to the factor beta.
- ``encoder``: scale x cosine of the vectors of pair and caption, with the scale that the pair encoder has learned: up
  to a constant of the pair, log q of the caption.
- ``both``: their sum.

Imports no torch, and numpy only to rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from idc.captioning.contract import Candidate, Captioner, Description, SearchOptions, require
from idc.config import ConfigModel

if TYPE_CHECKING:
    import numpy as np

    from idc.vision.pair_encoder.model import PairEncoder


class BestOfConfig(ConfigModel):
    """Samples of a captioner, of which the best ones are kept. Evidence, change map and calibrated probability are
    those of its search. A caption that is asked for with a number of beams is searched for, without samples."""

    samples: int = Field(8, ge=2)
    """n, captions drawn for each pair; equal texts count once."""
    temperature: float = Field(1.0, gt=0)
    """Divides the logits of the distribution that they are drawn from; below 1 they are more alike."""
    seed: int = Field(0, ge=0)
    """Seed of the draws; equal seeds and batches give equal samples."""
    by: Literal["captioner", "encoder", "both"] = "captioner"
    """What ranks them: the log-probability of a captioner, the pair encoder, or the sum of both."""
    scorer: str | None = Field(None, min_length=1)
    """Artifact of the captioner whose log-probability counts. Default: the one that draws the samples."""
    reference: str | None = Field(None, min_length=1)
    """Artifact of a captioner whose log-probability is subtracted. For a model tuned by preferences the one that its
    tuning began with: samples are then ranked by the reward that it has learned. Default: none."""
    encoder: str | None = Field(None, min_length=1)
    """Artifact of jobs/train_pair_encoder.py."""

    def faults(self) -> Iterator[str]:
        if (self.encoder is None) == (self.by != "captioner"):
            yield f"by: {self.by!r} " + ("needs encoder" if self.encoder is None else "has no use for encoder")
        for name in ("scorer", "reference"):
            if self.by == "encoder" and getattr(self, name) is not None:
                yield f"by: 'encoder' has no use for {name}; take 'both', or leave it out"

    def text(self) -> str:
        """What is done, in words."""
        names = {
            "captioner": "log-probability",
            "encoder": "the pair encoder",
            "both": "log-probability and pair encoder",
        }
        return (
            f"best of {self.samples} samples at temperature {self.temperature:g}, ranked by {names[self.by]}"
            + "".join(f", {name} {artifact}" for name, artifact in self.artifacts.items())
        )

    @property
    def artifacts(self) -> Mapping[str, str]:
        """Name of the setting -> artifact that it names."""
        named = {name: getattr(self, name) for name in ("scorer", "reference", "encoder")}
        return {name: artifact for name, artifact in named.items() if artifact is not None}


class RerankedCaptioner(Captioner):
    """A captioner whose captions are the best of its samples.

    Args:
        captioner: draws the samples.
        scorer: as of the config; by default ``captioner``.
        reference, encoder: as of the config.

    Raises:
        ValueError: a captioner cannot sample or score.
    """

    def __init__(
        self,
        captioner: Captioner,
        config: BestOfConfig,
        scorer: Captioner | None = None,
        reference: Captioner | None = None,
        encoder: PairEncoder | None = None,
    ) -> None:
        self.captioner, self.config, self.encoder = captioner, config, encoder
        self.capabilities, self.trained_on = captioner.capabilities, captioner.trained_on
        self.sampler = require(captioner, "sample")
        self.signs = []
        if config.by != "encoder":
            self.signs = [(1.0, require(scorer or captioner, "score"))]
        if reference is not None:
            self.signs.append((-1.0, require(reference, "score")))

    def __getattr__(self, name: str) -> Any:
        # What only some captioners can do is done by the captioner itself.
        if name == "captioner":  # not there yet: an object that is being unpickled
            raise AttributeError(name)
        return getattr(self.captioner, name)

    def _describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], options: SearchOptions
    ) -> list[Description]:
        if options.beams is not None:
            return self.captioner.describe(befores, afters, **options._asdict())
        described = self.captioner.describe(befores, afters, change_map=options.change_map)
        config = self.config
        samples = self.sampler.sample(befores, afters, config.samples, temperature=config.temperature, seed=config.seed)
        ranked = self._ranked(befores, afters, [_texts(drawn) for drawn in samples])
        return [
            # Relevance and tokens belong to the caption of the search.
            replace(searched, candidates=tuple(best[: options.candidates]), relevance=None, tokens=None)
            if best
            else searched
            for searched, best in zip(described, ranked, strict=True)
        ]

    def _ranked(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], texts: Sequence[dict[str, Candidate]]
    ) -> list[list[Candidate]]:
        """The candidates of each pair, the best first."""
        import numpy as np  # every captioner's settings are read with this module: --help of a job loads no arrays

        captions = [list(drawn) for drawn in texts]
        scores = [np.zeros(len(drawn)) for drawn in texts]
        for sign, judge in self.signs:
            for total, judged in zip(scores, judge.score(befores, afters, captions), strict=True):
                total += sign * np.array([score.total for score in judged])
        if self.encoder is not None:
            scale = float(self.encoder.clip.logit_scale.exp())
            for total, pair_E, drawn in zip(scores, self.encoder.encode_pairs(befores, afters), captions, strict=True):
                total += scale * (self.encoder.encode_texts(drawn) @ pair_E)
        return [
            [list(drawn.values())[number] for number in np.argsort(-total, kind="stable")]
            for drawn, total in zip(texts, scores, strict=True)
        ]


def _texts(drawn: Sequence[Candidate]) -> dict[str, Candidate]:
    """Text -> the sample that was drawn first, in the order of the draws; an empty text is no caption."""
    texts: dict[str, Candidate] = {}
    for sample in drawn:
        if sample.caption.strip():
            texts.setdefault(sample.caption, sample)
    return texts
