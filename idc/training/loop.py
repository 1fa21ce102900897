"""The training loop, written once for all systems.

Samples, seeds and numbers do not depend on the accumulation, the number of workers, the engine, or on how often the run
was interrupted. After a restart it resumes from the newest complete checkpoint in the run's folder, and log.jsonl is
the same as that of an undisturbed run.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from idc.training.config import TrainConfig, learning_rate
from idc.training.context import Context
from idc.training.data import Loaders, to_device
from idc.training.engines import Engine, make_engine, param_groups, unreadable
from idc.training.run_storage import COMPLETE
from idc.training.task import Task
from idc.util import logs
from idc.util.atomic import replacing, take_umask, write_text
from idc.util.progress import Progress

STATE_FILE = "state.json"
"""The loop's own state in a checkpoint, written by rank 0."""
Export = Callable[[dict[str, Tensor], dict[str, float]], None]
"""Writes the artifact from the weights (``Task.checkpoint_keys``) and their validation metrics; called on rank 0."""

_VALIDATION = 1 << 40


def fit(
    task: Task,
    loaders: Loaders,
    context: Context,
    train: TrainConfig,
    export: Export | None = None,
) -> dict[str, Any]:
    """Train ``task`` to the end of its run, from the start or from the run's newest checkpoint.

    Args:
        task: freshly built, with the same weights on all ranks or those of rank 0.
        loaders: training stream and validation split of this rank.
        context: where it runs.
        train: the settings.
        export: writes the artifact inside the run, with the best weights if ``train.keep_best``, else the last.

    Returns:
        ``steps``, ``loss``, ``metrics`` (the validation's, of the exported weights), ``best_step``, ``seconds``,
        ``seconds_per_step``, ``samples_per_second``, ``peak_rss_gib`` (on a GPU also ``peak_gpu_gib``),
        ``training_samples`` (the size of the training split), ``cores`` (of all workers).

    Raises:
        ValueError: if settings contradict the task, its data or the checkpoint, the checkpoint cannot be read, or the
            loss is not finite.
    """
    torch.set_num_threads(train.cpus_per_worker)
    if train.keep_best is not None and loaders.validation is not None:
        names = task.metric_names(loaders.validation.dataset)
        if names is not None:
            train.keep_best.chosen(names)  # refused now, not at the first validation
    run = _Run(task, loaders, context, train)
    if (checkpoint := context.latest_checkpoint()) is not None:
        run.resume(checkpoint)
    if run.log is not None:
        run.log.keep_until(run.step)
    run.train_steps()
    return run.finish(export)


