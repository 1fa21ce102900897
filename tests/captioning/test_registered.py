"""Captioners of a registry, whose aliases may move at any time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from idc.captioning import pair, table
from idc.captioning.calibration_job import CalibrateJob
from idc.captioning.pair import PairJob, caption_pair
from idc.captioning.table import CaptionJob, caption_rows
from idc.data.pipeline import run_local
from idc.evaluation.config import EvaluateSection
from idc.evaluation.record import load_evaluation
from idc.report.config import RobustnessJob
from idc.report.robustness import run_robustness
from idc.training.artifact import artifact_identity, captioning_identity
from tests.captioning.registered import NAME, register_versions, version_folder
from tests.captioning.test_loading import RENDERED, write_table
from tests.systems.procap.world import World

ROOT = Path(__file__).resolve().parents[2]

Promote = Callable[[str], None]


@pytest.fixture
def promote(tracking_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Promote:
    return register_versions(tracking_uri, tmp_path, monkeypatch)


def promoting_first(call: Callable[..., Any], promote: Promote) -> Callable[..., Any]:
    """The function, before which somebody promotes version 2."""

    def run(*arguments: Any, **options: Any) -> Any:
        promote("2")
        return call(*arguments, **options)

    return run


def test_a_pair_names_the_version_that_captioned_it(promote: Promote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "describe_batch", promoting_first(pair.describe_batch, promote))
    before, after = map(str, RENDERED)
    result = caption_pair(PairJob(before=before, after=after, artifact=NAME))
    assert artifact_identity(result["artifact"]) == artifact_identity(version_folder("1"))
    assert result["captioner"] == NAME


def test_the_rows_of_a_table_belong_to_the_version_that_captioned_them(
    promote: Promote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_table(tmp_path / "pairs.csv", RENDERED)
    job = CaptionJob(artifact=NAME, input=rows, out=str(tmp_path / "out"))
    quiet = partial(run_local, progress=False)
    with monkeypatch.context() as during:
        during.setattr(table, "open_rows", promoting_first(table.open_rows, promote))
        assert caption_rows(job, quiet).done == 1
    with pytest.raises(ValueError, match="of another configuration or other inputs"):
        caption_rows(job, quiet)
    promote("1")
    assert caption_rows(job, quiet).done == 0


def test_robustness_takes_a_registered_captioner(promote: Promote, world: World, tmp_path: Path) -> None:
    section = EvaluateSection(
        protocol="levir_words", metrics=("CIDEr",), spice=False, constant_candidates=0, nearest_train_pairs=0,
        resamples=0, allow_empty=True,
    )  # fmt: skip
    job = RobustnessJob(
        artifact=NAME, pairs=str(world.pairs), sets=str(tmp_path / "sets"), out=str(tmp_path / "out"), corruptions={},
        swap=False, evaluate=section,
    )  # fmt: skip
    unknown = job.model_copy(update={"artifact": "models:/another/1"})
    assert not list(unknown.preflight()), "the registry is asked when the model is loaded"
    run_robustness(job, partial(run_local, progress=False))
    assert load_evaluation(str(tmp_path / "out" / "clean")).artifact == captioning_identity(version_folder("1"))


def test_a_calibration_asks_for_the_folder_of_the_artifact(tmp_path: Path) -> None:
    [fault] = CalibrateJob(artifact=NAME, pairs=str(tmp_path)).preflight()
    assert "the calibration is written into the artifact, so give its folder" in fault


def test_a_registered_captioner_is_loaded_next_to_a_package_serve_of_the_users_own(
    promote: Promote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serve").mkdir()
    (tmp_path / "serve" / "__init__.py").touch()
    promote("1")
    code = f"import idc; print(idc.load({NAME!r}, device='cpu'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "IDC_CACHE": str(tmp_path / "cache")}
    loaded = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert loaded.stdout == f"LoadedCaptioner({NAME!r})\n", loaded.stderr
