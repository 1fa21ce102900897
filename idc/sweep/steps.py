"""The steps that the sweeps of all systems share: a training, then evaluation, baselines and captioning speed.

A system's ``sweep.py`` makes its trainings by :func:`train_step` and hands them to :func:`with_evaluation`. A step's
name depends on the settings and inputs that determine its result, files by content and not by path.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from idc.captioning.loading import CaptionerLoader, LoadConfig
from idc.config import missing
from idc.data.images import decode_image
from idc.data.store import fingerprint, iter_rows, read_manifest
from idc.evaluation.config import AskJob, EvaluateJob
from idc.evaluation.job import finished_evaluation, scoring_fingerprint
from idc.evaluation.job import run_evaluation as score
from idc.evaluation.judge import MODEL, JudgeJob, JudgeSection
from idc.evaluation.judge import run_judge as ask_judge
from idc.evaluation.record import load_predictions
from idc.sweep.chain import Step, TrialConfig, TrialSteps
from idc.training.config import OPERATIONAL, TrainConfig, TrainingJob
from idc.training.hashing import content_or_id

if TYPE_CHECKING:
    from idc.data.pipeline import Runner

WRAP_BASE = "idc.systems.zeroshot.wrap:wrap_step"
"""Entry of a step of any vision-language system's sweep: the artifact of its base model as it is."""
_TIMED_PAIRS, _ROUNDS = 32, 5
_JUDGE_OPERATIONAL = {*JudgeSection.SET_OUTSIDE, "api_key_variable", "concurrency", "attempts", "timeout_s"}


def train_step(
    kind: str,
    job: TrainingJob,
    inputs: Mapping[str, Any],
    store: str,
    depends: Sequence[str],
    models: Sequence[str] = (),
) -> Step:
    """A training as a step; its artifact is ``<store>/<step.name>/artifact``.

    Args:
        kind: first part of the step's name.
        job: the config of the training; it also has ``train``.
        inputs: settings of ``job`` that the chain fills in: folders, results of earlier steps. ``depends`` represents
            them in the step's name.
        store: folder of all steps.
        depends: fingerprints of its data and names of earlier steps.
        models: settings of ``job`` that name a model by folder or hub id; they count by content.
    """
    settings = job.model_dump(mode="json", exclude={*inputs, "name", "runs", "train"})
    read = {name: content_or_id(settings[name]) for name in models if settings.get(name) is not None}
    train: TrainConfig = job.train  # type: ignore[attr-defined]
    learned = train.model_dump(mode="json", exclude=set(OPERATIONAL))
    name = f"{kind}-{fingerprint({**settings, **read}, learned, list(depends))[:12]}"
    return Step(
        name=name,
        entry=job.ENTRY,
        payload={**settings, **inputs, "name": name, "runs": store},
        train=train,
        cpus=train.num_workers * train.cpus_per_worker,
        gpus=train.num_workers * train.gpus_per_worker,
    )