class _Run:
    def __init__(self, task: Task, loaders: Loaders, context: Context, train: TrainConfig):
        groups, self.schedules = param_groups(task)
        self.group_names = [group["name"] for group in groups]
        self.task = task
        self.loaders = loaders
        self.context = context
        self.train = train
        self.tracker = context.tracker
        self.total = train.total_steps(len(loaders.train.dataset))
        self.engine: Engine = make_engine(task, groups, context, train)
        self.is_main = context.rank == 0
        self.step = 0
        self.best: dict[str, Any] | None = None
        self.metrics: dict[str, float] = {}
        self.last_loss = math.nan
        self.seconds = 0.0
        self.window = _Window(context)
        self.log = _JsonLines(context.run_dir / "log.jsonl") if self.is_main else None
        self.best_dir = context.run_dir / "best"
        self.kept_bests: list[int] = []
        """Step of the best weights in each of the checkpoints that are kept."""

    # -- restart -----------------------------------------------------------------------------------------------------

    def resume(self, folder: Path) -> None:
        """Load a complete checkpoint."""
        try:
            state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise unreadable(folder, error) from None
        if state["engine"] != self._engine_name():
            raise ValueError(
                f"the checkpoint {folder} was written by engine {state['engine']}, and the config sets "
                f"{self._engine_name()}; set train.engine and train.zero_stage back, or take another run name"
            )
        if differing := sorted(self.engine.keys.symmetric_difference(state["stored"])):
            raise ValueError(
                f"the checkpoint {folder} and the task do not store the same names, they differ in "
                f"{', '.join(differing[:8])}; set the config back, or take another run name"
            )
        if self.context.world_size != state["world_size"] and self.is_main:
            logs.event(
                "workers_changed",
                f"the checkpoint has {state['world_size']} workers, this run {self.context.world_size}",
            )
        self.engine.load(folder, state["world_size"])
        self.step = state["step"]
        self.best = state["best"]
        self.kept_bests = state["kept_bests"]
        self.metrics = state["metrics"]
        self.last_loss = state["loss"]
        self.seconds = state["seconds"]
        self.window.restore(state["window"])
        if self.is_main:
            text = f"resumed at step {self.step} of {self.total} from {folder}"
            logs.event("resumed", text, step=self.step, steps=self.total)

    def _engine_name(self) -> str:
        if self.train.engine == "torch":
            return "torch"
        return f"deepspeed-zero{self.train.zero_stage}"

    def save(self) -> None:
        """A checkpoint of this step, from all ranks. What a failed one has written is removed."""
        self.window.reduce()
        if self.best is not None:
            self.kept_bests = [*self.kept_bests, self.best["step"]][-self.train.keep_last :]
        folder = self.context.checkpoint_folder(self.step)
        try:
            self._write(folder)
        except BaseException:
            if not (folder / COMPLETE).exists():  # as when a lost machine's rank ends long after the run has gone on
                shutil.rmtree(folder, ignore_errors=True)
            raise
        self.context.report({"step": self.step, "loss": self.last_loss, **self.metrics}, folder)
        if self.is_main:
            logs.event("checkpoint", step=self.step, steps=self.total)
            self._drop_bests(set(self.kept_bests))

    def _write(self, folder: Path) -> None:
        self.engine.save(folder)
        if self.is_main:
            state = {
                "step": self.step,
                "world_size": self.context.world_size,
                "engine": self._engine_name(),
                "stored": sorted(self.engine.keys),
                "best": self.best,
                "kept_bests": self.kept_bests,
                "metrics": self.metrics,
                "loss": self.last_loss,
                "seconds": self.seconds,
                "window": self.window.state(),
            }
            (folder / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def _drop_bests(self, kept: set[int]) -> None:
        for path in self.best_dir.glob("*.safetensors"):
            if path not in {self._best_path(step) for step in kept}:
                path.unlink()

    # -- steps -------------------------------------------------------------------------------------------------------

    def train_steps(self) -> None:
        train = self.train
        if self.step >= self.total:
            return
        batches = self.loaders.train.batches(self.step * train.grad_accumulation)
        progress = Progress(self.total, done=self.step, show=self.is_main)
        clock = time.perf_counter()
        try:
            while self.step < self.total:
                rates = [learning_rate(schedule, self.step, self.total) for schedule in self.schedules]
                waited = 0.0
                for micro in range(train.grad_accumulation):
                    before = time.perf_counter()
                    batch = to_device(next(batches), self.context.device)
                    waited += time.perf_counter() - before
                    self._seed(micro)
                    loss, logs = self.engine.accumulate(batch)
                    self.window.add({"loss": loss, **logs}, 1 / train.grad_accumulation)
                norm = self.engine.step(rates)
                self.step += 1
                now = time.perf_counter()
                norms = {f"grad_norm/{name}": value for name, value in self.engine.group_norms.items()}
                self.window.add({"grad_norm": norm, **norms}, 1.0)
                self.window.count(now - clock, waited)
                self.seconds += now - clock
                last = self.step == self.total
                validate = last or (train.eval_every > 0 and self.step % train.eval_every == 0)
                validate &= self.loaders.validation is not None
                logged = self.step % train.log_every == 0
                if logged or validate or last:
                    self._log(rates, self.validate() if validate else {})
                if self.step % train.checkpoint_every == 0 or last or (logged and self.context.preemption_announced()):
                    self.save()
                progress.update(self.step, loss=self.last_loss)
                after = time.perf_counter()
                self.seconds += after - now
                clock = after
        finally:
            batches.close()
            progress.close()

    def _seed(self, micro: int) -> None:
        """Dropout depends on (seed, step, micro-batch, rank) alone, so that a restart needs no generator state."""
        entropy = (self.train.seed, self.step, micro, self.context.rank)
        torch.manual_seed(int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1))

    def _log(self, rates: list[float], metrics: dict[str, float]) -> None:
        means, seconds, waited, steps = self.window.take()
        self.last_loss = means["loss"]
        if not math.isfinite(self.last_loss):
            raise ValueError(
                f"the loss is {self.last_loss} at step {self.step}; lower the learning rate, or look at the data of "
                f"the steps since {self.step - steps}"
            )
        line = {
            "step": self.step,
            **means,
            **{f"lr/{name}": rate for name, rate in zip(self.group_names, rates, strict=True)},
            "seconds_per_step": seconds / max(1, steps),
            "samples_per_second": steps * self.train.batch_size / max(seconds, 1e-9),
            "data_wait_share": waited / max(seconds, 1e-9),
            **peak_memory(self.context.device),
            **{f"validation/{name}": value for name, value in metrics.items()},
        }
        if parts := [value for name, value in means.items() if name.startswith("seconds/")]:  # what a task times
            line["seconds/learning"] = line["seconds_per_step"] - sum(parts)
        if self.log is not None:
            self.log.write(line)
            logs.event("step", steps=self.total, **line)
            self.tracker.metrics({name: value for name, value in line.items() if name != "step"}, self.step)
            if metrics and self.tracker.watch is not None:
                self.tracker.watch(metrics, self.step)

    # -- validation and end ------------------------------------------------------------------------------------------

    def validate(self) -> dict[str, float]:
        """Metrics of the current weights, which are kept if they are the best so far."""
        assert self.loaders.validation is not None
        torch.manual_seed(self.train.seed + _VALIDATION)
        batches = (to_device(batch, self.context.device) for batch in self.loaders.validation)
        with self.engine.gathered_for_eval() as task:
            metrics = task.validate(batches, self.context)
        self.metrics = self.context.all_gather_object(metrics)[0]
        keep = self.train.keep_best
        if keep is not None:
            value = self.metrics[keep.chosen(self.metrics)]
            if keep.better(value, self.best["value"] if self.best else None):
                self.best = {"step": self.step, "value": value, "metrics": self.metrics}
                state = self.engine.full_state_dict()
                if self.is_main:
                    save_safetensors(state, self._best_path(self.step))
        return self.metrics

    def _best_path(self, step: int) -> Path:
        return self.best_dir / f"step_{step:08d}.safetensors"

    def finish(self, export: Export | None) -> dict[str, Any]:
        metrics = self.best["metrics"] if self.best else self.metrics
        validated = 0 if self.loaders.validation is None else len(self.loaders.validation.dataset)
        if self.is_main and metrics.get("distinct_captions") == 1 and validated > 1:
            text = f"the weights that are kept caption all {validated} validation pairs alike: they learned nothing"
            logs.event(
                "collapsed", f"{text} of the images; train longer, with a lower rate, or on more pairs", "warning"
            )
        if export is not None:
            state = self.engine.full_state_dict() if self.best is None else {}
            if self.is_main:
                if self.best is not None:
                    from safetensors.torch import load_file

                    state = load_file(self._best_path(self.best["step"]))
                export(state, metrics)
                self._drop_bests({self.best["step"]} if self.best is not None else set())
        self.context.barrier()
        return {
            "steps": self.step,
            "metrics": metrics,
            "best_step": self.best["step"] if self.best else self.step,
            "loss": self.last_loss,
            "seconds": self.seconds,
            "seconds_per_step": self.seconds / max(1, self.step),
            "samples_per_second": self.step * self.train.batch_size / max(self.seconds, 1e-9),
            **peak_memory(self.context.device),
            "training_samples": len(self.loaders.train.dataset),
            "cores": self.train.num_workers * self.train.cpus_per_worker,
        }


