"""Captioners in an MLflow registry: artifacts as versions, with their evaluations and the history of the alias.

A version is one artifact and never changes. Its evaluations (``evaluation.json``, ``predictions.jsonl``) are stored
with it, so that a promotion needs nothing but the registry; more can be added later. Layout in the run's files::

    registered/<artifact>/artifact/...
    registered/<artifact>/evaluations/<evaluation>/...

Tags of a version: ``idc.artifact`` (hash of all its files), ``idc.weights`` (of model.safetensors alone),
``idc.system``, ``idc.folder`` (its original path), ``evaluation.<fingerprint>`` (a
:class:`idc.evaluation.promotion.ScoredVersion`).
Tags of the model: ``promotion.<time>`` (a :class:`Promotion`), one for every move of the alias.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cluster.tracking import RUN_TAG, default_uri, find_run, moved_files, open_experiment, opening
from idc.evaluation.promotion import Decision, ScoredVersion, checked_evaluation
from idc.evaluation.provenance import command_line
from idc.evaluation.record import EVALUATION, PREDICTIONS, load_evaluation
from idc.training.artifact import IDENTITY_TAG, WEIGHTS, Artifact, artifact_identity
from idc.training.config import TrackingConfig, unusable_tracking
from idc.training.hashing import file_hash
from idc.util.redaction import redacted

EVALUATION_TAG, PROMOTION_TAG = "evaluation.", "promotion."


@dataclass(frozen=True)
class Version:
    """A version of the registered model.

    Attributes:
        number: counted from 1.
        artifact: :func:`idc.training.artifact.artifact_identity` of it; ``""`` if another program registered it.
        evaluations: fingerprint -> summary of the evaluation, the newest last.
    """

    number: int
    artifact: str
    system: str
    folder: str
    run_id: str
    created: datetime
    evaluations: dict[str, ScoredVersion]


class Promotion(BaseModel):
    """One move of the alias, with its reason."""

    model_config = ConfigDict(extra="forbid")
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    alias: str
    kind: Literal["first", "compared", "forced", "rollback", "unchanged"]
    old: int | None
    """Champion before the move."""
    new: int
    """Champion after the move."""
    why: str
    """Reason, as a sentence."""
    command: str = Field(default_factory=command_line)
    """Command line that made the move."""
    decision: Decision | None = None
    """Outcome of the comparison, if there was one."""
    scored: ScoredVersion | None = None
    """Data and protocol of the comparison; set with ``decision``."""


class Registry:
    """A registered model and its alias.

    Args:
        uri: MLflow's tracking URI.
        name: the registered model.
        alias: the alias that promotions move.
        make: create a SQLite file that does not exist; without it, a missing file is an error.
    """

    def __init__(self, uri: str, name: str, alias: str = "champion", make: bool = False):
        for fault in unusable_tracking(uri, "tracking_uri", make):
            raise ValueError(fault)
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from mlflow import MlflowClient

        self.uri, self.name, self.alias = uri, name, alias
        self.shown = redacted(uri)
        with self._errors(), opening(uri):
            self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)

    def versions(self) -> list[Version]:
        """All versions, oldest first; empty if the model is not registered."""
        with self._errors():
            entities = self.client.search_model_versions(f"name='{self.name}'")  # at most 10,000
        return sorted((_version(entity) for entity in entities), key=lambda version: version.number)

    def version(self, number: int) -> Version:
        """One version.

        Raises:
            ValueError: no version has this number.
        """
        versions = {version.number: version for version in self.versions()}
        if number in versions:
            return versions[number]
        there = ", ".join(map(str, versions)) or "none; python jobs/register.py adds one"
        raise ValueError(f"version: {self.name} has no version {number} in {self.shown}; there are: {there}")

    def champion(self) -> int | None:
        """Number of the version that has the alias, or None."""
        with self._errors():
            number = model.aliases.get(self.alias) if (model := self._model()) is not None else None
        return int(number) if number is not None else None

    def history(self) -> list[Promotion]:
        """All moves of the alias, oldest first."""
        with self._errors():
            tags = model.tags if (model := self._model()) is not None else {}
        names = sorted(name for name in tags if name.startswith(PROMOTION_TAG))
        moves = [Promotion.model_validate_json(tags[name]) for name in names]
        return [move for move in moves if move.alias == self.alias]

    @contextmanager
    def evaluation(self, version: Version, fingerprint: str) -> Iterator[str]:
        """Context manager: a temporary folder with an evaluation of a version."""
        from mlflow.artifacts import download_artifacts

        with tempfile.TemporaryDirectory(prefix="idc-evaluation-") as folder:
            path = _evaluation_path(version.artifact, fingerprint)
            with self._errors():
                got = download_artifacts(
                    run_id=version.run_id, artifact_path=path, dst_path=folder, tracking_uri=self.uri
                )
            yield got

    def register(self, artifact: Artifact, evaluation: str | None) -> tuple[Version, list[str]]:
        """Register the artifact as a version, unless it is one already, and add the evaluation to it if it is new.

        Returns:
            The version, and sentences about what was done.

        Raises:
            ValueError: the evaluation is of another artifact or unusable; then nothing is written.
        """
        scored = None if evaluation is None else checked_evaluation(evaluation, artifact.path)
        digest = artifact_identity(artifact.path)
        version = next((version for version in self.versions() if version.artifact == digest), None)
        with self._errors():
            run_id = version.run_id if version is not None else self._run_of(artifact, digest)
            tags: dict[str, str] = {}
            if scored is not None and evaluation is not None:
                key = load_evaluation(evaluation).fingerprint
                if version is None or key not in version.evaluations:
                    tags[EVALUATION_TAG + key] = scored.model_dump_json()
                    for file in (PREDICTIONS, EVALUATION):
                        self.client.log_artifact(run_id, str(Path(evaluation) / file), _evaluation_path(digest, key))
                    for metric, value in scored.scores.items():
                        self.client.log_metric(run_id, f"{scored.split}/{metric.rstrip('*')}", value)
            if version is None:
                number = self._create(artifact, digest, run_id, tags)
                uri = self.client.get_run(run_id).info.artifact_uri
                done = [f"registered as version {number} of {self.name} in {self.shown}, its files under {uri}"]
            else:
                number = version.number
                for name, text in tags.items():
                    self.client.set_model_version_tag(self.name, str(number), name, text)
                done = [f"is version {number} of {self.name} in {self.shown} already"]
        if tags:
            done.append(f"with its evaluation on {scored}")
        elif scored is not None:
            done.append("which has this evaluation")
        return self.version(number), done

    def move(self, promotion: Promotion) -> None:
        """Move the alias to ``promotion.new`` if ``promotion.old`` still has it, and record the reason.

        Raises:
            ValueError: another command has moved it since ``promotion.old`` was read.
        """
        with self._errors():
            if (now := self.champion()) != promotion.old:
                raise ValueError(
                    f"{self.alias} of {self.name} has moved meanwhile, from version {promotion.old} to {now}; "
                    "start again, to be compared with that one"
                )
            self.client.set_registered_model_alias(self.name, self.alias, str(promotion.new))
            tag = f"{PROMOTION_TAG}{promotion.at:%Y%m%dT%H%M%S.%f}"
            self.client.set_registered_model_tag(self.name, tag, promotion.model_dump_json())

    def _run_of(self, artifact: Artifact, digest: str) -> str:
        """Id of the artifact's training run, if this MLflow has it, else of a new run."""
        tracking, name = training_run(artifact.path)
        experiment = open_experiment(self.client, self.uri, tracking.experiment)
        if (moved := moved_files(self.client, self.uri, experiment)) is not None:
            raise ValueError(f"tracking_uri: {moved}")
        if name is not None and (run := find_run(self.client, experiment, name)) is not None:
            return run
        name = f"{self.name}-{digest[:12]}"
        if (run := find_run(self.client, experiment, name)) is not None:
            return run  # from an interrupted registration
        run = str(self.client.create_run(experiment, tags={RUN_TAG: name}, run_name=name).info.run_id)
        self.client.set_terminated(run)
        return run

    def _create(self, artifact: Artifact, digest: str, run_id: str, tags: dict[str, str]) -> int:
        """Upload the artifact, then create the version: a version is never incomplete."""
        path = f"registered/{digest}/artifact"
        self.client.log_artifacts(run_id, str(artifact.path), path)
        if self._model() is None:
            self.client.create_registered_model(self.name)
        tags = {
            **tags,
            IDENTITY_TAG: digest,
            "idc.weights": file_hash(artifact.path / WEIGHTS),
            "idc.system": artifact.system,
            "idc.folder": str(artifact.path.absolute()),
        }
        return int(self.client.create_model_version(self.name, f"runs:/{run_id}/{path}", run_id, tags=tags).version)

    def _model(self) -> Any:
        """MLflow's entity of the registered model, or None."""
        models = self.client.search_registered_models(f"name='{self.name}'")
        return next((model for model in models if model.name == self.name), None)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Re-raise MLflow, SQL and OS errors as ValueError."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, SQLAlchemyError, OSError) as error:
            text = redacted(" ".join(str(error).split()))[:300]
            raise ValueError(f"MLflow registry {self.shown}: request failed: {text}") from None


