"""The common part of all training jobs after the parse: connect, prepare the input, train, print the result."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from functools import partial
from typing import Any

from cluster.config import ClusterConfig
from cluster.preflight import Bundle, Requirements
from cluster.session import run_chunks, session
from cluster.train import launch
from idc.config import Cli
from idc.data.files import join
from idc.data.object_store import Unreachable, check_writable
from idc.next_command import after_training
from idc.util.units import metric_text


def train_job(entry: str, args: Cli[Any], build: tuple[str, str] | None = None) -> None:
    """Train what the job's config describes; an input that the config describes but that is not there is built first.

    Args:
        entry: ``"module:function"`` of the training, see :func:`cluster.train.launch`.
        args: the parsed command line. Its config has ``name``, ``runs``, ``train``, ``cluster``.
        build: for a config with a section ``build``: the field that names the input's folder, and the
            ``"module:function"`` that builds it, called with the section, the folder, and the runner of chunks.
    """
    job = args.config
    cluster: ClusterConfig = job.cluster
    try:
        check_writable(job.runs, "runs")
        train = job.train
        field, number = "train.num_workers", train.num_workers
        if train.min_workers is not None:
            field, number = "train.min_workers", train.min_workers
        workers = Bundle(field, number, train.cpus_per_worker, train.gpus_per_worker)
        with nullcontext() if args.local else session(cluster, Requirements(job, [workers], job.runs)):
            if build is not None and job.build is not None:
                field, builder = build
                module, _, function = builder.partition(":")
                run = partial(run_chunks, args.local, cluster, job=job)
                getattr(importlib.import_module(module), function)(job.build, getattr(job, field), run)
            payload = job.model_dump(mode="json", exclude={"train", "cluster"})
            run_dir = join(job.runs, job.name)
            result = launch(entry, payload, job.train, run_dir, local=args.local, overwrite=args.overwrite)
    except (ValueError, Unreachable) as error:
        raise SystemExit(f"{job.name}: {error}") from None
    metrics = "  ".join(f"{name} {metric_text(name, value)}" for name, value in sorted(result["metrics"].items()))
    print(
        f"{job.name}: {result['steps']} steps, {result['seconds_per_step']:.3g} s each, best at {result['best_step']}; "
        f"validation {metrics or '(none)'}; artifact {join(run_dir, 'artifact')}"
    )
    print(f"next: {after_training(entry, job, join(run_dir, 'artifact'))}")
