"""Time to score a split of CLEVR-Change's size, by part, here and with ``pycocoevalcap`` on the same captions; a second
evaluation of the same references; METEOR in one and two processes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from benchmarks.measurement import Measurement, peak_memory_mib, this_environment
from idc.config import ConfigModel
from idc.cores import usable_cores
from idc.data.rendered.captions import ATTRIBUTES, SUBSETS, SYNONYMS, TEMPLATES, SceneDescription, phrase
from idc.data.rendered.scene import Thing
from idc.evaluation.kept import Kept
from idc.evaluation.record import Prediction
from idc.evaluation.score import evaluate_captions
from idc.metrics import java
from idc.metrics.coco import BLEU_ORDERS, CocoScorer
from idc.metrics.paraphrases import Paraphrases, words_of
from idc.schema import CHANGE_TYPES, NO_CHANGE

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


def measure_scoring(config: ScoringConfig) -> Iterator[Measurement]:
    """Seconds of scoring here over ``pycocoevalcap``, and of a whole evaluation over scoring alone; Java included."""
    predictions = generated(config.pairs, config.references)
    references = {p.pair_id: p.references for p in predictions}
    captions = {p.pair_id: p.caption for p in predictions}
    # Captions of other pairs, as many distinct ones as the nearest-neighbour baseline has.
    nearest = dict(zip(captions, reversed([texts[0] for texts in references.values()]), strict=True))
    seconds: dict[str, list[float]] = {"own": [], "official": [], "whole": [], "again": [], "one": [], "two": []}
    words = words_of(java.tokenize([*captions.values(), *(text for texts in references.values() for text in texts)]))
    table = None if words is None else java.paraphrases(words)
    scores_by_kind: dict[str, Any] = {}
    meteors: dict[str, np.ndarray] = {}
    memory: dict[str, list[float]] = {"one": [], "two": []}
    parts: list[dict[str, float]] = []
    official_parts: list[dict[str, float]] = []
    for number in range(config.rounds):
        folder = tempfile.TemporaryDirectory(prefix="idc-benchmark-")
        for kind in ("own", "official", "whole", "again", *("one", "two")[:: 1 if number % 2 == 0 else -1]):
            java._tokens_of.clear()  # as in a fresh process
            began = time.perf_counter()
            if kind == "own":
                with CocoScorer(references) as scorer:
                    scores_here = scorer.score(captions)
                parts.append(dict(scorer.seconds))
            elif kind == "official":
                official, spent = _official(references, captions)
                official_parts.append(spent)
            elif kind in ("whole", "again"):  # the second finds what the first has kept
                evaluation, _ = evaluate_captions(
                    predictions,
                    constant_candidates=list(captions.values())[:200],
                    nearest=nearest,
                    resamples=1000,
                    kept=Kept(folder.name),
                )
                scores_by_kind[kind] = {
                    "captions": evaluation.scores,
                    **{n: b.scores for n, b in evaluation.baselines.items()},
                }
            else:
                meteors[kind] = _meteor(references, captions, table, 1 if kind == "one" else 2, memory[kind])
            seconds[kind].append(time.perf_counter() - began)
        folder.cleanup()
        if scores_by_kind["whole"] != scores_by_kind["again"] or not np.array_equal(meteors["one"], meteors["two"]):
            raise ValueError("scoring: scores differ between a first and a second evaluation, or by METEOR's processes")
    where = this_environment(usable_cores())
    size = f"{config.pairs} predictions, {config.references} references each, Java's start included"
    apart = max(abs(scores_here.overall[name] - official[name]) for name in official)
    yield Measurement(
        part="scoring",
        title=f"scoring a split, here over pycocoevalcap ({size})",
        unit="s",
        aim="here below 60 s",
        above=seconds["own"],
        below=seconds["official"],
        more={"parts": parts, "official_parts": official_parts, "largest_difference_of_a_score": apart},
        environment=where,
    )
    yield Measurement(
        part="scoring",
        title=f"a whole evaluation with {len(evaluation.baselines)} baselines, {len(evaluation.subsets)} subsets, "
        "breakdowns "
        f"and intervals over scoring alone ({size})",
        unit="s",
        aim="below 60 s",
        above=seconds["whole"],
        below=seconds["own"],
        more={"parts": evaluation.seconds},
        environment=where,
    )
    yield Measurement(
        part="scoring",
        title=f"a second evaluation of the same references over the first ({size})",
        unit="s",
        aim="",
        above=seconds["again"],
        below=seconds["whole"],
        environment=where,
    )
    yield Measurement(
        part="scoring",
        title=f"METEOR in two processes over one, with the paraphrases of the words that occur ({size})",
        unit="s",
        aim="",
        above=seconds["two"],
        below=seconds["one"],
        more={"peak_mib_per_process": memory},
        environment=where,
    )


def _meteor(
    references: dict[str, list[str]],
    captions: dict[str, str],
    table: Paraphrases | None,
    processes: int,
    memory: list[float],
) -> np.ndarray:
    """METEOR's numbers of all captions; appends the peak memory of its largest process."""
    meteor = java.Meteor(table, processes)
    try:
        tokens = iter(java.tokenize([*captions.values(), *(text for texts in references.values() for text in texts)]))
        hypotheses = {name: next(tokens) for name in captions}
        numbers = meteor.statistics(
            {name: [next(tokens) for _ in texts] for name, texts in references.items()}, hypotheses
        )
        memory.append(max(peak_memory_mib(process) for process in meteor.pids))
        return numbers
    finally:
        meteor.close()


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
            Prediction(
                pair_id=f"{i:06d}",
                caption=caption,
                references=texts[:references],
                change_type=kind,
                viewpoint_iou=float(rng.uniform(0.2, 0.8)) if kind != NO_CHANGE else None,
            )
        )
    return predictions