def with_evaluation(
    trial: TrialConfig,
    work: Sequence[Step],
    store: str,
    *,
    max_tokens: int,
    gpus: float,
    judge: JudgeSection | None = None,
    questions: Step | None = None,
) -> TrialSteps:
    """These steps of a trial, followed by evaluation, baselines and speed of the last one's artifact.

    Args:
        work: the steps of the system; the last one makes the artifact of a captioner.
        store: folder of all steps.
        max_tokens: tokens of the longest caption, for the speed.
        gpus: number of GPUs for captioning; without any it runs on the CPU.
        judge: a language model that judges the captions; None for no judgement.
        questions: the step whose folder has questions that are put to the captioner; None for no questions.

    Raises:
        ValueError: the pairs cannot be read.
    """
    pairs, evaluate = trial.pairs, trial.evaluate
    last = work[-1].name
    artifact, device = f"{store}/{last}/artifact", "cuda" if gpus else "cpu"
    settings = evaluate.model_dump(mode="json", exclude=set(evaluate.SET_OUTSIDE))
    without = {"constant_candidates": 0, "nearest_train_pairs": 0, "trained_baseline": None}
    scored = evaluate.model_copy(update={"pairs": pairs})
    evaluation = Step(
        name=f"evaluation-{fingerprint(last, scoring_fingerprint(scored.model_copy(update=without)))[:12]}",
        entry=f"{__name__}:evaluate_artifact",
        payload={"job": {**settings, **without, "pairs": pairs, "artifact": artifact}, "device": device},
        gpus=gpus,
    )
    baselines = None
    if evaluate.constant_candidates or evaluate.nearest_train_pairs or evaluate.trained_baseline:
        baselines = Step(
            name=f"baselines-{scoring_fingerprint(scored)[:12]}",
            entry=f"{__name__}:score_baselines",
            payload={"job": {**settings, "pairs": pairs}},
        )
    content = read_manifest(pairs, kind="pairs").fingerprint
    speed = Step(
        name=f"speed-{fingerprint(last, device, content, evaluate.split, evaluate.speed)[:12]}",
        entry=f"{__name__}:tokens_per_second",
        payload={
            "artifact": artifact, "pairs": pairs, "split": evaluate.split, "tokens": max_tokens, "device": device,
            "speed": evaluate.speed,
        },
        gpus=gpus,
    )  # fmt: skip
    judged = None if judge is None else _judge_step(judge, evaluation.name, store)
    answers = None
    if questions is not None:
        options = {"split": evaluate.split, "speed": evaluate.speed, "device": device}
        answers = Step(
            name=f"answers-{fingerprint(last, questions.name, options)[:12]}",
            entry=f"{__name__}:score_questions",
            payload={"artifact": artifact, "instructions": f"{store}/{questions.name}", **options},
            gpus=gpus,
        )
    return TrialSteps(tuple(work), evaluation, baselines, speed, judged, answers)


def _judge_step(judge: JudgeSection, evaluation: str, store: str) -> Step:
    settings = judge.model_dump(mode="json", exclude=_JUDGE_OPERATIONAL)
    prompt = None if judge.prompt is None else Path(judge.prompt).read_text(encoding="utf-8")
    return Step(
        name=f"judge-{fingerprint(evaluation, {**settings, 'prompt': prompt})[:12]}",
        entry=f"{__name__}:judge_captions",
        payload={"job": {**judge.model_dump(mode="json", exclude={"out"}), "evaluation": f"{store}/{evaluation}"}},
    )


class TrainingTrial(TrialConfig):
    """One trial of a system that is one training on pairs: the settings of the training, and of its evaluation.

    A subclass names the section of the training in ``TRAININGS`` and has it as a field: the training's config, as a
    :class:`~idc.sweep.chain.TrialSection`.
    """

    more_pairs: tuple[str, ...] = ()
    """Further folders of which the training split is learned too."""

    def preflight(self) -> Iterator[str]:
        yield from super().preflight()
        for path in self.more_pairs:
            yield from missing(path, "more_pairs")

    def training_steps(
        self,
        store: str,
        max_tokens: int,
        *,
        inputs: Mapping[str, Any] | None = None,
        depends: Sequence[str] = (),
        models: Sequence[str] = (),
    ) -> TrialSteps:
        """The steps of the trial.

        Args:
            max_tokens: tokens of the longest caption.
            inputs, depends: those of :func:`train_step` that the training has besides its folders of pairs.
            models: those of :func:`train_step`.
        """
        section = self.TRAININGS[0]
        job = getattr(self, section)
        folders = {"pairs": self.pairs, "more_pairs": list(self.more_pairs)}
        content = [read_manifest(path, kind="pairs").fingerprint for path in (self.pairs, *self.more_pairs)]
        training = train_step(section, job, {**folders, **(inputs or {})}, store, [*content, *depends], models)
        return with_evaluation(self, [training], store, max_tokens=max_tokens, gpus=job.train.gpus_per_worker)


# ---------------------------------------------------------------------------------------------- entries, run by workers


