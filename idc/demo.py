"""`make demo`: two captioners on the same rendered pairs, from rendering to a page with scores. The steps, by the names
of their jobs, and the summary at the end.

ProCap is the published system, TwinCap the trained baseline. The commands that the demo ends with name the one with the
better CIDEr on the validation split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from idc.cores import usable_cores

CONFIGS = "jobs/configs"
_NEVER_ON_RAY = ("jobs/calibrate.py", "jobs/report.py")
"""Jobs without ``--local``."""
RESOURCES = "resources.json"
"""Name of the file in runs/FOLDER with the memory and time line of the steps."""
RUNS = {"TwinCap": "twincap", "ProCap": "finetune"}
"""Captioner -> first part of the names of its runs; the seed follows."""


class DemoStep(NamedTuple):
    """A command of the demo.

    Attributes:
        title: shown on the terminal.
        command: script and arguments.
        queue: steps of the two queues run at the same time, each queue in order and on half of the cores (not on Ray).
    """

    title: str
    command: list[str]
    queue: Literal[1, 2] | None = None


def steps(
    folder: str, seeds: Sequence[int], clevr_change: str | None = None, *, on_ray: bool = False
) -> Iterator[DemoStep]:
    """The commands in order.

    Args:
        folder: name of the demo's folder under data/ and runs/.
        seeds: training seeds; with each, both captioners are trained, calibrated and evaluated.
        clevr_change: folder with CLEVR-Change in its official layout, which is captioned too.
        on_ray: the jobs run on Ray, one after another; without, each in processes of this machine, which is faster on a
            single one.
    """
    for step in _steps(folder, seeds, clevr_change, [] if on_ray else [f"train.cpus_per_worker={_each_of_two()}"]):
        script = step.command[0]
        if on_ray:
            yield step._replace(queue=None)
        elif script in _NEVER_ON_RAY:
            yield step
        else:
            yield step._replace(command=[*step.command, "--local"])


def _each_of_two() -> int:
    """Threads of a training next to another one: half of the cores, and no more than the presets take."""
    return max(1, min(2, usable_cores() // 2))


def _steps(folder: str, seeds: Sequence[int], clevr_change: str | None, half: list[str]) -> Iterator[DemoStep]:
    """The steps; ``half``: settings of a training on half of the cores. Two trainings of one thread each see more
    samples in a second than one of two."""
    pairs, procedures, runs = f"data/{folder}/pairs", f"data/{folder}/procedures", f"runs/{folder}"
    yield DemoStep("render pairs", ["jobs/render.py", "--config", f"{CONFIGS}/render/demo.yaml", f"out={pairs}"])
    for seed in seeds:
        yield from _twincap(runs, pairs, seed, f" (seed {seed})" if len(seeds) > 1 else "", half)
    tokenizer = f"{runs}/tokenizer/artifact"
    yield DemoStep("train the image tokenizer", [
        "jobs/train_tokenizer.py", "--config", f"{CONFIGS}/vision/tokenizer_demo.yaml",
        f"runs={runs}", f"pairs={pairs}", *half,
    ], queue=2)  # fmt: skip
    build = [f"build.pairs={pairs}", f"build.tokenizer={tokenizer}", f"procedures={procedures}"]
    yield DemoStep("build procedures", [
        "jobs/build_procedures.py", "--config", f"{CONFIGS}/procap/procedures_demo.yaml", *build,
    ], queue=2)  # fmt: skip
    for seed in seeds:
        yield from _procap(runs, pairs, procedures, seed, f" (seed {seed})" if len(seeds) > 1 else "", half)
    for seed in seeds:
        of = f" (seed {seed})" if len(seeds) > 1 else ""
        trained = f"trained_baseline={runs}/{RUNS['TwinCap']}-{seed}/evaluation"
        run = f"{runs}/{RUNS['ProCap']}-{seed}"
        yield DemoStep(f"evaluate ProCap on the test split{of}", [*_evaluate(run, pairs), trained])
    real = []
    if clevr_change is not None:
        source, images = str(Path(clevr_change).resolve()), f"data/{folder}/clevr_change"
        yield DemoStep("import CLEVR-Change", [
            "jobs/import_dataset.py", "format=clevr_change", f"source={source}", f"out={images}",
        ])  # fmt: skip
        yield DemoStep("build procedures of CLEVR-Change", [
            "jobs/build_procedures.py", "--config", f"{CONFIGS}/procap/procedures_demo.yaml",
            f"build.pairs={images}", f"build.tokenizer={tokenizer}", f"build.vocabulary={procedures}",
            f"procedures={images}_procedures",
        ])  # fmt: skip
        for name, first in RUNS.items():
            run = f"{runs}/{first}-{seeds[0]}"
            yield DemoStep(f"{name} captions CLEVR-Change", [
                "jobs/evaluate.py", f"artifact={run}/artifact", f"pairs={images}", "split=all",
                f"out={run}/clevr_change", "constant_candidates=0", "nearest_train_pairs=0",
            ])  # fmt: skip
            films = f", procedures: {images}_procedures" if name == "ProCap" else ""
            real.append(
                f"{{title: CLEVR-Change by {name}, text: 'Original images without captions: never trained on.', "
                f"evaluation: {run}/clevr_change, pairs: {images}{films}}}"
            )
    evaluations = {
        name: "[" + ",".join(f"{runs}/{first}-{seed}/evaluation" for seed in seeds) + "]"
        for name, first in RUNS.items()
    }
    yield DemoStep("write the page", [
        "jobs/report.py", f"out={runs}/report.html", f"evaluations={evaluations['TwinCap']}",
        f"compare.ProCap={evaluations['ProCap']}", f"pairs={pairs}",
        f"procedures={procedures}", f"tokenizer={tokenizer}", "title=TwinCap and ProCap on rendered pairs",
        f"imagine={runs}/finetune-{seeds[0]}/artifact", f"resources={runs}/{RESOURCES}",
        f"runs={{TwinCap: {runs}/twincap-{seeds[0]}, tokenizer: {runs}/tokenizer, "
        f"ProCap stage 1: {runs}/pretrain-{seeds[0]}, ProCap stage 2: {runs}/finetune-{seeds[0]}}}",
        *([f"real=[{', '.join(real)}]"] if real else []),
    ])  # fmt: skip


def _twincap(runs: str, pairs: str, seed: int, of: str, half: list[str]) -> Iterator[DemoStep]:
    run = f"{runs}/{RUNS['TwinCap']}-{seed}"
    yield DemoStep(f"TwinCap{of}", [
        "jobs/train_twincap.py", "--config", f"{CONFIGS}/twincap/demo.yaml", f"runs={runs}", f"train.seed={seed}",
        f"pairs={pairs}", f"name={Path(run).name}", *half,
    ], queue=1)  # fmt: skip
    yield DemoStep(f"calibrate TwinCap{of}", _calibrate(run, pairs), queue=1)
    yield DemoStep(f"evaluate TwinCap on the test split{of}", _evaluate(run, pairs), queue=1)


def _procap(runs: str, pairs: str, procedures: str, seed: int, of: str, half: list[str]) -> Iterator[DemoStep]:
    run = f"{runs}/{RUNS['ProCap']}-{seed}"
    common = [f"runs={runs}", f"train.seed={seed}", f"procedures={procedures}", *half]
    yield DemoStep(f"ProCap stage 1{of}", [
        "jobs/pretrain_procap.py", "--config", f"{CONFIGS}/procap/pretrain_demo.yaml", *common, f"name=pretrain-{seed}",
    ], queue=2)  # fmt: skip
    yield DemoStep(f"ProCap stage 2{of}", [
        "jobs/finetune_procap.py", "--config", f"{CONFIGS}/procap/finetune_demo.yaml", *common,
        f"name={Path(run).name}", f"pretrained={runs}/pretrain-{seed}/artifact",
    ], queue=2)  # fmt: skip
    yield DemoStep(f"calibrate ProCap{of}", _calibrate(run, pairs), queue=2)


def _calibrate(run: str, pairs: str) -> list[str]:
    return ["jobs/calibrate.py", f"artifact={run}/artifact", f"pairs={pairs}", "report_split=test"]


def _evaluate(run: str, pairs: str) -> list[str]:
    given = [f"artifact={run}/artifact", f"pairs={pairs}", f"out={run}/evaluation"]
    return ["jobs/evaluate.py", *given, "change_maps=true"]


def summary(folder: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Scores, claims and baselines of both captioners, mean and deviation over the seeds, the better captioner by
    validation, and the paths of artifact and page."""
    from idc.evaluation.record import load

    runs = Path("runs") / folder
    captioners = {name: _captioner(runs, first, seeds) for name, first in RUNS.items()}
    best = max(captioners, key=lambda name: captioners[name]["validation_CIDEr"])
    evaluation = load(runs / f"{RUNS[best]}-{seeds[0]}" / "evaluation")
    stages = {"tokenizer": "tokenizer", "ProCap, stage 1": f"pretrain-{seeds[0]}"}
    stages |= {name: f"{first}-{seeds[0]}" for name, first in RUNS.items()}
    ceiling = evaluation.ceiling
    per_step = {stage: _result(runs / name)["seconds_per_step"] for stage, name in stages.items()}
    return {
        "pairs": evaluation.pairs,
        "seeds": list(seeds),
        "captioner": best,
        "captioners": captioners,
        "baselines": {name: _rounded_all(other.scores) for name, other in evaluation.baselines.items()},
        "ceiling": _rounded_all(ceiling.scores) if ceiling else None,
        "change_type_chance": round(evaluation.types.chance_most_frequent, 4) if evaluation.types else None,
        "seconds_per_step": _rounded_all(per_step),
        "artifact": captioners[best]["artifact"],
        "report": str(runs / "report.html"),
    }


