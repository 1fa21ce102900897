"""The command of a training: parse, connect, prepare the input, train, print the result.

Nothing of Ray or torch is loaded before the parse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pkgutil import resolve_name
from typing import Any, TypeVar

from pydantic import create_model

from cluster.config import OnCluster
from idc.config import Cli, ConfigError, refuse, run_form
from idc.data.files import join
from idc.data.remote_copies import check_writable
from idc.next_command import after_training
from idc.training.config import TrainingJob
from idc.util.command_forms import Form
from idc.util.program import as_started
from idc.util.units import metric_text

_EVERY_TRAINING = """The same command resumes a killed run from its last checkpoint. Writes <runs>/<name>/artifact, the
input of evaluation, captioning and serving, or of the next stage.
"""
"""The end of every training's help."""

JobT = TypeVar("JobT", bound=TrainingJob)


def with_cluster(job: type[JobT]) -> type[JobT]:
    """The config of a training, with the section ``cluster``, which says where to run it."""
    bases: tuple[type[Any], ...] = (OnCluster, job)
    return create_model("Job", __base__=bases, __doc__=job.__doc__)


def train_command(
    job_type: type[TrainingJob],
    doc: str | None,
    build: tuple[str, str] | None = None,
    others: Mapping[Callable[[Cli[Any]], None], Form] = {},
) -> None:
    """Train what the command line describes; an input that it describes but that is not there is built first.

    Args:
        job_type: the config of the training, which gets the section ``cluster``.
        doc: the docstring of the command, shown as its help.
        build: for a config with a section ``build``: the field that names the input's folder, and the
            ``"module:function"`` that builds it, called with the section, the folder, and the runner of chunks.
        others: further forms of the command, with their own settings (:func:`idc.config.run_form`).
    """
    run_form(doc, {partial(_train, build): Form(with_cluster(job_type), note=_EVERY_TRAINING), **others})


def _train(build: tuple[str, str] | None, args: Cli[Any]) -> None:
    from cluster.preflight import Requirements, training_workers
    from cluster.session import run_chunks, session
    from cluster.train import TrainingRun, launch

    job: Any = args.config
    payload = job.model_dump(mode="json", exclude={"train", "cluster"})
    run_dir = join(job.runs, job.name)
    needed = Requirements(job, [training_workers(job.train)], job.runs)
    try:
        check_writable(job.runs, "runs")
        training = TrainingRun.in_folder(job.ENTRY, payload, job.train, run_dir)
        complete = training.is_complete(args.overwrite)
        with ExitStack() as sessions:

            def connect() -> None:  # as late as possible: a folder that holds something else is refused without Ray
                sessions.enter_context(session(job.cluster, needed, args.local))

            def run(*arguments: Any, **options: Any) -> Any:
                connect()
                return run_chunks(args.local, job.cluster, *arguments, job=job, **options)

            if build is not None and job.build is not None:
                folder, builder = build
                resolve_name(builder)(job.build, getattr(job, folder), run)
            if not complete:
                connect()
            result = launch(training, local=args.local, overwrite=args.overwrite)
    except ConfigError as error:
        refuse(error.errors)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{job.name}: {as_started(str(error))}") from None
    metrics = "  ".join(f"{name} {metric_text(name, value)}" for name, value in sorted(result["metrics"].items()))
    print(
        f"{job.name}: {result['steps']} steps, {result['seconds_per_step']:.3g} s each, best at "
        f"{result['best_step']}; validation {metrics or '(none)'}; artifact {join(run_dir, 'artifact')}"
    )
    print(f"next: {after_training(job.ENTRY, job, join(run_dir, 'artifact'))}")
