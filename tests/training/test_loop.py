from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from idc.training.config import TrainConfig
from idc.training.context import Context, LocalContext
from idc.training.data import EvalLoader
from idc.training.loop import STATE_FILE, fit
from idc.training.run_storage import checkpoint_name
from idc.training.task import SAMPLES, Batch, Task, mean_per_sample
from tests.folders import read_log
from tests.training import toy

ROOT = Path(__file__).parents[2]
TRAIN: dict[str, Any] = {**toy.TRAIN, "grad_accumulation": 2, "tracking": {"enabled": False}}


def curve(run_dir: Path) -> list[dict[str, Any]]:
    """The log without the timings."""
    timings = ("seconds_per_step", "samples_per_second", "data_wait_share", "peak_rss_gib")
    return [
        {key: value for key, value in line.items() if key not in timings} for line in read_log(run_dir / "log.jsonl")
    ]


def weights(run_dir: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(run_dir / "artifact" / "model.safetensors")


def run(run_dir: Path, train: dict[str, Any] = TRAIN, **payload: Any) -> dict[str, Any]:
    config = TrainConfig.model_validate(train)
    context = LocalContext(run_dir, keep_last=config.keep_last)
    return toy.entry({"train": config.model_dump(mode="json"), **payload}, context)


def test_a_run_leaves_log_checkpoints_best_weights_and_result(tmp_path: Path) -> None:
    result = run(tmp_path, {**TRAIN, "eval_every": 9})
    log = read_log(tmp_path / "log.jsonl")
    assert [line["step"] for line in log] == [4, 8, 9, 12, 16, 18, 20, 24]
    assert [line["step"] for line in log if "validation/loss" in line] == [9, 18, 24]
    assert log[0].keys() >= {"loss", "accuracy", "grad_norm", "lr/encoder", "lr/head", "samples_per_second"}
    assert 0 <= log[0]["data_wait_share"] <= 1
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [checkpoint_name(20), checkpoint_name(24)]
    best = min((line for line in log if "validation/loss" in line), key=lambda line: line["validation/loss"])
    assert result["best_step"] == best["step"]
    assert result["metrics"]["loss"] == best["validation/loss"]
    assert [p.name for p in (tmp_path / "best").iterdir()] == [f"{checkpoint_name(best['step'])}.safetensors"]
    assert result["steps"] == 24
    assert result["seconds"] > 0


class Scored(toy.ToyTask):
    """Its metric is best at the second validation, whatever happens later."""

    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        self.heads = [*getattr(self, "heads", []), self.head.weight.detach().clone()]
        return {"score": {1: 0.2, 2: 0.9}.get(len(self.heads), 0.5)}


def test_the_artifact_has_the_best_weights_not_the_last(tmp_path: Path) -> None:
    task, train = Scored(), TrainConfig.model_validate({**TRAIN, "keep_best": {"metric": "score"}})
    context, exported = LocalContext(tmp_path), list[tuple[dict[str, Tensor], dict[str, float]]]()
    result = fit(task, toy.loaders(train, context), context, train, lambda *stored: exported.append(stored))
    assert result["best_step"] == 12
    ((state, metrics),) = exported
    assert metrics == {"score": 0.9}
    assert torch.equal(state["head.weight"], task.heads[1])
    assert not torch.equal(state["head.weight"], task.heads[3])


def test_a_metric_that_is_not_measured_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'CIDEr' is not measured; the validation returns accuracy, loss"):
        run(tmp_path, {**TRAIN, "keep_best": {"metric": "CIDEr"}})


ON_A_BASE: dict[str, Any] = {"hidden": 256, "dropout": 0.2, "base": {"width": 40_000, "dropout": 0.5}}
"""The frozen base is ten times the trained part."""


def launch_in_process(run_dir: Path, payload: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    code = (
        "import json, sys\n"
        "from cluster.train import TrainingRun, launch\n"
        "from idc.training.config import TrainConfig\n"
        "run_dir, payload = sys.argv[1], json.loads(sys.argv[2])\n"
        "train = TrainConfig.model_validate(payload['train'])\n"
        "launch(TrainingRun.in_folder('tests.training.toy:entry', payload, train, run_dir), local=True)\n"
        "assert 'ray' not in sys.modules"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(run_dir), json.dumps(payload)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_killed_process_goes_on_as_if_undisturbed(tmp_path: Path) -> None:
    """SIGKILL in step 18 (micro-batch 2), after the checkpoint of step 15 and the line of step 16, with dropout, on a
    frozen base that is not stored."""
    payload = {**ON_A_BASE, "train": TRAIN, "kill_step": 36, "kill_marker": str(tmp_path / "killed")}
    killed = launch_in_process(tmp_path / "killed_run", payload)
    assert killed.returncode == -9, killed.stderr
    assert read_log(tmp_path / "killed_run" / "log.jsonl")[-1]["step"] == 16
    assert not (tmp_path / "killed_run" / "result.json").exists()
    with (tmp_path / "killed_run" / "log.jsonl").open("a") as log:
        log.write('{"step": 17, "lo')  # a line that the kill has cut
    (tmp_path / "killed_run" / "checkpoints" / checkpoint_name(99)).mkdir()  # and a checkpoint: it is removed
    again = launch_in_process(tmp_path / "killed_run", payload)
    assert again.returncode == 0, again.stderr
    assert "resumed at step 15 of 24" in again.stderr
    run(tmp_path / "undisturbed", **ON_A_BASE)
    assert curve(tmp_path / "killed_run") == curve(tmp_path / "undisturbed")
    a, b = weights(tmp_path / "killed_run"), weights(tmp_path / "undisturbed")
    assert all(torch.equal(a[name], b[name]) for name in b)
    assert a.keys() == toy.ToyTask().state_dict().keys()
    trained = 4 * sum(tensor.numel() for tensor in b.values())
    newest, best = (max((tmp_path / "killed_run" / name).iterdir()) for name in ("checkpoints", "best"))
    written = {path: sum(file.stat().st_size for file in [path, *path.rglob("*")]) for path in (newest, best)}
    assert 0 < written[newest] - 3 * trained < 65536, "weights and Adam's averages; 64 KB for names and shapes"
    assert 0 < written[best] - trained < 65536


def test_what_a_user_keeps_among_the_checkpoints_is_neither_taken_nor_removed(tmp_path: Path) -> None:
    checkpoints, kept = tmp_path / "checkpoints", {"keep_step_1", "step_00000010_kept", "zz_copy", "notes", ".DS_Store"}
    run(tmp_path, {**TRAIN, "steps": 10})
    for name in sorted(kept)[1:]:
        shutil.copytree(checkpoints / checkpoint_name(10), checkpoints / name)
    (checkpoints / "notes" / "complete").unlink()
    (checkpoints / ".DS_Store").touch()
    assert LocalContext(tmp_path).latest_checkpoint() == checkpoints / checkpoint_name(10)
    run(tmp_path)
    assert {path.name for path in checkpoints.iterdir()} == {*kept, checkpoint_name(20), checkpoint_name(24)}


class Full(LocalContext):
    """A context on a disk that is full at step 10: the last file of the checkpoint cannot be written."""

    def checkpoint_folder(self, step: int) -> Path:
        folder = super().checkpoint_folder(step)
        if step == 10:
            (folder / STATE_FILE).mkdir()
        return folder


def test_what_a_failed_checkpoint_has_written_is_removed(tmp_path: Path) -> None:
    config = TrainConfig.model_validate(TRAIN)
    with pytest.raises(IsADirectoryError):
        toy.entry({"train": config.model_dump(mode="json")}, Full(tmp_path))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [checkpoint_name(5)]


def test_a_kill_while_a_complete_checkpoint_is_replaced_leaves_none_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)

    def killed(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        LocalContext(tmp_path).checkpoint_folder(24)
    assert LocalContext(tmp_path).latest_checkpoint() == tmp_path / "checkpoints" / checkpoint_name(20)


@pytest.mark.parametrize("file", ["torch.pt", STATE_FILE])
def test_a_damaged_checkpoint_ends_the_run_and_is_named(tmp_path: Path, file: str) -> None:
    run(tmp_path)
    damaged = tmp_path / "checkpoints" / checkpoint_name(24) / file
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    with pytest.raises(ValueError, match=rf"{damaged.parent} cannot be read \(.*; if it is damaged, remove"):
        run(tmp_path)


def test_the_best_weights_of_an_older_checkpoint_are_kept_until_the_run_is_complete(tmp_path: Path) -> None:
    """The checkpoint of step 10 refers to weights of step 6, which step 12 beats: both files stay."""
    context, kept = LocalContext(tmp_path, keep_last=3), []
    report = context.report

    def watch(metrics: dict[str, Any], checkpoint: Path) -> None:
        report(metrics, checkpoint)
        for name in context.folder.complete_checkpoints():
            best = json.loads((tmp_path / "checkpoints" / name / STATE_FILE).read_text())["best"]
            assert (tmp_path / "best" / f"{checkpoint_name(best['step'])}.safetensors").exists()
        kept.append(len(list((tmp_path / "best").iterdir())))

    context.report = watch  # type: ignore[method-assign]
    train = TrainConfig.model_validate({**TRAIN, "steps": 20, "eval_every": 3, "keep_last": 3})
    toy.entry({"train": train.model_dump(mode="json")}, context)
    assert max(kept) >= 2
    assert len(list((tmp_path / "best").iterdir())) == 1


class Announcing(LocalContext):
    """A context that hears of a loss when it is asked for the second time."""

    asked = 0

    def preemption_announced(self) -> bool:
        self.asked += 1
        return self.asked == 2


def test_an_announced_loss_makes_a_checkpoint(tmp_path: Path) -> None:
    """It is asked with every line of the log."""
    train = {**TRAIN, "steps": 6, "log_every": 1, "checkpoint_every": 6, "keep_last": 9}
    config = TrainConfig.model_validate(train)
    toy.entry({"train": config.model_dump(mode="json")}, Announcing(tmp_path, keep_last=9))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [checkpoint_name(2), checkpoint_name(6)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": "deepspeed-zero2"}, "written by engine deepspeed-zero2, and the config sets torch"),
        ({"stored": ["adapter"]}, "do not store the same names, they differ in adapter, encoder"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    run(tmp_path)
    state_file = tmp_path / "checkpoints" / checkpoint_name(24) / STATE_FILE
    state_file.write_text(json.dumps({**json.loads(state_file.read_text()), **changes}))
    with pytest.raises(ValueError, match=message):
        run(tmp_path)


def test_recomputed_activations_change_nothing(tmp_path: Path) -> None:
    """With dropout inside what is recomputed, and with a base in bfloat16, whose own dropout is off."""
    payload = {"dropout": 0.2, "base": {"width": 20, "dtype": "bfloat16", "dropout": 0.5}}
    run(tmp_path / "recomputed", {**TRAIN, "precision": "bf16", "activation_checkpointing": True}, **payload)
    payload["base"] = {"width": 20, "dtype": "bfloat16"}
    run(tmp_path / "stored", {**TRAIN, "precision": "bf16"}, **payload)
    assert curve(tmp_path / "recomputed") == curve(tmp_path / "stored")
    a, b = (weights(tmp_path / kind) for kind in ("recomputed", "stored"))
    assert all(torch.equal(a[key], b[key]) and a[key].dtype == torch.float32 for key in b)


def test_a_base_in_bfloat16_needs_bf16(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"frozen parameter base.widen.weight is torch.bfloat16, and train"):
        run(tmp_path, base={"width": 20, "dtype": "bfloat16"})
    train = TrainConfig.model_validate({**TRAIN, "precision": "bf16"})
    context = LocalContext(tmp_path)
    with pytest.raises(ValueError, match=r"trained parameter shift is torch.bfloat16, in which small updates are lost"):
        fit(toy.ToyTask().to(torch.bfloat16), toy.loaders(train, context), context, train)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    class Exploding(toy.ToyTask):
        def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
            loss, logs = super().training_step(batch)
            return loss + float("inf"), logs

    train = TrainConfig(steps=4, batch_size=8, log_every=2)
    context = LocalContext(tmp_path)
    with pytest.raises(ValueError, match=r"the loss is inf at step 2"):
        fit(Exploding(), toy.loaders(train, context), context, train)


def test_a_mean_per_sample_does_not_depend_on_the_micro_batch() -> None:
    loss = torch.tensor([[1.0, 3.0], [5.0, 7.0], [9.0, 9.0]])
    weight = torch.tensor([[True, True], [True, False], [False, False]])
    assert mean_per_sample(loss, weight) == pytest.approx((2 + 5 + 0) / 3)


class _Means(Task):
    """Its loss is the mean of a value that a batch holds second dimension first, after a tensor that is not batched."""

    def training_step(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor | float]]:
        return batch["value_1B"].mean(), {}


def test_a_validation_weights_batches_by_their_samples_whatever_tensor_comes_first(tmp_path: Path) -> None:
    def collate(samples: list[dict[str, np.ndarray]]) -> Batch:
        value = torch.tensor([[float(sample["x"].sum()) for sample in samples]])
        return {"shared": torch.zeros(7), "value_1B": value}

    data = toy.ToyData(5)
    loader = EvalLoader(data, 2, 0, 1, collate)  # batches of 2, 2 and 1
    assert [batch[SAMPLES] for batch in loader] == [2, 2, 1]
    expected = np.mean([data.get(i, 0)["x"].sum() for i in range(5)])
    assert _Means().validate(loader, LocalContext(tmp_path))["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("distinct", [1, 2])
def test_kept_weights_with_one_caption_for_all_are_reported(
    distinct: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Captions(toy.ToyTask):
        def validate(self, loader: Any, context: Any) -> dict[str, float]:
            return {**super().validate(loader, context), "distinct_captions": float(distinct)}

    train, context = TrainConfig.model_validate({**toy.TRAIN, "steps": 6}), LocalContext(tmp_path)
    fit(Captions(), toy.loaders(train, context), context, train)
    said = "the weights that are kept caption all 21 validation pairs alike" in "".join(capsys.readouterr())
    assert said is (distinct == 1)