def _captioner(runs: Path, first: str, seeds: Sequence[int]) -> dict[str, Any]:
    """The figures of one captioner."""
    from idc.captioning.calibration import Calibration
    from idc.evaluation.record import aggregate, load, spread

    folders = [runs / f"{first}-{seed}" for seed in seeds]
    evaluations = [load(folder / "evaluation") for folder in folders]
    found, one = aggregate(evaluations), evaluations[0]
    results = [_result(folder) for folder in folders]
    calibration = Calibration.read(folders[0] / "artifact")
    return {
        "scores": {name: _rounded(value) for name, value in found.scores.items()},
        "validation_CIDEr": round(spread([result["metrics"]["CIDEr"] for result in results]).mean, 4),
        "change_type_accuracy": _rounded(found.type_accuracy) if found.type_accuracy else None,
        "claims": _claims(evaluations),
        "change_maps": one.change_maps.scores if one.change_maps else None,
        "changed_probability": calibration.quality["test"].model_dump() if calibration else None,
        "training_seconds": round(results[0]["seconds"], 1),
        "artifact": str(folders[0] / "artifact"),
    }


def _claims(evaluations: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Rate -> mean and deviation over the seeds, and the 95 % interval (Wilson) and the chance of the first seed."""
    from idc.evaluation.record import spread

    found = [one.hallucination for one in evaluations if one.hallucination is not None]
    if len(found) < len(evaluations):
        return {}
    claims = {}
    for name, rate in found[0].rates().items():
        low, high = found[0].interval(name)
        over = spread([own.rates()[name].rate for own in found])
        claims[name] = {
            **_rounded(over, 6),
            "interval": [round(low, 6), round(high, 6)],
            "chance": round(rate.chance, 6),
        }
    return claims


def _result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return found


def _rounded_all(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def _rounded(spread: Any, digits: int = 4) -> dict[str, float]:
    return {"mean": round(spread.mean, digits), "std": round(spread.std, digits)}


def closing(result: dict[str, Any], folder: str) -> list[str]:
    """The closing lines: each captioner's figures, the better one first, page, how to serve, how to caption, all
    figures."""
    names = sorted(result["captioners"], key=lambda name: name != result["captioner"])
    width = max(8, *map(len, names)) + 1
    lines = [f"{name:{width}}{_figures(result['captioners'][name])}" for name in names]
    untrained = max(scores["CIDEr"] for name, scores in result["baselines"].items() if name != "trained")
    lines[0] += f"; {result['pairs']} held-out pairs, best untrained baseline CIDEr {untrained:.3f}"
    own = "" if result["artifact"] == SERVED else f' SERVE="models.demo={result["artifact"]}"'
    ends = {
        "page": result["report"],
        "serve": f"make serve{own}",
        "caption": f".venv/bin/python jobs/caption.py --artifact {result['artifact']} BEFORE AFTER",
        "figures": str(Path("runs") / folder / "result.json"),
    }
    return [*lines, *(f"{name:{width}}{text}" for name, text in ends.items())]


SERVED = "runs/demo/twincap-0/artifact"
"""What serve/configs/demo.yaml serves."""


def _figures(captioner: Mapping[str, Any]) -> str:
    """CIDEr, right type and right object with their intervals."""
    parts = [f"CIDEr {captioner['scores']['CIDEr']['mean']:.3f}"]
    for label, name in (("right type", "change type"), ("right object", "object")):
        if rate := captioner["claims"].get(name):
            low, high = (100 * end for end in rate["interval"])
            parts.append(f"{label} {100 * rate['mean']:.1f} % ({low:.1f} to {high:.1f})")
    return ", ".join(parts)


def advice(folder: str) -> str:
    """What to do after a step failed."""
    return (
        "The same command runs again and skips the finished steps. If this folder was made by another version or with "
        f"other settings, give another name (--folder NAME), or remove data/{folder} and runs/{folder}."
    )
