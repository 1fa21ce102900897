"""Captioners in an MLflow registry: an artifact becomes a version, with its evaluations and the history of its alias.

A version is an artifact, and stays it. Beside it lie its evaluations (``evaluation.json``, ``predictions.jsonl``), so
that a promotion needs nothing but the registry; further ones may be added. In the run's files::

    registered/<artifact>/artifact/...
    registered/<artifact>/evaluations/<evaluation>/...

Tags of a version: ``idc.artifact`` (hash of all its files), ``idc.weights`` (of model.safetensors alone),
``idc.system``, ``idc.folder`` (where it was), ``evaluation.<fingerprint>`` (an :class:`idc.evaluation.promotion.Scored`).
Tags of the model: ``promotion.<time>`` (a :class:`Promotion`), one for every move of the alias.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlparse

from pydantic import BaseModel, ConfigDict

from cluster.tracking import RUN_TAG, beside, find_run, open_experiment
from idc.config import missing_database
from idc.evaluation.promotion import Decision, Scored, checked_evaluation
from idc.evaluation.record import EVALUATION, PREDICTIONS, load
from idc.training.artifact import IDENTITY_TAG, WEIGHTS, Artifact, identity
from idc.training.config import TrackingConfig
from idc.training.hashing import file_hash

EVALUATION_TAG, PROMOTION_TAG = "evaluation.", "promotion."
_LEASE = timedelta(minutes=10)
"""A move that was begun so long ago and not ended is one whose process died; a move takes well below a second."""


@dataclass(frozen=True)
class Version:
    """A version of the registered model.

    Attributes:
        number: counted from 1.
        artifact: :func:`idc.training.artifact.identity` of it, ``""`` if something else registered it.
        evaluations: fingerprint -> what was scored, the newest last.
    """

    number: int
    artifact: str
    system: str
    folder: str
    run_id: str
    created: datetime
    evaluations: dict[str, Scored]


class Promotion(BaseModel):
    """A move of the alias, and why."""

    model_config = ConfigDict(extra="forbid")
    at: datetime
    alias: str
    kind: Literal["first", "compared", "forced", "rollback", "unchanged"]
    old: int | None
    """The champion before."""
    new: int
    """The champion then."""
    why: str
    """In words."""
    command: str
    """The command line that did it."""
    decision: Decision | None = None
    """What the evaluator said, if it was asked."""
    scored: Scored | None = None
    """What was compared on; there with ``decision``."""
    state: Literal["moving", "done"] = "moving"


class Registry:
    """A registered model and its alias.

    Args:
        uri: MLflow's tracking URI.
        name: the registered model.
        alias: what promotions move.
        make: make the SQLite file if it is not there; else that is an error.
    """

    def __init__(self, uri: str, name: str, alias: str = "champion", make: bool = False):
        if not make and (faults := list(missing_database(uri, "tracking_uri"))):
            raise ValueError(faults[0])
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from mlflow import MlflowClient

        self.uri, self.name, self.alias = uri, name, alias
        with self._asked():
            self.client = MlflowClient(tracking_uri=uri, registry_uri=uri)

    # -- reading ------------------------------------------------------------------------------------------------

    def versions(self) -> list[Version]:
        """All versions, the oldest first; none if the model is not registered."""
        with self._asked():
            found, token = [], None
            while True:
                page = self.client.search_model_versions(f"name='{self.name}'", max_results=200, page_token=token)
                found += list(page)
                if not (token := page.token):
                    return sorted((_version(one) for one in found), key=lambda one: one.number)

    def version(self, number: int) -> Version:
        """One version.

        Raises:
            ValueError: there is none of this number.
        """
        versions = self.versions()
        for one in versions:
            if one.number == number:
                return one
        there = ", ".join(str(one.number) for one in versions) or "none; python jobs/register.py adds one"
        raise ValueError(f"version: {self.name} has no version {number} in {self.uri}; there are: {there}")

    def champion(self) -> int | None:
        """The version that has the alias."""
        with self._asked():
            number = model.aliases.get(self.alias) if (model := self._model()) is not None else None
        return int(number) if number is not None else None

    def history(self) -> list[Promotion]:
        """All moves of the alias that were ended, the oldest first."""
        return [one for one in self._moves().values() if one.state == "done"]

    @contextmanager
    def evaluation(self, version: Version, fingerprint: str) -> Iterator[str]:
        """A folder with an evaluation of a version, while the context lasts."""
        from mlflow.artifacts import download_artifacts

        with tempfile.TemporaryDirectory(prefix="idc-evaluation-") as folder:
            place = _evaluation_place(version.artifact, fingerprint)
            with self._asked():
                got = download_artifacts(
                    run_id=version.run_id, artifact_path=place, dst_path=folder, tracking_uri=self.uri
                )
            yield got

    # -- writing ------------------------------------------------------------------------------------------------

    def register(self, artifact: Artifact, evaluation: str | None) -> tuple[Version, list[str]]:
        """Make the artifact a version, or find the version that it is; add the evaluation if it has it not yet.

        Returns:
            The version, and what was done, in words.

        Raises:
            ValueError: the evaluation is not of this artifact or cannot be used; nothing was written then.
        """
        scored = None if evaluation is None else checked_evaluation(evaluation, artifact.path)
        mark = identity(artifact.path)
        found = next((one for one in self.versions() if one.artifact == mark), None)
        with self._asked():
            run_id = found.run_id if found is not None else self._run_of(artifact, mark)
            tags: dict[str, str] = {}
            if scored is not None and evaluation is not None:
                key = load(evaluation).fingerprint
                if found is None or key not in found.evaluations:
                    tags[EVALUATION_TAG + key] = scored.model_dump_json()
                    for file in (PREDICTIONS, EVALUATION):
                        self.client.log_artifact(run_id, str(Path(evaluation) / file), _evaluation_place(mark, key))
                    for metric, value in scored.scores.items():
                        self.client.log_metric(run_id, f"{scored.split}/{metric.rstrip('*')}", value)
            if found is None:
                number = self._create(artifact, mark, run_id, tags)
                place = self.client.get_run(run_id).info.artifact_uri
                done = [f"registered as version {number} of {self.name} in {self.uri}, its files under {place}"]
            else:
                number = found.number
                for name, text in tags.items():
                    self.client.set_model_version_tag(self.name, str(number), name, text)
                done = [f"is version {number} of {self.name} in {self.uri} already"]
        if tags:
            done.append(f"with its evaluation on {scored}")
        elif scored is not None:
            done.append("which has this evaluation")
        return self.version(number), done

    def move(self, promotion: Promotion) -> None:
        """Give the alias to ``promotion.new``, if ``promotion.old`` has it still, and write why.

        Of several at once at most one moves it: everyone first writes what he is about to do, then looks whether
        another one has, and steps back if so. Whoever moves it thus saw nobody, and all who come later see him.

        Raises:
            ValueError: another one is moving it, or has moved it since ``promotion.old`` was looked up.
        """
        with self._asked():
            tag = f"{PROMOTION_TAG}{promotion.at:%Y%m%dT%H%M%S.%f}.{secrets.token_hex(4)}"
            self.client.set_registered_model_tag(self.name, tag, promotion.model_dump_json())
            try:
                for other, begun in self._moves().items():
                    if other != tag and begun.state == "moving" and datetime.now(UTC) - begun.at < _LEASE:
                        raise ValueError(
                            f"another command is moving {self.alias} of {self.name} ({begun.command or 'unknown'}, "
                            f"begun at {begun.at:%Y-%m-%d %H:%M:%S} UTC); look at status=true and start again"
                        )
                if (now := self.champion()) != promotion.old:
                    raise ValueError(
                        f"{self.alias} of {self.name} has moved meanwhile, from version {promotion.old} to {now}; "
                        "start again, to be compared with that one"
                    )
                self.client.set_registered_model_alias(self.name, self.alias, str(promotion.new))
            except BaseException:
                self.client.delete_registered_model_tag(self.name, tag)
                raise
            text = promotion.model_copy(update={"state": "done"}).model_dump_json()
            self.client.set_registered_model_tag(self.name, tag, text)
            words = f"version {promotion.new} since {promotion.at:%Y-%m-%d %H:%M:%S} UTC: {promotion.why}"
            self.client.set_registered_model_tag(self.name, self.alias, words)
            self.client.set_model_version_tag(self.name, str(promotion.new), tag, text)

    def note(self, version: Version, name: str, text: str) -> None:
        """A file beside the version's artifact."""
        with self._asked():
            self.client.log_text(version.run_id, text, f"registered/{version.artifact}/{name}")

    # -- parts ------------------------------------------------------------------------------------------------------

    def _moves(self) -> dict[str, Promotion]:
        """Tag -> move of this alias, the oldest first."""
        with self._asked():
            tags = model.tags if (model := self._model()) is not None else {}
        names = sorted(name for name in tags if name.startswith(PROMOTION_TAG))
        moves = {name: Promotion.model_validate_json(tags[name]) for name in names}
        return {name: move for name, move in moves.items() if move.alias == self.alias}

    def _run_of(self, artifact: Artifact, mark: str) -> str:
        """The training run that the artifact is of, if this MLflow knows it, else a new run."""
        tracking, name = training_run(artifact.path)
        experiment = open_experiment(self.client, self.uri, tracking.experiment)
        place = urlparse(self.client.get_experiment(experiment).artifact_location)
        if place.scheme == "file" and not Path(unquote(place.path)).parent.exists():
            raise ValueError(
                f"tracking_uri: {self.uri} keeps its files in {unquote(place.path)}, which is not there: if the folder "
                "was moved, move it back, or take another tracking_uri (a SQLite file is made if there is none)"
            )
        if name is not None and (run := find_run(self.client, experiment, name)) is not None:
            return run
        name = f"{self.name}-{mark[:12]}"
        if (run := find_run(self.client, experiment, name)) is not None:
            return run  # of a registration that was cut short
        run = str(self.client.create_run(experiment, tags={RUN_TAG: name}, run_name=name).info.run_id)
        self.client.set_terminated(run)
        return run

    def _create(self, artifact: Artifact, mark: str, run_id: str, tags: dict[str, str]) -> int:
        """Upload the artifact and make it a version, which is there only when all of it is."""
        place = f"registered/{mark}/artifact"
        self.client.log_artifacts(run_id, str(artifact.path), place)
        if self._model() is None:
            self.client.create_registered_model(self.name)
        tags = {
            **tags,
            IDENTITY_TAG: mark,
            "idc.weights": file_hash(artifact.path / WEIGHTS),
            "idc.system": artifact.system,
            "idc.folder": str(artifact.path),
        }
        return int(self.client.create_model_version(self.name, f"runs:/{run_id}/{place}", run_id, tags=tags).version)

    def _model(self) -> Any:
        """MLflow's entity of the registered model, or None."""
        return next(
            (m for m in self.client.search_registered_models(f"name='{self.name}'") if m.name == self.name), None
        )

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """MLflow's errors as those of the user."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, SQLAlchemyError, OSError) as error:
            text = " ".join(str(error).split())[:300]
            raise ValueError(f"the MLflow registry {self.uri} does not do what it was asked for: {text}") from None


def training_run(artifact: Path) -> tuple[TrackingConfig, str | None]:
    """How the training run was tracked that an artifact lies in, and the run's name (None: it lies in no run)."""
    folder = artifact.resolve().parent
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))["train"]["tracking"]
        return TrackingConfig.model_validate(found), folder.name
    except (OSError, ValueError, KeyError, TypeError):
        return TrackingConfig(), None


