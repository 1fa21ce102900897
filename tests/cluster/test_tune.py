"""Sweeps run: trials share their steps, nothing is done twice, an interrupted sweep goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster.config import ClusterConfig
from cluster.tune import run_sweep
from idc.evaluation.record import load_evaluation
from idc.sweep.config import SweepJob
from idc.sweep.search import SearchConfig
from idc.sweep.summary import SweepResult
from tests.faults.canary import Canary
from tests.folders import read_log
from tests.sweep.sweeps import small_sweep, write_yaml
from tests.systems.procap.world import World

ROOT = Path(__file__).resolve().parents[2]


def run_here(job: SweepJob, **options: Any) -> SweepResult:
    return run_sweep(job, ClusterConfig(), local=True, **options)


def written(runs: Path) -> dict[str, int]:
    """When each file of the steps was written."""
    return {
        str(path): path.stat().st_mtime_ns
        for path in (runs / "steps").rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


def kinds(runs: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in (runs / "steps").glob("*-*") if path.is_dir())


# -- without Ray ----------------------------------------------------------------------------------------------------


def test_a_table_runs_its_chains_and_shares_what_they_have_in_common(world: World, tmp_path: Path) -> None:
    columns = [
        {"title": "C", "metric": "CIDEr"},
        {"title": "C of no change", "metric": "CIDEr", "subset": "no change"},
        {"title": "TPS", "metric": "tokens_per_second"},
    ]
    rows = [
        {"label": "one layer", "published": {"C": 100.0}},
        {"label": "two layers", "settings": {"finetune.decoder.layers": 2}, "published": {"C": 90.0}},
        {"label": "broken", "settings": {"finetune.train.keep_best.metric": "CIDER"}},
        {"label": "another method", "quoted": True, "published": {"C": 120.0}},
    ]
    baselines = {"evaluate.constant_candidates": 4, "evaluate.nearest_train_pairs": 8}
    job = small_sweep(world, tmp_path, columns=columns, rows=rows, settings=baselines)
    result = run_here(job)
    assert kinds(tmp_path) == ["baselines", *["evaluation"] * 2, *["finetune"] * 3, "pretrain", *["speed"] * 2]
    assert (result.cost.steps, result.cost.shared_steps) == (8, 1)
    assert result.cost.cpu_hours > 0
    assert result.title == "small", "its name, if it has no title"
    assert list(result.failed) == ["broken"]
    assert "train.keep_best.metric='CIDER' is not measured" in result.failed["broken"]
    first, second, broken, quoted = result.rows
    scored = {
        round(100 * load_evaluation(path).scores["CIDEr"], 6) for path in (tmp_path / "steps").glob("evaluation-*/")
    }
    for row in (first, second):
        assert row.seeds == [0]
        assert round(row.values["C"].mean, 6) in scored
        assert row.values["C of no change"] is not None
        assert row.values["TPS"].mean > 0
    assert broken.values["C"] is quoted.values["C"] is None
    assert {baseline.name for baseline in result.baselines} == {"constant", "nearest"}
    assert all(baseline.values["C"] > 0 for baseline in result.baselines)

    # The same again: no step is done. A seed more: only its own trainings and scores come to it.
    before = written(tmp_path)
    assert run_here(small_sweep(world, tmp_path, columns=columns, rows=rows[:2], settings=baselines)).rows == [
        first,
        second,
    ]
    assert written(tmp_path) == before
    more = run_here(small_sweep(world, tmp_path, columns=columns, rows=rows[:1], settings=baselines, seeds=[0, 1]))
    assert before.items() <= written(tmp_path).items()
    assert [kinds(tmp_path).count(kind) for kind in ("pretrain", "finetune", "evaluation", "speed")] == [2, 4, 3, 2]
    assert more.rows[0].seeds == [0, 1]
    assert len(more.rows[0].values["C"].values) == 2
    lost = min((tmp_path / "steps").glob("evaluation-*/evaluation.json"), key=lambda path: path.stat().st_mtime)
    lost.write_text("{}")
    rest = run_here(small_sweep(world, tmp_path, columns=columns, rows=rows[:2], settings=baselines))
    (fault,) = rest.failed.values()
    assert fault.startswith(f"cannot be read: {lost} is not an evaluation of this version")
    assert sorted(len(row.seeds) for row in rest.rows) == [0, 1], "the others are in the table"


def test_a_search_needs_ray(world: World, tmp_path: Path) -> None:
    search = {"space": {"finetune.decoder.layers": {"choice": [1, 2]}}, "scheduler": "none"}
    with pytest.raises(ValueError, match="need Ray"):
        run_here(small_sweep(world, tmp_path, rows=[], search=search))


# -- on Ray ---------------------------------------------------------------------------------------------------------


@pytest.mark.ray
@pytest.mark.slow
def test_trials_side_by_side_on_ray_with_a_parent_run_in_mlflow(
    ray_session: None, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two trials at a time on half a core each; their scores are those of the same sweep without Ray."""
    rows = [
        {"label": f"{n} layers", "settings": {"explicit_modeling": False, "finetune.decoder.layers": n}} for n in (1, 2)
    ]
    trials = {"concurrent": 2, "cpus": 0.5}
    job = small_sweep(world, tmp_path / "ray", rows=rows, trials=trials, tracking={"experiment": "tables"})
    result = run_sweep(job, ClusterConfig())
    assert not result.failed
    assert "2 trials, 0 of them done before" in capsys.readouterr().out
    assert result.rows == run_here(small_sweep(world, tmp_path / "plain", rows=rows)).rows
    again = run_sweep(job, ClusterConfig())
    assert again.rows == result.rows
    assert "2 trials, 2 of them done before" in capsys.readouterr().out

    import mlflow

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'ray' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tables")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    parent = runs.pop("small")
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {parent.info.run_id}
    assert {run.info.status for run in (parent, *runs.values())} == {"FINISHED"}
    trial = runs["small: 2 layers"]
    assert trial.data.params["finetune.decoder.layers"] == "2"
    assert 100 * trial.data.metrics["CIDEr"] == pytest.approx(result.rows[1].values["C"].mean)  # type: ignore[union-attr]
    assert sum(name.startswith("finetune-") for name in runs) == 2