def _thing(rng: np.random.Generator) -> Thing:
    attributes = {name: str(rng.choice(_VALUES[name])) for name in ATTRIBUTES}
    return Thing(**attributes, radius=1.0, x=0.0, y=0.0, turn=0.0)


def _caption(kind: str, template: int, thing: Thing, other: Thing, value: str, rng: np.random.Generator) -> str:
    named, anchor = (tuple(SUBSETS[int(rng.integers(5))]) for _ in range(2))
    if rng.random() < 0.5:
        description = SceneDescription(named, str(rng.choice(_RELATIONS)), other, anchor)
    else:
        description = SceneDescription(named)
    word = str(rng.choice(SYNONYMS[value])) if value in SYNONYMS else value
    return TEMPLATES[kind][template].format(d=phrase(thing, description, rng), v=word)


def _official(references: dict[str, list[str]], captions: dict[str, str]) -> tuple[dict[str, float], dict[str, float]]:
    """The scores of ``pycocoevalcap``'s own classes, and the seconds of each part."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    path = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{Path(java.java()).parent}{os.pathsep}{path}"  # pycocoevalcap runs the first `java` in PATH
    spent: dict[str, float] = {}
    scores: dict[str, float] = {}
    try:
        began = time.perf_counter()
        gts = PTBTokenizer().tokenize({name: [{"caption": c} for c in texts] for name, texts in references.items()})
        res = PTBTokenizer().tokenize({name: [{"caption": text}] for name, text in captions.items()})
        spent["tokenising"] = time.perf_counter() - began
        for name, scorer in (("BLEU", Bleu(4)), ("METEOR", None), ("ROUGE-L", Rouge()), ("CIDEr", Cider())):
            began = time.perf_counter()
            value, _ = (scorer or Meteor()).compute_score(gts, res)
            spent[name] = time.perf_counter() - began
            scores |= dict(zip(BLEU_ORDERS, map(float, value), strict=True)) if name == "BLEU" else {name: float(value)}
    finally:
        os.environ["PATH"] = path
    return scores, spent
