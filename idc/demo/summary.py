"""The end of `make demo`: the figures of its captioners, and the closing lines, which name the captioner with the best
CIDEr on the validation split."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from idc.captioning.calibration import Calibration
from idc.demo.run import DEFAULT, LEADERBOARD, demo_systems, folders_of
from idc.evaluation.record import Evaluation, Spread, aggregate, load_evaluation, spread
from idc.report.leaderboard.scored_runs import read_scored_runs
from idc.training.tracker import tracked_runs
from idc.util.program import as_started


def demo_summary(folder: str, seeds: Sequence[int], systems: Sequence[str] = DEFAULT) -> dict[str, Any]:
    """Scores, claims and baselines of the captioners, mean and deviation over the seeds, the better captioner by
    validation, and the paths of artifact and pages."""
    runs, taking_part = Path("runs") / folder, demo_systems(systems)
    per_seed = folders_of(folder, seeds, taking_part[0].rendering)
    captioners: dict[str, dict[str, Any]] = {}
    for system in taking_part:
        runs_of = [system.captioners(folders) for folders in per_seed]
        captioners |= {name: _captioner([Path(of[name]) for of in runs_of]) for name in runs_of[0]}
        captioners[system.title]["figures"] = _rounded_all(system.figures(per_seed[0]))
    titles = [system.title for system in taking_part]
    best = max(titles, key=lambda name: captioners[name]["validation_CIDEr"])
    evaluated = Path(captioners[best]["artifact"]).parent / "evaluation"
    evaluation, page = load_evaluation(evaluated), read_scored_runs(evaluated).key
    upper_bound = evaluation.upper_bound
    stages = (stage for system in taking_part for stage in system.runs(per_seed[0]).items())
    per_step = {heading: _result(Path(run))["seconds_per_step"] for heading, run in stages}
    return {
        "pairs": evaluation.pairs,
        "seeds": list(seeds),
        "captioner": best,
        "captioners": captioners,
        "baselines": {name: _rounded_all(other.scores) for name, other in evaluation.baselines.items()},
        "upper_bound": _rounded_all(upper_bound.scores) if upper_bound else None,
        "change_type_chance": round(evaluation.types.chance_most_frequent, 4) if evaluation.types else None,
        "seconds_per_step": _rounded_all(per_step),
        "artifact": captioners[best]["artifact"],
        "report": str(runs / "report.html"),
        "leaderboard": str(runs / LEADERBOARD / f"{page}.html"),
    }


def _captioner(folders: Sequence[Path]) -> dict[str, Any]:
    evaluations = [load_evaluation(folder / "evaluation") for folder in folders]
    over_seeds, first = aggregate(evaluations), evaluations[0]
    results = [_result(folder) for folder in folders]
    calibration = Calibration.read(folders[0] / "artifact")
    return {
        "scores": {name: _rounded(value) for name, value in over_seeds.scores.items()},
        "validation_CIDEr": round(spread([result["metrics"]["CIDEr"] for result in results]).mean, 4),
        "change_type_accuracy": _rounded(over_seeds.type_accuracy) if over_seeds.type_accuracy else None,
        "claims": _claims(evaluations),
        "change_maps": first.change_maps.scores if first.change_maps else None,
        "changed_probability": calibration.quality["test"].model_dump() if calibration else None,
        "training_seconds": round(results[0]["seconds"], 1),
        "artifact": str(folders[0] / "artifact"),
        "figures": {},
    }


def _claims(evaluations: Sequence[Evaluation]) -> dict[str, dict[str, Any]]:
    """Rate -> mean and deviation over the seeds, and the 95 % interval (Wilson) and the chance of the first seed."""
    hallucinations = [evaluation.hallucination for evaluation in evaluations if evaluation.hallucination is not None]
    if len(hallucinations) < len(evaluations):
        return {}
    claims = {}
    for name, rate in hallucinations[0].rates().items():
        low, high = hallucinations[0].interval(name)
        over = spread([hallucination.rates()[name].rate for hallucination in hallucinations])
        claims[name] = {
            **_rounded(over, 6),
            "interval": [round(low, 6), round(high, 6)],
            "chance": round(rate.chance, 6),
        }
    return claims


def _result(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "result.json").read_text(encoding="utf-8"))
    return result


def _rounded_all(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}


def _rounded(value: Spread, digits: int = 4) -> dict[str, float]:
    return {"mean": round(value.mean, digits), "std": round(value.std, digits)}


def closing(result: dict[str, Any], folder: str) -> list[str]:
    """The closing lines: each captioner's figures, the better one first, page, how to serve, how to caption, the
    tracked runs, all figures."""
    names = sorted(result["captioners"], key=lambda name: name != result["captioner"])
    width = max(8, *map(len, names)) + 1
    lines = [f"{name:{width}}{_figures(result['captioners'][name])}" for name in names]
    untrained = max(scores["CIDEr"] for scores in result["baselines"].values())
    lines[0] += f"; {result['pairs']} held-out pairs, best untrained baseline CIDEr {100 * untrained:.1f}"
    ends = {
        "page": result["report"],
        "compare": result["leaderboard"],
        "serve": as_started(f".venv/bin/python -m serve.app models.demo={result['artifact']}"),
        "caption": as_started(f".venv/bin/python jobs/caption.py --artifact {result['artifact']} BEFORE AFTER"),
        "runs": f".venv/bin/{tracked_runs(f'sqlite:///runs/{folder}/mlflow.db', '1')}",
        "figures": str(Path("runs") / folder / "result.json"),
    }
    return [*lines, *(f"{name:{width}}{text}" for name, text in ends.items())]


def _figures(captioner: Mapping[str, Any]) -> str:
    """CIDEr, right type and right object with their intervals, and the system's own figures."""
    parts = [f"CIDEr {100 * captioner['scores']['CIDEr']['mean']:.1f}"]
    for label, name in (("right type", "change type"), ("right object", "object")):
        if rate := captioner["claims"].get(name):
            low, high = (100 * end for end in rate["interval"])
            parts.append(f"{label} {100 * rate['mean']:.1f} % ({low:.1f} to {high:.1f})")
    parts += [f"{name} {100 * value:.1f}" for name, value in captioner["figures"].items()]
    return ", ".join(parts)


def advice(folder: str) -> str:
    """Advice after a failed step."""
    return (
        "The same command runs again and skips the finished steps. If this folder was made by another version or with "
        f"other settings, give another name (--folder NAME), or remove data/{folder} and runs/{folder}."
    )
