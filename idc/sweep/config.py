"""Settings of a sweep: a table of rows or a search, over dotted settings of a chain of jobs.

Every trial's config is built when the sweep's is read, so a wrong key is named before anything starts.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator

from idc.config import ConfigError, ConfigModel, layered, load, missing_inputs
from idc.sweep.chain import TrialConfig
from idc.sweep.search import SearchConfig
from idc.sweep.table_file import with_published_rows, with_size
from idc.systems import SYSTEMS
from idc.training.config import TrackingConfig
from idc.util.model_faults import did_you_mean, model_of
from idc.util.option_values import DiskPath
from idc.util.program import shipped

TOKENS_PER_SECOND = "tokens_per_second"
"""Metric of a column that is measured, not scored: after all trials, on the idle machine."""
TRAINING_COSTS = {
    "training_samples_per_second": ("samples_per_second",),
    "training_memory": ("peak_gpu_gib", "peak_rss_gib"),
}
"""Metric of a column -> names in the result of the trial's last training; the first one that it has counts."""

JUDGE = "judge"
"""Metric of a column that a language model scores, in trials with a section `judge`."""

QUESTIONS = ("binary", "count", "location")
"""Beginnings of the metrics of answers, in trials whose chain asks questions: type/measure."""

STEPS = "steps"
"""Folder of the steps, next to the sweeps' own."""


RIGHT_TYPE = "right_type"
RIGHT_CLAIMS = {"right_object": "object", "right_attribute": "attribute"}
"""Metric -> rate of :class:`idc.metrics.scene_scores.Hallucination`."""
DIFFERENCE_RATES = {"difference_f1": "f1", "invented_share": "invented_share"}
"""Metric -> rate of :mod:`idc.metrics.scene_scores`."""
LOWER_IS_BETTER = ("invented_share", "training_memory", "count/MAE")
"""Metrics of errors and costs."""


class ColumnConfig(ConfigModel):
    """A column of the table."""

    title: str = Field(min_length=1)
    """Heading, as in the paper."""
    metric: str = Field(min_length=1)
    """A score of the evaluation (BLEU-4, METEOR, ROUGE-L, CIDEr), shown times 100; `right_type`, for rendered pairs
    `right_object`, `right_attribute`, of difference lists `difference_f1`, `invented_share` (lower is better); `judge`,
    the mean of a judge's scores, 0 to 100; `tokens_per_second`; of the last training `training_samples_per_second` and
    `training_memory`, the peak in GiB of GPU or process; of answers to questions a type and a measure, times 100:
    `binary/F1`, `count/MAE` (lower is better), `location/Micro F1` (:mod:`idc.metrics.classification`)."""
    subset: str | None = None
    """Take the score of a subset of the pairs: `change`, `no change`, a change type, or `real` or `render` of
    OmniDiff. Of counts and positions the class: `road`, `building`."""

    @property
    def of_answers(self) -> bool:
        """Whether it scores answers to questions."""
        return self.metric.startswith(tuple(f"{kind}/" for kind in QUESTIONS))

    @property
    def lower_is_better(self) -> bool:
        """Whether the best row has the lowest number."""
        return self.metric in LOWER_IS_BETTER

    def errors(self) -> Iterator[str]:
        if self.subset is not None and self.metric in (RIGHT_TYPE, *RIGHT_CLAIMS, *DIFFERENCE_RATES):
            yield f"subset: {self.metric} is a share of the whole split; leave subset out"
        if self.subset is not None and self.metric in TRAINING_COSTS:
            yield f"subset: {self.metric} is of a training; leave subset out"
        if self.of_answers and (self.subset is None) != self.metric.startswith("binary/"):
            yield f"subset: {self.metric} is " + (
                "of a class; give it (road or building)" if self.subset is None else "of all pairs; leave subset out"
            )


CAPTION_COLUMNS = (
    ColumnConfig(title="B", metric="BLEU-4"),
    ColumnConfig(title="M", metric="METEOR"),
    ColumnConfig(title="R", metric="ROUGE-L"),
    ColumnConfig(title="C", metric="CIDEr"),
)
"""The columns of most tables of change captioning."""


class RowConfig(ConfigModel):
    """A row of the table: one setting, with one trial per seed."""

    label: str = Field(min_length=1)
    """The row's name on the page."""
    settings: dict[str, Any] = Field({})
    """Dotted settings of the chain that define this row."""
    published: dict[str, float] = Field({})
    """The paper's row: column title -> number as printed (scores times 100, tokens per second)."""
    group: str = ""
    """Rows are compared within a group; rows of other data sets belong to other groups."""
    quoted: bool = False
    """A row that the paper quotes from another method: shown, never run."""
    series: str = ""
    """The row's line in the plot."""
    x: float | None = None
    """The row's position on the plot's axis."""


class PlotConfig(ConfigModel):
    """The figure: a column over the rows' x, one line per series."""

    column: str
    """Title of the column on the vertical axis."""
    x: str
    """Label of the horizontal axis."""


