"""Best of n: the order is that of the scores, of captioners, the pair encoder and both, in every command."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.captioning.apply import DescribeOptions, Pixels, describe_batch
from idc.captioning.calibration_job import CalibrateJob
from idc.captioning.contract import Candidate, Capability, CaptionScore, Description
from idc.captioning.loading import CaptionerLoader, LoadConfig
from idc.captioning.reranking import BestOfConfig, RerankedCaptioner
from idc.captioning.table import CaptionJob
from idc.captioning.throughput import ThroughputJob
from idc.config import ConfigError, load
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import scoring_fingerprint
from idc.vision.pair_encoder.model import PairEncoder
from serve.captioner import ServedCaptioner
from tests.systems.adpo.small import encoder_folder

WORDS = ("the red cube was added", "a blue thing was added", "nothing has changed", "there is no change", "")
BEFORES = [np.full((8, 8, 3), 40 * pair, np.uint8) for pair in range(3)]
AFTERS = [np.full((8, 8, 3), 255 - 50 * pair, np.uint8) for pair in range(3)]


class Table:
    """A captioner whose captions and log-probabilities depend on the images in a way that can be computed again."""

    trained_on = "tables"

    def __init__(self, seed: int, capabilities: Sequence[Capability] = ("score", "sample", "map")) -> None:
        self.seed, self.capabilities = seed, frozenset(capabilities)
        self.asked: list[dict[str, Any]] = []

    def total(self, before: np.ndarray, caption: str) -> float:
        return -abs(math.sin(self.seed + 3.7 * int(before[0, 0, 0]) + 11.3 * WORDS.index(caption))) * 9

    def score(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], captions: Sequence[Sequence[str]]
    ) -> list[list[CaptionScore]]:
        return [
            [CaptionScore(self.total(before, text), 1 + len(text.split())) for text in texts]
            for before, texts in zip(befores, captions, strict=True)
        ]

    def sample(
        self,
        befores: Sequence[np.ndarray],
        afters: Sequence[np.ndarray],
        n: int,
        *,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> list[list[Candidate]]:
        self.asked.append({"n": n, "temperature": temperature, "seed": seed})
        draws = np.random.default_rng(seed).integers(len(WORDS), size=(len(befores), n))
        return [[Candidate(WORDS[word], -0.1 * number) for number, word in enumerate(row)] for row in draws]

    def describe(
        self, befores: Sequence[np.ndarray], afters: Sequence[np.ndarray], **options: Any
    ) -> list[Description]:
        self.asked.append(options)
        return [Description((Candidate("of the search", -1.0),), changed=0.7, tokens=(5, 6)) for _ in befores]


def described(captioner: RerankedCaptioner, **options: Any) -> list[Description]:
    return captioner.describe(BEFORES, AFTERS, **options)


def naive_order(
    table: Table, config: BestOfConfig, scorer: Table | None, reference: Table | None, encoder: PairEncoder | None
) -> list[list[str]]:
    """Every caption on its own."""
    orders = []
    drawn = table.sample(BEFORES, AFTERS, config.samples, temperature=config.temperature, seed=config.seed)
    for before, after, samples in zip(BEFORES, AFTERS, drawn, strict=True):
        scores = {}
        for sample in samples:
            text = sample.caption
            if not text:
                continue
            scores[text] = 0.0
            if config.by in ("captioner", "both"):
                scores[text] += (scorer or table).total(before, text)
                if reference is not None:
                    scores[text] -= reference.total(before, text)
            if config.by in ("encoder", "both"):
                assert encoder is not None
                pair, vector = encoder.encode_pairs([before], [after])[0], encoder.encode_texts([text])[0]
                scores[text] += math.exp(encoder.clip.logit_scale.item()) * float(pair @ vector)
        orders.append(sorted(scores, key=lambda text: -scores[text]))
    return orders


@pytest.mark.parametrize("by", ["captioner", "encoder", "both"])
@pytest.mark.parametrize("others", [False, True])
def test_the_order_is_that_of_every_caption_scored_alone(by: str, others: bool) -> None:
    encoder = PairEncoder.load(encoder_folder()) if by != "captioner" else None
    others = others and by != "encoder"
    scorer, reference = (Table(5), Table(8)) if others else (None, None)
    named = {"encoder": None if encoder is None else "e"}
    config = BestOfConfig(samples=6, temperature=0.8, seed=3, by=by, **named)  # type: ignore[arg-type]  # a string
    table = Table(1)
    captioner = RerankedCaptioner(table, config, scorer, reference, encoder)  # type: ignore[arg-type]  # a table
    orders = [[one.caption for one in pair.candidates] for pair in described(captioner, candidates=6)]
    assert orders == naive_order(table, config, scorer, reference, encoder)
    assert any(len(order) > 1 for order in orders)
    assert captioner(BEFORES, AFTERS) == [order[0] for order in orders]


def test_each_judge_moves_the_order() -> None:
    """Else the comparison above would not see a judge that is left out."""
    encoder, table = PairEncoder.load(encoder_folder()), Table(1)
    ways: list[tuple[str, Table | None, Table | None]] = [
        ("captioner", None, None), ("captioner", Table(5), None), ("captioner", None, Table(8)),
        ("encoder", None, None), ("both", None, None),
    ]  # fmt: skip
    orders = []
    for by, scorer, reference in ways:
        config = BestOfConfig.model_validate(
            {"samples": 12, "by": by, "encoder": None if by == "captioner" else "encoder"}
        )
        orders.append(naive_order(table, config, scorer, reference, None if by == "captioner" else encoder))
    assert len({str(order) for order in orders}) == len(orders)


def test_a_description_keeps_what_the_search_saw_and_its_candidates_their_probability() -> None:
    table = Table(1)
    captioner = RerankedCaptioner(table, BestOfConfig(samples=6))  # type: ignore[arg-type]  # a table
    drawn = table.sample(BEFORES, AFTERS, 6)
    for description, samples in zip(described(captioner, candidates=2, change_map=True), drawn, strict=True):
        assert (description.changed, description.tokens) == (0.7, None)
        assert len(description.candidates) <= 2
        for candidate in description.candidates:
            first = next(sample for sample in samples if sample.caption == candidate.caption)
            assert candidate.log_probability == first.log_probability
    assert {"change_map": True} in table.asked
    assert captioner.capabilities == table.capabilities
    assert captioner.total(BEFORES[0], WORDS[0]) == table.total(BEFORES[0], WORDS[0]), "the rest is the captioner's"


def test_beams_are_a_search_without_samples() -> None:
    table = Table(1)
    captioner = RerankedCaptioner(table, BestOfConfig())  # type: ignore[arg-type]  # a table
    (first, *_) = described(captioner, beams=4, candidates=2)
    assert first.best.caption == "of the search"
    assert table.asked == [{"beams": 4, "candidates": 2, "change_map": False, "counted": None}]


def test_without_any_text_the_search_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(1)
    monkeypatch.setattr(table, "sample", lambda befores, afters, n, **_: [[Candidate(" ", -0.1)] * n for _ in befores])
    captioner = RerankedCaptioner(table, BestOfConfig())  # type: ignore[arg-type]  # a table
    assert captioner(BEFORES, AFTERS) == ["of the search"] * 3


@pytest.mark.parametrize("lacks", ["sample", "score"])
def test_a_captioner_that_cannot_is_refused(lacks: Capability) -> None:
    able: list[Capability] = [name for name in ("score", "sample") if name != lacks]
    with pytest.raises(ValueError, match=f"^{lacks}: this captioner cannot"):
        RerankedCaptioner(Table(1, able), BestOfConfig())  # type: ignore[arg-type]  # a table
    if lacks == "score":  # the encoder ranks, and another captioner may
        config = BestOfConfig(by="encoder", encoder="e")
        RerankedCaptioner(Table(1, able), config, encoder=PairEncoder.load(encoder_folder()))  # type: ignore[arg-type]
        RerankedCaptioner(Table(1, able), BestOfConfig(scorer="s"), Table(2))  # type: ignore[arg-type]  # a table


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "encoder"}, "by: 'encoder' needs encoder"),
        ({"encoder": "e"}, "by: 'captioner' has no use for encoder"),
        ({"by": "encoder", "encoder": "e", "reference": "r"}, "by: 'encoder' has no use for reference"),
        ({"samples": 1}, "samples"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], message: str) -> None:
    raw_settings = {"input": "i", "out": "o", **{f"best_of.{name}": value for name, value in settings.items()}}
    with pytest.raises(ConfigError, match=rf"best_of\.{message}"):
        load(CaptionJob, None, raw_settings)


@pytest.mark.parametrize(
    ("job", "settings", "message"),
    [
        (CaptionJob, {"input": "i", "out": "o", "beams": 5}, "beams: best_of draws samples"),
        (CalibrateJob, {"artifact": "a", "pairs": "p"}, "best_of: the probability of a change"),
        (ThroughputJob, {"artifacts.a": "a", "pairs": "p", "out": "o"}, "best_of: the captioners are measured"),
    ],
)
def test_jobs_without_it_refuse_it(job: Any, settings: dict[str, Any], message: str) -> None:
    load(job, None, settings)
    with pytest.raises(ConfigError, match=message):
        load(job, None, {**settings, "best_of.samples": 4})


def test_fingerprints_count_it_and_what_it_names(captioner_artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{}")

    def mark(**best_of: Any) -> str:
        raw_settings = {"references": str(tmp_path / "r.json"), "predictions": "p", "out": "o"}
        return scoring_fingerprint(
            load(EvaluateJob, None, raw_settings | {f"best_of.{k}": v for k, v in best_of.items()})
        )

    marks = [
        mark(), mark(samples=4), mark(samples=5), mark(samples=4, reference=str(captioner_artifact)),
        mark(samples=4, by="encoder", encoder=str(encoder_folder())),
        mark(samples=4, by="encoder", encoder=str(encoder_folder(1))),
    ]  # fmt: skip
    assert len(set(marks)) == len(marks)
    assert mark(samples=4) == marks[1]


def test_the_words_name_what_ranks() -> None:
    config = BestOfConfig(samples=4, temperature=0.5, by="both", encoder="e", reference="r")
    words = "best of 4 samples at temperature 0.5, ranked by log-probability and pair encoder, reference r, encoder e"
    assert config.text() == words


def test_a_real_captioner_by_its_own_score_and_another_encoder(captioner_artifact: Path) -> None:
    """What the loader makes of the settings, in a batch and on a server."""
    artifact = str(captioner_artifact)
    plain: Any = CaptionerLoader(artifact, LoadConfig())()
    best = {"samples": 5, "by": "both", "encoder": str(encoder_folder()), "reference": artifact}
    config = LoadConfig.model_validate({"best_of": best})
    captioner = CaptionerLoader(artifact, config)()
    images = [Pixels(*images) for images in zip(BEFORES, AFTERS, strict=True)]
    results = describe_batch(captioner, images, [DescribeOptions(candidates=5)] * 3)
    encoder = PairEncoder.load(encoder_folder())
    vectors = encoder.encode_pairs(BEFORES, AFTERS)
    for result, samples, vector in zip(results, plain.sample(BEFORES, AFTERS, 5), vectors, strict=True):
        assert result.description is not None
        candidates = result.description.candidates
        assert {one.caption for one in candidates} == {one.caption for one in samples if one.caption.strip()}
        # The captioner is its own reference, so the encoder alone decides.
        cosines = encoder.encode_texts([one.caption for one in candidates]) @ vector
        assert torch.from_numpy(cosines).diff().le(1e-6).all()
    served = ServedCaptioner(artifact, config)
    assert served.captioner(BEFORES, AFTERS) == captioner(BEFORES, AFTERS)


def test_what_it_names_is_found_before_anything_is_loaded(captioner_artifact: Path, tmp_path: Path) -> None:
    for best in ({"reference": str(tmp_path)}, {"by": "encoder", "encoder": str(captioner_artifact)}):
        with pytest.raises(ValueError, match=r"artifact|pair_encoder"):
            CaptionerLoader(str(captioner_artifact), LoadConfig.model_validate({"best_of": best}))