@pytest.mark.ray
@pytest.mark.slow
def test_a_search_stops_bad_trials_and_scores_the_best_one(ray_session: None, world: World, tmp_path: Path) -> None:
    """Optuna proposes, ASHA stops; the test split is scored once; given again, the search is not repeated."""
    search = {
        "space": {
            "finetune.encoder_optim.lr": {"low": 1e-5, "high": 1e-2, "log": True},
            "pretrain.masking.random": {
                "low": 0.1,
                "high": 1.0,
                "rest": [f"pretrain.masking.{scheme}" for scheme in ("entire", "in_block", "out_of_block")],
            },
        },
        "num_trials": 4,
        "grace": 2,
    }
    settings = {"finetune.train.steps": 6, "finetune.train.eval_every": 2}
    job = small_sweep(world, tmp_path, rows=[], search=search, settings=settings, trials={"concurrent": 2, "cpus": 0.5})
    result = run_sweep(job, ClusterConfig())
    assert len(result.searched) == 4
    finished = [trial for trial in result.searched if trial.state == "finished"]
    assert finished
    assert all(trial.step == 6 for trial in finished)
    assert all(trial.step in (2, 4) for trial in result.searched if trial.state == "stopped early")
    for trial in result.searched:
        masking = [value for key, value in trial.settings.items() if key.startswith("pretrain.masking.")]
        assert sum(masking) == pytest.approx(1.0)
    assert result.rows[0].settings == finished[0].settings
    assert kinds(tmp_path).count("evaluation") == 1

    before = written(tmp_path)
    again = run_sweep(job, ClusterConfig())
    assert again.searched == result.searched
    assert written(tmp_path) == before
    with pytest.raises(ValueError, match="holds another search"):
        run_sweep(
            small_sweep(world, tmp_path, rows=[], search={**search, "seed": 1}, settings=settings), ClusterConfig()
        )