class TrialsConfig(ConfigModel):
    """How trials run, and how many at the same time."""

    mode: Literal["plain", "ray_train"] = "plain"
    """plain: a trial runs its steps in its own process; ray_train: each training is a Ray Train run with its own
    workers (train.num_workers etc.), and the trial's process only waits."""
    concurrent: int = Field(1, ge=1)
    """Number of trials at the same time."""
    cpus: float = Field(1.0, gt=0)
    """CPUs of a trial (plain), and of a step without a training. Fractions share a core."""
    gpus: float = Field(0.0, ge=0)
    """GPUs likewise: 0.5 schedules two trials on one GPU; its memory must hold both."""
    max_failures: int = Field(2, ge=0)
    """Restarts of a trial whose process was lost, each from its last checkpoint."""


class SweepTable(ConfigModel):
    """What a sweep and its result have in common."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the sweep: its folder under `runs`. The same name resumes it."""
    title: str = ""
    """Heading of the page."""
    paper: str = ""
    """The table or figure of a paper that it reproduces."""
    note: str = ""
    """Differences from the paper that a reader must know to compare: other data, other sizes."""
    system: str = Field(min_length=1)
    """System whose chain of jobs is run, e.g. procap."""
    columns: tuple[ColumnConfig, ...] = Field(CAPTION_COLUMNS, min_length=1)
    """The table's columns."""
    control: str | None = Field(None, min_length=1)
    """Label of a row from which the other rows of its group are told apart: further columns have their differences in
    CIDEr, right_type, right_object and difference_f1, with 95 % intervals over seeds and pairs."""
    plot: PlotConfig | None = None
    """The figure, if the paper has one."""


