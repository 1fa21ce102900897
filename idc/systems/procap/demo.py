"""ProCap on rendered pairs, from rendering to a page with scores: the steps of `make demo` and its summary."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONFIGS = "jobs/configs"
_NEVER_ON_RAY = ("jobs/calibrate.py", "jobs/report.py")
"""Jobs without ``--local``."""
RESOURCES = "resources.json"
"""Name of the file in runs/FOLDER with the memory and time line of the steps."""


def steps(
    folder: str, seeds: list[int], clevr_change: str | None, *, on_ray: bool = False
) -> Iterator[tuple[str, list[str]]]:
    """The commands in order, as (title, arguments).

    Args:
        folder: name of the demo's folder under data/ and runs/.
        seeds: training seeds; each is trained, calibrated and evaluated.
        clevr_change: folder with CLEVR-Change in its official layout, which is captioned too.
        on_ray: the jobs run on Ray; without, each in processes of this machine, which is faster on a single one.
    """
    for title, command in _steps(folder, seeds, clevr_change):
        yield title, command if on_ray or command[0] in _NEVER_ON_RAY else [*command, "--local"]


def _steps(folder: str, seeds: list[int], clevr_change: str | None) -> Iterator[tuple[str, list[str]]]:
    pairs, procedures, runs = f"data/{folder}/pairs", f"data/{folder}/procedures", f"runs/{folder}"
    yield "render pairs", ["jobs/render.py", "--config", f"{CONFIGS}/render/demo.yaml", f"out={pairs}"]
    tokenizer = f"{runs}/tokenizer/artifact"
    yield "train the image tokenizer", [
        "jobs/train_tokenizer.py", "--config", f"{CONFIGS}/vision/tokenizer_demo.yaml",
        f"runs={runs}", f"pairs={pairs}",
    ]  # fmt: skip
    build = [f"build.pairs={pairs}", f"build.tokenizer={tokenizer}", f"procedures={procedures}"]
    yield "build procedures", [
        "jobs/build_procedures.py", "--config", f"{CONFIGS}/procap/procedures_demo.yaml", *build,
    ]  # fmt: skip
    for seed in seeds:
        of = f" (seed {seed})" if len(seeds) > 1 else ""
        common = [f"runs={runs}", f"procedures={procedures}", f"train.seed={seed}"]
        yield f"ProCap stage 1{of}", [
            "jobs/pretrain_procap.py", "--config", f"{CONFIGS}/procap/pretrain_demo.yaml",
            *common, f"name=pretrain-{seed}",
        ]  # fmt: skip
        yield f"ProCap stage 2{of}", [
            "jobs/finetune_procap.py", "--config", f"{CONFIGS}/procap/finetune_demo.yaml",
            *common, f"name=finetune-{seed}", f"pretrained={runs}/pretrain-{seed}/artifact",
        ]  # fmt: skip
        artifact = f"{runs}/finetune-{seed}/artifact"
        yield f"calibrate{of}", ["jobs/calibrate.py", f"artifact={artifact}", f"pairs={pairs}", "report_split=test"]
        yield f"evaluate on the test split{of}", [
            "jobs/evaluate.py", f"artifact={artifact}", f"pairs={pairs}", f"out={runs}/finetune-{seed}/evaluation",
            "change_maps=true",
        ]  # fmt: skip
    evaluations = ",".join(f"{runs}/finetune-{seed}/evaluation" for seed in seeds)
    real = []
    if clevr_change is not None:
        first = f"{runs}/finetune-{seeds[0]}"
        real_pairs, real_procedures = f"data/{folder}/clevr_change", f"data/{folder}/clevr_change_procedures"
        yield "import CLEVR-Change", [
            "jobs/import_dataset.py", "format=clevr_change", f"source={Path(clevr_change).resolve()}",
            f"out={real_pairs}",
        ]  # fmt: skip
        yield "build procedures of CLEVR-Change", [
            "jobs/build_procedures.py", "--config", f"{CONFIGS}/procap/procedures_demo.yaml",
            f"build.pairs={real_pairs}", f"build.tokenizer={tokenizer}", f"build.vocabulary={procedures}",
            f"procedures={real_procedures}",
        ]  # fmt: skip
        yield "caption CLEVR-Change", [
            "jobs/evaluate.py", f"artifact={first}/artifact", f"pairs={real_pairs}", "split=all",
            f"out={first}/clevr_change", "constant_candidates=0", "nearest_train_pairs=0",
        ]  # fmt: skip
        text = "Original CLEVR-Change images without captions: never trained on."
        real = [
            f"real=[{{title: CLEVR-Change, text: '{text}', evaluation: {first}/clevr_change, pairs: {real_pairs}, "
            f"procedures: {real_procedures}}}]"
        ]
    yield "write the page", [
        "jobs/report.py", f"out={runs}/report.html", f"evaluations=[{evaluations}]", f"pairs={pairs}",
        f"procedures={procedures}", f"tokenizer={tokenizer}", "title=ProCap on rendered pairs",
        f"imagine={runs}/finetune-{seeds[0]}/artifact", f"resources={runs}/{RESOURCES}",
        f"runs={{tokenizer: {runs}/tokenizer, stage 1: {runs}/pretrain-{seeds[0]}, "
        f"stage 2: {runs}/finetune-{seeds[0]}}}", *real,
    ]  # fmt: skip


def summary(folder: str, seeds: list[int]) -> dict[str, Any]:
    """Scores and baselines, mean and deviation over the seeds, and the paths of artifact and page."""
    from idc.captioning.calibration import Calibration
    from idc.evaluation.record import aggregate, load

    runs = Path("runs") / folder
    evaluations = [load(runs / f"finetune-{seed}" / "evaluation") for seed in seeds]
    found = aggregate(evaluations)
    first = evaluations[0]
    stages = {"tokenizer": "tokenizer", "stage_1": f"pretrain-{seeds[0]}", "stage_2": f"finetune-{seeds[0]}"}
    calibration = Calibration.read(runs / f"finetune-{seeds[0]}" / "artifact")
    steps = {
        stage: json.loads((runs / name / "result.json").read_text(encoding="utf-8"))["seconds_per_step"]
        for stage, name in stages.items()
    }
    return {
        "pairs": first.pairs,
        "seeds": seeds,
        "scores": {name: _rounded(value) for name, value in found.scores.items()},
        "baselines": {
            baseline: {name: round(value.mean, 4) for name, value in scores.items()}
            for baseline, scores in found.baselines.items()
        },
        "ceiling": {name: round(value, 4) for name, value in first.ceiling.scores.items()} if first.ceiling else None,
        "change_type_accuracy": _rounded(found.type_accuracy) if found.type_accuracy else None,
        "change_type_chance": round(first.types.chance_most_frequent, 4) if first.types else None,
        "change_maps": first.change_maps.scores if first.change_maps else None,
        "changed_probability": calibration.quality["test"].model_dump() if calibration else None,
        "seconds_per_step": {stage: round(seconds, 4) for stage, seconds in steps.items()},
        "artifact": str(runs / f"finetune-{seeds[0]}" / "artifact"),
        "report": str(runs / "report.html"),
    }


def _rounded(spread: Any) -> dict[str, float]:
    return {"mean": round(spread.mean, 4), "std": round(spread.std, 4)}


def closing(result: dict[str, Any], folder: str) -> list[str]:
    """The five closing lines: score, page, how to serve, how to caption, all figures."""
    baseline = max(scores["CIDEr"] for scores in result["baselines"].values())
    own = "" if folder == "demo" else f' SERVE="models.demo={result["artifact"]}"'
    return [
        f"score    CIDEr {result['scores']['CIDEr']['mean']:.3f} on {result['pairs']} held-out pairs; "
        f"best baseline {baseline:.3f}",
        f"page     {result['report']}",
        f"serve    make serve{own}",
        f"caption  .venv/bin/python jobs/caption.py --artifact {result['artifact']} BEFORE AFTER",
        f"figures  {Path('runs') / folder / 'result.json'}",
    ]


def advice(folder: str) -> str:
    """What to do after a step failed."""
    return (
        "The same command runs again and skips the finished steps. If this folder was made by another version or with "
        f"other settings, give another name (--folder NAME), or remove data/{folder} and runs/{folder}."
    )