def uri_of(tracking_uri: str | None, artifact: Path | None = None) -> str:
    """The tracking URI that was given, or MLFLOW_TRACKING_URI, or that of the training run of an artifact.

    Raises:
        ValueError: there is none of them.
    """
    uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
    if uri is None and artifact is not None:
        tracking, name = training_run(artifact)
        uri = tracking.uri or (beside(artifact.resolve().parent) if name is not None else None)
    if uri is None:
        raise ValueError("tracking_uri: required here, as in tracking_uri=sqlite:///runs/demo/mlflow.db")
    return uri


def _evaluation_place(artifact: str, fingerprint: str) -> str:
    return f"registered/{artifact}/evaluations/{fingerprint}"


def _version(found: Any) -> Version:
    scored = {
        name.removeprefix(EVALUATION_TAG): Scored.model_validate_json(text)
        for name, text in found.tags.items()
        if name.startswith(EVALUATION_TAG)
    }
    return Version(
        number=int(found.version),
        artifact=found.tags.get(IDENTITY_TAG, ""),
        system=found.tags.get("idc.system", ""),
        folder=found.tags.get("idc.folder", ""),
        run_id=found.run_id or "",
        created=datetime.fromtimestamp(found.creation_timestamp / 1000, UTC),
        evaluations=dict(sorted(scored.items(), key=lambda item: item[1].at)),
    )