class _Window:
    """Sums since the last line of the log, kept on the device and averaged over the ranks when they are read."""

    def __init__(self, context: Context):
        self.context = context
        self._sums: dict[str, Tensor] = {}
        self._seconds = self._waited = 0.0
        self._steps = 0

    def add(self, values: dict[str, Tensor | float], share: float) -> None:
        for name, value in values.items():
            value = torch.as_tensor(value).detach().to(self.context.device, torch.float64) * share
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def count(self, seconds: float, waited: float) -> None:
        self._seconds += seconds
        self._waited += waited
        self._steps += 1

    def reduce(self) -> None:
        """Replace the sums by their means over the ranks; every rank must have logged the same names."""
        if self.context.world_size > 1 and self._sums:
            names = sorted(self._sums)
            stacked = torch.stack([self._sums[name] for name in names])
            dist.all_reduce(stacked)
            stacked /= self.context.world_size
            self._sums = dict(zip(names, stacked.unbind(), strict=True))

    def take(self) -> tuple[dict[str, float], float, float, int]:
        """(means over the steps, seconds, seconds waited for data, steps); starts a new window."""
        self.reduce()
        means = {name: float(value) / max(1, self._steps) for name, value in self._sums.items()}
        result = (means, self._seconds, self._waited, self._steps)
        self._sums, self._seconds, self._waited, self._steps = {}, 0.0, 0.0, 0
        return result

    def state(self) -> dict[str, Any]:
        sums = {name: float(value) for name, value in self._sums.items()}
        return {"sums": sums, "seconds": self._seconds, "waited": self._waited, "steps": self._steps}

    def restore(self, state: dict[str, Any]) -> None:
        for name, value in state["sums"].items():
            self._sums[name] = torch.tensor(value, dtype=torch.float64, device=self.context.device)
        self._seconds, self._waited, self._steps = state["seconds"], state["waited"], state["steps"]


class _JsonLines:
    """log.jsonl: one JSON object per line, ascending by step."""

    def __init__(self, path: Path):
        self.path = path

    def keep_until(self, step: int) -> None:
        """Drop the lines of steps after ``step``, which will be run again, and a line cut off by a kill."""
        if not self.path.exists():
            return
        kept = []
        for text in self.path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                if json.loads(text)["step"] <= step:
                    kept.append(text + "\n")
        write_text(self.path, "".join(kept))

    def write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def save_safetensors(state: dict[str, Tensor], path: Path) -> None:
    """Write tensors to ``path``, atomically."""
    from safetensors.torch import save_file

    with replacing(path) as partial:
        save_file(state, partial)
        take_umask(partial)


def peak_memory(device: torch.device) -> dict[str, float]:
    """Of this process so far, in GiB: :func:`peak_rss_gib`, and on a GPU the most that torch had allocated there."""
    on_gpu = {"peak_gpu_gib": torch.cuda.max_memory_allocated(device) / 2**30} if device.type == "cuda" else {}
    return {"peak_rss_gib": peak_rss_gib(), **on_gpu}


def peak_rss_gib() -> float:
    """The largest resident memory of this process so far."""
    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 2**30