class KilledOnce(SearchConfig):
    """A search whose first trial is killed before it has recorded anything, as by the kernel if memory runs out."""

    driver: int
    mark: str

    def expand(self, values: Mapping[str, Any]) -> dict[str, Any]:
        if os.getpid() != self.driver and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().expand(values)


@pytest.mark.ray
@pytest.mark.slow
def test_a_search_goes_on_without_a_trial_that_is_lost(ray_session: None, world: World, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "space": {"finetune.decoder_optim.lr": {"low": 1e-3, "high": 2e-3}}, "num_trials": 2,
        "scheduler": "none",
    }  # fmt: skip
    job = small_sweep(world, tmp_path, rows=[], search=settings, trials={"cpus": 0.5, "max_failures": 0})
    search = KilledOnce(**settings, driver=os.getpid(), mark=str(tmp_path / "killed"))
    result = run_sweep(job.model_copy(update={"search": search}), ClusterConfig())
    assert (tmp_path / "killed").exists()
    assert [trial.state for trial in result.searched] == ["finished", "its process was lost"]
    assert [trial.value is None for trial in result.searched] == [False, True]
    assert len(result.rows) == 1


@pytest.mark.ray
@pytest.mark.slow
def test_a_trial_of_ray_train_runs(ray_session: None, world: World, tmp_path: Path) -> None:
    """Each training is a Ray Train run of two workers; scores as those of plain trials with the same global batch."""
    settings = {"finetune.train.num_workers": 2}
    job = small_sweep(world, tmp_path / "train", trials={"mode": "ray_train"}, settings=settings)
    result = run_sweep(job, ClusterConfig())
    assert not result.failed
    plain = run_here(small_sweep(world, tmp_path / "plain"))
    mine, other = (one.rows[0].values["C"] for one in (result, plain))
    assert mine.mean == pytest.approx(other.mean, rel=1e-4)


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_search_is_rebuilt_from_its_trials(world: World, tmp_path: Path) -> None:
    """SIGKILL of the driver when one trial has ended; the same command does the rest, trains nothing twice, and does
    not execute what lies in the folder of Ray Tune's state."""
    search = {
        "space": {"finetune.encoder_optim.lr": {"low": 1e-5, "high": 1e-2, "log": True}},
        "num_trials": 4, "scheduler": "none",
    }  # fmt: skip
    settings = {"finetune.train.steps": 20, "finetune.train.checkpoint_every": 5, "finetune.train.eval_every": 10}
    job = small_sweep(world, tmp_path, rows=[], search=search, settings=settings)
    command = [sys.executable, str(ROOT / "jobs" / "sweep.py"), "--config", write_yaml(tmp_path / "small.yaml", job)]
    command += ["cluster.num_cpus=4", "cluster.object_store_mb=100"]
    trials = tmp_path / "small" / "trials"

    def ended() -> dict[str, str]:
        texts = {path.name: path.read_text() for path in trials.glob("search-*.json")}
        return {name: text for name, text in texts.items() if json.loads(text)["state"] != "running"}

    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 240
        while not ended() or len(list(trials.glob("search-*.json"))) < 2:
            assert first.poll() is None, "the search ended before it could be killed"
            assert time.monotonic() < until
            time.sleep(0.05)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    before = ended()
    assert 1 <= len(before) < 4
    canary = Canary(tmp_path)
    state = tmp_path / "small" / "tune"
    for path in {state / "tuner.pkl", state / "trainable.pkl", *state.rglob("*.pkl")}:
        path.write_bytes(canary.pickled())

    second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert second.returncode == 0, second.stdout + second.stderr
    canary.check()
    assert f"resuming the search; {len(before)} of" in second.stdout
    assert before.items() <= ended().items()
    found = [json.loads(path.read_text()) for path in trials.glob("search-*.json")]
    assert [trial["state"] for trial in found] == ["finished"] * 4
    for run in (tmp_path / "steps").glob("finetune-*/"):
        assert [line["step"] for line in read_log(run / "log.jsonl")] == list(range(1, 21))