def training_run(artifact: Path) -> tuple[TrackingConfig, str | None]:
    """Tracking settings and name of the training run whose folder holds the artifact; no name outside a run."""
    folder = artifact.resolve().parent
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))["train"]["tracking"]
        return TrackingConfig.model_validate(settings), folder.name
    except (OSError, ValueError, KeyError, TypeError):
        return TrackingConfig(), None


def uri_of(tracking_uri: str | None, artifact: Path | None = None) -> str:
    """The given tracking URI, else MLFLOW_TRACKING_URI, else that of the artifact's training run.

    Raises:
        ValueError: none of them is set.
    """
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if uri is None and artifact is not None:
        tracking, name = training_run(artifact)
        uri = tracking.uri or (default_uri(artifact.resolve().parent) if name is not None else None)
    if uri is None:
        raise ValueError("tracking_uri: required here, as in tracking_uri=sqlite:///runs/demo/mlflow.db")
    return uri


def _evaluation_path(artifact: str, fingerprint: str) -> str:
    return f"registered/{artifact}/evaluations/{fingerprint}"


def _version(entity: Any) -> Version:
    scored = {
        name.removeprefix(EVALUATION_TAG): ScoredVersion.model_validate_json(text)
        for name, text in entity.tags.items()
        if name.startswith(EVALUATION_TAG)
    }
    return Version(
        number=int(entity.version),
        artifact=entity.tags.get(IDENTITY_TAG, ""),
        system=entity.tags.get("idc.system", ""),
        folder=entity.tags.get("idc.folder", ""),
        run_id=entity.run_id or "",
        created=datetime.fromtimestamp(entity.creation_timestamp / 1000, UTC),
        evaluations=dict(sorted(scored.items(), key=lambda item: item[1].at)),
    )