class SweepJob(SweepTable):
    """Run a system's chain of jobs over rows and seeds, or as a search, and write a page of the results.

    A file of a table may have `sizes`, of which the file of a size chooses one, and `published`, the paper's table from
    which its rows are filled (:mod:`idc.sweep.table_file`)."""

    runs: DiskPath = "runs/sweeps"
    """Folder of all sweeps. Its `steps` has a folder for each step, named by what it depends on; sweeps share them."""
    base: dict[str, str] = Field({})
    """Section of a trial -> YAML file of its job, overridden by all settings here. Relative paths as of --config."""
    settings: dict[str, Any] = Field({})
    """Dotted settings of all trials; they override `base`."""
    groups: dict[str, dict[str, Any]] = Field({})
    """Group of rows -> dotted settings of all its rows, overridden by the rows' own."""
    rows: tuple[RowConfig, ...] = ()
    """The table's rows."""
    search: SearchConfig | None = None
    """Instead of rows: a search."""
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    """Each row is repeated with each of these as the chain's seeds."""
    trials: TrialsConfig = TrialsConfig()
    """How trials run."""
    tracking: TrackingConfig = TrackingConfig()
    """MLflow: one parent run, with the trials and their trainings as children."""

    @classmethod
    def composed(cls, values: dict[str, Any]) -> dict[str, Any]:
        return with_size(with_published_rows(values))

    @field_validator("base")
    @classmethod
    def _absolute(cls, base: dict[str, str]) -> dict[str, str]:
        return {section: str(Path(shipped(path)).absolute()) for section, path in base.items()}

    @property
    def table(self) -> tuple[RowConfig, ...]:
        """The rows with all their settings."""
        return tuple(
            row.model_copy(update={"settings": {**self.groups.get(row.group, {}), **row.settings}}) for row in self.rows
        )

    def trial(self, settings: Mapping[str, Any], seed: int) -> TrialConfig:
        """The config of one trial.

        Raises:
            ConfigError: with all its errors.
        """
        trial = trial_class(self.system)
        seeds = {f"{section}.train.seed": seed for section in trial.TRAININGS}
        return load(trial, None, layered(self._below(), self.settings, settings, seeds))

    def inlined(self) -> SweepJob:
        """The same sweep with its base files merged into its settings, for processes on other machines."""
        settings = layered(self._below(), self.settings)
        return self.model_copy(update={"base": {}, "settings": settings})

    def _below(self) -> dict[str, Any]:
        """The contents of the base files, without settings that the trial sets itself.

        Raises:
            ConfigError: a file cannot be read, or a section does not exist.
        """
        contents: dict[str, Any] = {}
        errors: list[str] = []
        trial = trial_class(self.system)
        sections = list(trial.model_fields)
        for section, path in self.base.items():
            if section not in sections:
                hint = did_you_mean(section, sections) or f"; there are: {', '.join(sections)}"
                errors.append(f"base.{section}: the chain of {self.system} has no such section{hint}")
                continue
            try:
                with open(path, encoding="utf-8") as file:
                    values = yaml.safe_load(file) or {}
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                errors.append(f"base.{section}: cannot read {path!r}: {' '.join(str(error).split())}")
                continue
            values = values.get(section, values)  # those of procedures are in a section, too
            set_outside = getattr(model_of(trial.model_fields[section].annotation), "SET_OUTSIDE", ())
            contents[section] = {key: value for key, value in values.items() if key not in set_outside}
        if errors:
            raise ConfigError(errors)
        return contents

    def errors(self) -> Iterator[str]:
        if self.system not in SYSTEMS:
            yield f"system: {self.system!r} is not one of {', '.join(SYSTEMS)}{did_you_mean(self.system, SYSTEMS)}"
            return
        if self.name == STEPS:
            yield f"name: {STEPS!r} is the folder of all sweeps' steps; choose another name"
        if bool(self.rows) == (self.search is not None):
            yield "rows, search: give exactly one of the two"
            return
        yield from self._table_errors()
        yield from self._trial_errors()

    def _table_errors(self) -> Iterator[str]:
        titles = [column.title for column in self.columns]
        if len(set(titles)) < len(titles):
            yield f"columns: two have the same title; they are {', '.join(titles)}"
        labels = [(row.group, row.label) for row in self.rows]
        for twice in sorted({label for label in labels if labels.count(label) > 1}):
            yield f"rows: two have the label {twice[1]!r}"
        used = {row.group for row in self.rows}
        for group in self.groups.keys() - used:
            yield f"groups.{group}: no row is of this group{did_you_mean(group, sorted(used))}"
        if self.rows and all(row.quoted for row in self.rows):
            yield "rows: all are quoted, so there is nothing to run"
        if len(set(self.seeds)) < len(self.seeds):
            yield f"seeds: {list(self.seeds)} repeats a seed"
        if self.search is not None and len(self.seeds) > 1:
            yield f"seeds: a search takes one seed, got {list(self.seeds)}; repeat its best trial as a table"
        for number, row in enumerate(self.rows):
            if row.quoted and row.settings:
                yield f"rows.{number}.settings: the row is quoted and never run; remove settings or quoted"
            for title in row.published:
                if title not in titles:
                    yield f"rows.{number}.published.{title}: no such column{did_you_mean(title, titles)}"
        ran = [row.label for row in self.table if not row.quoted]
        if self.control is not None and self.control not in ran:
            yield f"control: no row that is run has the label {self.control!r}{did_you_mean(self.control, ran)}"
        if self.plot is not None:
            if self.plot.column not in titles:
                hint = did_you_mean(self.plot.column, titles)
                yield f"plot.column: no column has the title {self.plot.column!r}{hint}"
            if any(row.x is None for row in self.rows):
                yield "plot: every row needs an x"

    def _trial_errors(self) -> Iterator[str]:
        """Faults of every trial's config; those that all trials share are reported once."""
        try:
            self._below()
        except ConfigError as error:
            yield from error.errors
            return
        affected: dict[str, list[str]] = {}
        variants = self._variants()
        for variant, settings in variants.items():
            for fault in self._errors_of(settings):
                affected.setdefault(fault, []).append(variant)
        for fault, names in affected.items():
            yield fault if len(names) == len(variants) else f"{names[0]}: {fault}"

    def _variants(self) -> dict[str, dict[str, Any]]:
        """Place in this config -> settings of a trial to validate; for a search, the ends of each dimension."""
        if self.search is None:
            rows = enumerate(self.table)
            return {f"rows.{number} ({row.label})": row.settings for number, row in rows if not row.quoted}
        first = {
            key: dimension.ends()[0] for key, dimension in self.search.space.items() if not list(dimension.errors())
        }
        return {
            f"search.space.{key}={end}": self.search.expand({**first, key: end})
            for key, dimension in self.search.space.items()
            if key in first
            for end in dimension.ends()
        }

    def _errors_of(self, settings: Mapping[str, Any]) -> Iterator[str]:
        try:
            trial = self.trial(settings, self.seeds[0])
        except ConfigError as error:
            yield from error.errors
            return
        trials = self.trials
        for section, train in trial.loops.items() if trials.mode == "plain" else ():
            cpus, gpus = train.cpus_per_worker, train.gpus_per_worker
            if train.num_workers > 1:
                yield f"{section}.train.num_workers: {train.num_workers} workers need trials.mode=ray_train"
            if cpus > max(1.0, trials.cpus):
                yield f"{section}.train.cpus_per_worker: {cpus}, but a trial has trials.cpus={trials.cpus:g}"
            if gpus > trials.gpus:
                yield f"{section}.train.gpus_per_worker: {gpus:g}, but a trial has trials.gpus={trials.gpus:g}"
        if self.search is not None:
            watched = trial.loops[trial.SEARCHED]
            if self.search.scheduler == "asha" and not 0 < watched.eval_every <= self.search.grace:
                yield (
                    f"{trial.SEARCHED}.train.eval_every: {watched.eval_every}; search.scheduler=asha needs a "
                    f"validation within search.grace={self.search.grace} steps"
                )

    def preflight(self) -> Iterator[str]:
        """Missing input files of every row."""
        if self.system not in SYSTEMS:
            return
        errors: dict[str, None] = {}
        for settings in self._variants().values():
            try:
                trial: ConfigModel | None = self.trial(settings, self.seeds[0])
            except ConfigError as error:  # its errors are reported already
                trial = error.rest
            errors |= dict.fromkeys(missing_inputs(trial))
        yield from errors


def trial_class(system: str) -> type[TrialConfig]:
    """The trials of a system in ``idc.systems.SYSTEMS``."""
    trial: type[TrialConfig] = importlib.import_module(f"idc.systems.{system}.sweep").Trial
    return trial