def evaluate_artifact(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Caption and score, in this process, which has the step's cores and GPU; a finished evaluation is kept."""
    job = EvaluateJob.model_validate({**payload["job"], "out": folder})
    load = CaptionerLoader(job.artifact or "", job, gpus=payload["device"] == "cuda")
    return (finished_evaluation(job) or score(job, load)).scores


def score_questions(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """The scores of single questions times 100, by type, measure and class (``count/MAE/road``)."""
    from idc.evaluation.answers import ask_questions

    scores = ask_questions(AskJob.model_validate({**payload, "out": folder})).single
    assert scores is not None, "the questions are built with single ones"
    return {
        "/".join(filter(None, (measures.type, name, measures.of))): 100 * value
        for measures in scores.measures
        for name, value in measures.scores.items()
    }


def judge_captions(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """The mean of the judge's scores (0 to 100) of the captions, and of each part of the data set if it has parts.

    Raises:
        ValueError: answers without a score; the next start of the sweep asks for them again.
        EndpointError: the endpoint cannot be used; the answers so far are kept.
    """
    job = JudgeJob.model_validate({**payload["job"], "out": folder})
    result = ask_judge(job)
    if result.unreadable:
        pair, reply = next(iter(result.unreadable.items()))
        raise ValueError(
            f"{len(result.unreadable)} answers of {job.judge} have no score, the first for {pair}: {reply[:200]!r}; "
            "take another judge, or start the sweep again to ask for them again"
        )
    parts = {row.pair_id: row.part for row in load_predictions(job.evaluation)}
    of_part: dict[str, list[float]] = {}
    for pair, value in result.per_pair.items():
        if (part := parts[pair]) is not None:
            of_part.setdefault(part, []).append(value)
    return {"": result.scores[MODEL].mean, **{part: fmean(values) for part, values in of_part.items()}}


def score_baselines(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Score the baselines of the evaluated split, as part of an evaluation of the most frequent training caption."""
    pairs, split = payload["job"]["pairs"], payload["job"]["split"]
    frequency: Counter[str] = Counter()
    for row in iter_rows(pairs, ["captions"], "train"):
        frequency.update(row["captions"])
    if not frequency:
        raise ValueError(
            f"{pairs}: its training split has no captions, so there are no baselines; set "
            "settings.evaluate.constant_candidates=0 and settings.evaluate.nearest_train_pairs=0"
        )
    caption = frequency.most_common(1)[0][0]
    predictions = Path(folder) / "constant.jsonl"
    predictions.parent.mkdir(parents=True, exist_ok=True)
    of = None if split == "all" else split
    rows = [{"pair_id": row["pair_id"], "caption": caption} for row in iter_rows(pairs, ["pair_id"], of)]
    predictions.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    job = EvaluateJob.model_validate({**payload["job"], "out": folder, "predictions": str(predictions)})
    evaluation = finished_evaluation(job) or score(job)
    return {name: baseline.scores for name, baseline in evaluation.baselines.items()}


def tokens_per_second(payload: dict[str, Any], folder: str, run: Runner) -> dict[str, Any]:
    """Caption tokens per second as ProCap's official code counts them: pairs x longest caption, padding included, over
    the time from decoded images to words. The median of five rounds after one to warm up, alone on the machine. The
    official code always takes all steps; a decoder here may stop when all captions of the batch have ended.
    """
    split, device = payload["split"], payload["device"]
    captioner = CaptionerLoader(payload["artifact"], LoadConfig(device=device, speed=payload["speed"]))()
    pairs = iter_rows(payload["pairs"], ["before", "after"], None if split == "all" else split)
    rows = list(islice(pairs, _TIMED_PAIRS))
    if not rows:
        raise ValueError(f"{payload['pairs']} has no pairs of the split {split!r}")
    befores, afters = ([decode_image(row[role]) for row in rows] for role in ("before", "after"))
    seconds = []
    for _ in range(1 + _ROUNDS):
        started = time.perf_counter()
        captioner(befores, afters)  # returns words, so a GPU is done
        seconds.append(time.perf_counter() - started)
    rate = len(rows) * payload["tokens"] / median(seconds[1:])
    return {"tokens_per_second": rate, "seconds": seconds[1:], "pairs": len(rows)}
