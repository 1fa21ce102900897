"""The whole way on one machine: pairs, tokenizer, ProCap in two stages, scores beside baselines, a page (`make demo`).

    python jobs/demo.py
    python jobs/demo.py --seeds 0 1 2
    python jobs/demo.py --clevr-change DIR    caption the official images in DIR too (no captions needed)

Starts a local Ray with its dashboard and submits the project's own jobs to it, one after another, through the Ray Jobs
API. What is done already is not done again. It prints one line for each step, whose output is in runs/demo/logs, and
ends with five lines: score and baseline, the page, how to serve, how to caption, and the file with all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = "jobs/configs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="train and evaluate for each (default: 0)")
    parser.add_argument("--clevr-change", metavar="DIR", help="CLEVR-Change's official layout, to be captioned too")
    parser.add_argument("--folder", default="demo", help="the demo's folder under data/ and runs/ (default: demo)")
    args = parser.parse_args()
    from cluster.config import ClusterConfig
    from cluster.session import session, submit
    from idc.config import enter_root

    enter_root()
    start = time.time()
    memory = PeakMemory()
    timings: dict[str, float] = {}
    runs = Path("runs") / args.folder
    commands = list(steps(args.folder, args.seeds, args.clevr_change))
    os.environ.pop("RAY_ADDRESS", None)  # the demo's own Ray, not another one that is set
    print(f"{len(commands)} steps; the output of each is in {runs / 'logs'}", flush=True)
    with session(ClusterConfig(dashboard=True)) as url:
        assert url is not None
        print(f"Ray dashboard: {url}", flush=True)
        for number, (title, command) in enumerate(commands, start=1):
            line = StepLine(f"[{number}/{len(commands)}] {title}", runs / "logs" / f"{number:02d}.log")
            try:
                with line:
                    line.write(shlex.join(command) + "\n")
                    run = shlex.join([sys.executable, *map(script_or_preset, command)])
                    submit(url, f"cd {shlex.quote(str(Path.cwd()))} && {run}", line.write)
            except RuntimeError as error:
                raise SystemExit(f"demo: {error}; the end of {line.log}:\n{line.end()}") from None
            timings[title] = round(line.seconds, 1)
    result = summary(args.folder, args.seeds)
    result |= {"seconds": round(time.time() - start, 1), "peak_memory_gib": memory.stop(), "seconds_of": timings}
    figures = runs / "result.json"
    figures.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n".join(closing(result, args.folder)))


def steps(folder: str, seeds: list[int], clevr_change: str | None) -> Iterator[tuple[str, list[str]]]:
    """What to run, in order: a title and a command line."""
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
        f"imagine={runs}/finetune-{seeds[0]}/artifact",
        f"runs={{tokenizer: {runs}/tokenizer, stage 1: {runs}/pretrain-{seeds[0]}, "
        f"stage 2: {runs}/finetune-{seeds[0]}}}", *real,
    ]  # fmt: skip


def script_or_preset(argument: str) -> str:
    """The path of a job's script or preset, wherever the demo runs; data and runs are relative to the working
    directory."""
    return argument if not argument.startswith("jobs/") or Path(argument).exists() else str(ROOT / argument)


def summary(folder: str, seeds: list[int]) -> dict[str, Any]:
    """Scores and baselines, mean and deviation over the seeds, and where things are."""
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
    """The five lines at the end."""
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


class StepLine:
    """The line of a step on the terminal, and its log. On a terminal the line also shows the last line of the log."""

    def __init__(self, title: str, log: Path):
        self.title, self.log = title, log
        self.seconds = 0.0

    def __enter__(self) -> StepLine:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.log.open("w", encoding="utf-8")
        self._began = time.time()
        self._live = sys.stdout.isatty()
        if not self._live:
            print(self.title, end="", flush=True)
        return self

    def write(self, text: str) -> None:
        """Take a piece of the step's output."""
        self._file.write(text)
        self._file.flush()
        lines = [line for line in text.replace("\r", "\n").splitlines() if line.strip()]
        if self._live and lines:
            last = re.sub(r"\x1b\[[0-9;]*m|^\(.*?pid=\d+.*?\) ?", "", lines[-1])
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{f'{self.title}: {last}'[:width]}", end="", flush=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        self.seconds = time.time() - self._began
        ended = "failed" if kind is not None else f"{self.seconds:.0f} s"
        print(f"\r\x1b[K{self.title}: {ended}" if self._live else f": {ended}", flush=True)

    def end(self, lines: int = 20) -> str:
        """The last lines of the log."""
        text = self.log.read_text(encoding="utf-8").replace("\r", "\n")
        return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


class PeakMemory:
    """The most memory that this process and its descendants, Ray's among them, had at a time: the sum of their
    proportional set sizes, in which a page that several share counts once. Sampled once a second."""

    def __init__(self) -> None:
        import psutil

        self._process = psutil.Process()
        self._most = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while True:
            self._most = max(self._most, self._now())
            if self._done.wait(1.0):
                return

    def _now(self) -> int:
        import psutil

        total = 0
        for process in [self._process, *self._process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
                total += process.memory_full_info().pss
        return total

    def stop(self) -> float:
        """The peak in GiB."""
        self._done.set()
        self._thread.join()
        return round(self._most / 2**30, 2)


if __name__ == "__main__":
    main()
