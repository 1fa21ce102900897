"""How well measures of captions agree with the truth, over captions of systems and captions with planted errors.

On rendered pairs it is known what changed. The truth of a caption are its difference scores by rules
(:mod:`idc.metrics.difference_lists`). Compared with it are the scores of single captions by BLEU-4, METEOR, ROUGE-L,
CIDEr-D (document frequencies of the split) and judges, as evaluations have them, and the number of words.

Captions with planted errors (:mod:`idc.data.rendered.planted_errors`) are scored against all references of their pair.
So is the true caption that they are compared with. It is a further wording that is none of the pair's references:
leaving one of these out instead would change the references, and with them all scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from idc import logs
from idc.atomic import write_text
from idc.evaluation.agreement import (
    estimate,
    kendall,
    kendall_by_pair,
    mean_over,
    pairwise,
    pooled,
    preferred,
    spearman,
)
from idc.evaluation.config import CompareMeasuresJob
from idc.evaluation.measure_inputs import (
    MEASURES,
    Inputs,
    PlantedCaptions,
    captions_of_systems,
    plant,
    read_inputs,
    write_planted,
)
from idc.evaluation.measure_scores import Said, Scorer
from idc.evaluation.measured import LIMITS, RESULT, WORDS, Agreement, MeasuresRecord, Planted, PlantedError, sentences
from idc.evaluation.significance import SEED
from idc.metrics.difference_lists import DEVIATIONS, F1, INVENTED, PRECISION, PROTOCOL, RECALL, match_caption
from idc.progress import tracked

TRUTHS = (F1, PRECISION, RECALL, INVENTED)


def compare_measures(job: CompareMeasuresJob) -> MeasuresRecord:
    """Compare the measures, and write ``measures.json`` and the captions with planted errors.

    Raises:
        ValueError: names the folder that cannot be compared (:func:`read_inputs`, :func:`read_judges`).
        JavaError: Java does not work.
    """
    inputs = read_inputs(job)
    scorer = Scorer(job, inputs)
    said = {name: list(captions.items()) for name, captions in captions_of_systems(inputs, job.baselines).items()}
    baselines = [name for name in said if name not in inputs.evaluations]
    if unjudged := [judge for judge in scorer.judges for name in baselines if scorer.values(judge, said[name]) is None]:
        logs.event("measures", f"note: no baselines: {unjudged[0]} has not judged their captions")
        said = {name: captions for name, captions in said.items() if name in inputs.evaluations}
        baselines = []
    errors = plant(inputs, job.seed)
    write_planted(Path(job.out) / "planted", errors, inputs.references)
    unscored = [entry for name in baselines for entry in said[name]]
    unscored += [
        entry for captions in errors.values() for each in (captions.true, captions.wrong) for entry in each.items()
    ]
    scorer.add(unscored)

    truth = _truths(inputs, said)
    comparisons = int(pairwise(truth[F1], truth[F1]).total.sum())
    if not comparisons:
        raise ValueError(f"{job.pairs}: no two captions of a pair differ in true F1, so there is nothing to compare")
    values = {
        measure: np.array([scorer.values(measure, captions) for captions in said.values()])
        for measure in scorer.measures
    }
    of_set = _set_scores(inputs, said, values)
    agreement = _agreement(truth, values, of_set, job.resamples)
    spread = {measure: float(matrix.std()) for measure, matrix in values.items()}
    planted = {error: _planted(inputs, scorer, captions, spread, job.resamples) for error, captions in errors.items()}
    measured = MeasuresRecord(
        pairs=job.pairs,
        split=next(iter(inputs.evaluations.values())).split,
        count=len(inputs.ids),
        comparisons=comparisons,
        systems={
            name: {**{score: float(truth[score][row].mean()) for score in TRUTHS}, **of_set[name]}
            for row, name in enumerate(said)
        },
        baselines=baselines,
        agreement=agreement,
        errors=planted,
        sentences=sentences(agreement, planted, comparisons),
        limits=[text.format(protocol=PROTOCOL) for text in LIMITS],
        protocol=_protocol(job, inputs),
    )
    write_text(Path(job.out) / RESULT, measured.model_dump_json(indent=1) + "\n")
    return measured


def _truths(inputs: Inputs, said: Mapping[str, Sequence[Said]]) -> dict[str, np.ndarray]:
    """True score -> its values ``(S, P)``."""
    every = list(dict.fromkeys(entry for captions in said.values() for entry in captions))
    scores = {
        (pair, caption): match_caption(caption, inputs.truths[pair]).scores
        for pair, caption in tracked(every, len(every), "captions by the rules", "caption")
    }
    return {
        name: np.array([[scores[entry][name] for entry in captions] for captions in said.values()]) for name in TRUTHS
    }


def _set_scores(
    inputs: Inputs, said: Mapping[str, Sequence[Said]], values: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """System -> measure -> its score of the set: that of the evaluation, or the mean over the captions."""
    first = next(iter(inputs.evaluations.values()))
    scores = {}
    for row, name in enumerate(said):
        system_scores = inputs.evaluations[name].scores if name in inputs.evaluations else first.baselines[name].scores
        scores[name] = {
            measure: system_scores[measure] if measure in MEASURES else float(matrix[row].mean())
            for measure, matrix in values.items()
        }
    return scores


def _agreement(
    truth: Mapping[str, np.ndarray],
    values: Mapping[str, np.ndarray],
    of_set: Mapping[str, Mapping[str, float]],
    resamples: int,
) -> dict[str, Agreement]:
    """Measure -> its agreement, the most accurate one first."""
    f1 = truth[F1]
    decisions = {measure: pairwise(matrix, f1) for measure, matrix in values.items()}
    order = sorted(values, key=lambda measure: -float(decisions[measure].share()))
    best = next(decisions[measure] for measure in order if measure != WORDS)
    counted = f1.max(axis=0) > f1.min(axis=0)
    pairs = f1.shape[1]
    means = np.array([row.mean() for row in f1])
    agreement = {}
    for measure in tracked(order, len(order), "agreement", "measure"):
        matrix, decision = values[measure], decisions[measure]
        lead = None
        if decision is not best:
            lead = estimate(
                float(best.share() - decision.share()),
                lambda weights, decision=decision: best.share(weights) - decision.share(weights),  # type: ignore[misc]
                pairs,
                resamples,
            )
        agreement[measure] = Agreement(
            accuracy=estimate(float(decision.share()), decision.share, pairs, resamples),
            lead=lead,
            spearman=pooled(matrix, f1, spearman, resamples),
            kendall=pooled(matrix, f1, kendall, resamples),
            spearman_in_pair=mean_over(spearman(matrix, f1), counted, resamples),
            kendall_in_pair=mean_over(kendall_by_pair(matrix, f1), counted, resamples),
            with_precision=float(spearman(matrix.ravel(), truth[PRECISION].ravel())),
            with_recall=float(spearman(matrix.ravel(), truth[RECALL].ravel())),
            with_invented=float(spearman(matrix.ravel(), truth[INVENTED].ravel())),
            systems=kendall(np.array([of_set[name][measure] for name in of_set]), means),
        )
    return agreement


def _planted(
    inputs: Inputs, scorer: Scorer, captions: PlantedCaptions, spread: Mapping[str, float], resamples: int
) -> PlantedError:
    """Effect of one kind of error on every measure.

    Args:
        spread: measure -> standard deviation over the captions of all systems.
    """
    true, wrong = list(captions.true.items()), list(captions.wrong.items())
    measures = {}
    for measure in scorer.measures:
        better, worse = scorer.values(measure, true), scorer.values(measure, wrong)
        if better is None or worse is None:
            continue
        decisions = preferred(better, worse)
        fall = (better - worse) / spread[measure] if spread[measure] else np.zeros(len(better))
        measures[measure] = Planted(
            preferred=estimate(float(decisions.share()), decisions.share, len(true), resamples),
            fall=mean_over(fall, np.ones(len(true), bool), resamples),
        )
    f1 = [
        np.mean([match_caption(text, inputs.truths[pair]).scores[F1] for pair, text in entries])
        for entries in (true, wrong)
    ]
    example = max(captions.true, key=lambda pair: -abs(len(captions.true[pair]) - 90))
    return PlantedError(
        pairs=len(true),
        example=(captions.true[example], captions.wrong[example]),
        true_f1=(float(f1[0]), float(f1[1])),
        measures=measures,
    )


def _protocol(job: CompareMeasuresJob, inputs: Inputs) -> dict[str, str]:
    first = next(iter(inputs.evaluations.values())).protocol
    return {
        "truth": f"{PROTOCOL}: {DEVIATIONS}",
        "intervals": f"95 %, percentile bootstrap over the pairs, {job.resamples} resamples, seed {SEED}"
        if job.resamples
        else "none",
        "scores of captions": "sentence scores by pycocoevalcap's definitions against all references of the pair; "
        "CIDEr-D with the document frequencies of the split's references",
        "planted errors": f"seed {job.seed}; a true caption is a wording that is none of the references",
        **{name: str(first[name]) for name in ("tokenizer", "pycocoevalcap", "java") if name in first},
    }
