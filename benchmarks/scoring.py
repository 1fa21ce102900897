"""Time to score a split of CLEVR-Change's size, here and with ``pycocoevalcap`` on the same captions.

python -m benchmarks.scoring
python -m benchmarks.scoring pairs=500 rounds=1
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from benchmarks.measurement import Row, by_turns, markdown
from idc.config import ConfigModel, cli
from idc.data.schema import CHANGE_TYPES, NO_CHANGE
from idc.evaluation.record import Prediction
from idc.evaluation.score import ScoreCache, evaluate_captions
from idc.metrics import java
from idc.metrics.coco import BLEU_ORDERS, CocoScorer
from idc.rendered.captions import ATTRIBUTES, SUBSETS, SYNONYMS, TEMPLATES, SceneDescription, phrase
from idc.rendered.scene import SceneObject

_VALUES = {
    "size": ("large", "small"),
    "color": ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow"),
    "material": ("rubber", "metal"),
    "shape": ("cube", "sphere", "cylinder"),
}
_RELATIONS = ("left", "right", "front", "behind")


class ScoringConfig(ConfigModel):
    """Scoring generated captions in the style of CLEVR-Change; half of the pairs are unchanged, as in that data set."""

    pairs: int = Field(7970, ge=20)
    """Number of predictions (CLEVR-Change's test split has 7,970)."""
    references: int = Field(5, ge=1, le=8)
    """References per prediction."""
    rounds: int = Field(3, ge=1)
    """Runs of each kind."""


def measure_scoring(config: ScoringConfig) -> Iterator[Row]:
    """Seconds of scoring here over ``pycocoevalcap``, and of a whole evaluation over scoring alone; Java's start
    included.

    Raises:
        ValueError: the two scorers have different scores.
    """
    predictions = generated(config.pairs, config.references)
    references = {p.pair_id: p.references for p in predictions}
    captions = {p.pair_id: p.caption for p in predictions}
    # Captions of other pairs, as many distinct ones as the nearest-neighbour baseline has.
    nearest = dict(zip(captions, reversed([texts[0] for texts in references.values()]), strict=True))
    scores: dict[str, Any] = {}

    def own() -> None:
        java._tokens_of.clear()  # as in a fresh process
        scores["own"] = dict(CocoScorer(references).score(captions).overall)

    def official() -> None:
        scores["official"] = _official(references, captions)

    def whole() -> None:
        java._tokens_of.clear()
        candidates = list(captions.values())[:200]
        with tempfile.TemporaryDirectory(prefix="idc-benchmark-") as folder:
            evaluate_captions(
                predictions, constant_candidates=candidates, nearest=nearest, resamples=1000, cache=ScoreCache(folder)
            )

    seconds = by_turns({"own": own, "official": official, "whole": whole}, config.rounds)
    apart = max(abs(scores["own"][name] - value) for name, value in scores["official"].items())
    if apart > 1e-9:
        raise ValueError(f"scoring: scores differ from pycocoevalcap's by {apart}")
    size = f"{config.pairs} predictions, {config.references} references each"
    for above, below, title in (
        ("own", "official", "scoring a split, here over pycocoevalcap"),
        ("whole", "own", "a whole evaluation with baselines, subsets and intervals over scoring alone"),
    ):
        yield Row(f"{title} ({size})", "s", seconds[above], seconds[below])


def generated(pairs: int, references: int) -> list[Prediction]:
    """Predictions with the words and templates of the rendered pairs: half of the pairs are unchanged, the five change
    types are equally frequent, the references of a pair differ in wording, and one prediction in four names another
    object."""
    rng = np.random.default_rng(0)
    changed = [kind for kind in CHANGE_TYPES if kind != NO_CHANGE]
    predictions = []
    for i in range(pairs):
        kind = NO_CHANGE if i % 2 else changed[i // 2 % len(changed)]
        thing, other = _thing(rng), _thing(rng)
        value = str(rng.choice(_VALUES[kind])) if kind in _VALUES else ""
        order = rng.permutation(len(TEMPLATES[kind]))[: references + 1]
        texts = [_caption(kind, int(t), thing, other, value, rng) for t in order]
        predicted = thing if rng.random() < 0.75 else _thing(rng)
        caption = _caption(kind, int(order[-1]), predicted, other, value, rng)
        predictions.append(
            Prediction(pair_id=f"{i:06d}", caption=caption, references=texts[:references], change_type=kind)
        )
    return predictions


def _thing(rng: np.random.Generator) -> SceneObject:
    attributes = {name: str(rng.choice(_VALUES[name])) for name in ATTRIBUTES}
    return SceneObject(**attributes, radius=1.0, x=0.0, y=0.0, turn=0.0)


def _caption(
    kind: str, template: int, thing: SceneObject, other: SceneObject, value: str, rng: np.random.Generator
) -> str:
    named, anchor = (tuple(SUBSETS[int(rng.integers(5))]) for _ in range(2))
    if rng.random() < 0.5:
        description = SceneDescription(named, str(rng.choice(_RELATIONS)), other, anchor)
    else:
        description = SceneDescription(named)
    word = str(rng.choice(SYNONYMS[value])) if value in SYNONYMS else value
    return TEMPLATES[kind][template].format(d=phrase(thing, description, rng), v=word)


def _official(references: dict[str, list[str]], captions: dict[str, str]) -> dict[str, float]:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    path = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{Path(java.java()).parent}{os.pathsep}{path}"  # pycocoevalcap runs the first `java` in PATH
    try:
        gts = PTBTokenizer().tokenize({name: [{"caption": c} for c in texts] for name, texts in references.items()})
        res = PTBTokenizer().tokenize({name: [{"caption": text}] for name, text in captions.items()})
        scorers = {"METEOR": Meteor(), "ROUGE-L": Rouge(), "CIDEr": Cider()}
        scores = {name: float(scorer.compute_score(gts, res)[0]) for name, scorer in scorers.items()}
        return scores | dict(zip(BLEU_ORDERS, map(float, Bleu(4).compute_score(gts, res)[0]), strict=True))
    finally:
        os.environ["PATH"] = path


def main() -> None:
    print(markdown(measure_scoring(cli(ScoringConfig, __doc__, local=False, overwrite=False).config)))


if __name__ == "__main__":
    main()
