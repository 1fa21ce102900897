"""Training the interpolator: losses, crops, a tiny run, a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idc.config import ConfigError, load
from idc.data.images import encode_png
from idc.training.config import GroupConfig
from idc.training.context import LocalContext
from idc.training.data import Loader
from idc.vision.image_quality import psnr_ssim
from idc.vision.interpolation.config import InterpolatorLossConfig, TrainInterpolatorJob
from idc.vision.interpolation.middle_frames import make_middle
from idc.vision.interpolation.model import VFIformer
from idc.vision.interpolation.task import (
    InterpolatorTask,
    TrainingTriplets,
    WholeTriplets,
    census_loss,
    collate,
    flow_loss,
    teacher_flow,
    train,
)
from idc.vision.interpolation.triplets import Triplet
from tests.vision.interpolation.test_middle_frames import textured
from tests.vision.interpolation.test_vfiformer import TINY

# -- losses --------------------------------------------------------------------------------------------------------


def test_census_loss_by_hand() -> None:
    rng = np.random.default_rng(0)
    made, true = rng.random((2, 3, 5, 6))
    tensors = [torch.from_numpy(image).float()[None] for image in (made, true)]
    grey = [np.pad(np.tensordot([0.2989, 0.5870, 0.1140], image, 1), 3) for image in (made, true)]
    total = 0.0
    for y in range(1, 4):
        for x in range(1, 5):
            for dy in range(7):
                for dx in range(7):
                    d = [g[y + dy, x + dx] - g[y + 3, x + 3] for g in grey]
                    t = [value / np.sqrt(0.81 + value**2) for value in d]
                    apart = (t[0] - t[1]) ** 2
                    total += apart / (0.1 + apart) / 49
    assert float(census_loss(*tensors)) == pytest.approx(total / 30, rel=1e-4)
    assert float(census_loss(tensors[0], tensors[0])) == 0


def test_flow_loss_is_the_end_point_error_at_half_resolution() -> None:
    flow = torch.zeros(2, 4, 8, 8)
    flow[:, 0], flow[:, 3] = 6, -8  # (6, 0) to the first, (0, -8) to the last frame; at half resolution 3 and 4
    zero, right = torch.zeros(2, 4, 4, 4), torch.zeros(2, 4, 4, 4)
    right[:, 0], right[:, 3] = 3, -4
    assert float(flow_loss([zero, zero, zero], flow)) == pytest.approx(3 * 3.5, rel=1e-4)
    assert float(flow_loss([zero, right, right], flow)) == pytest.approx(3.5, abs=1e-2)


def test_loss_of_a_batch_is_the_mean_over_its_samples() -> None:
    torch.manual_seed(0)
    task = InterpolatorTask(TINY.model_copy(update={"drop_path": 0.0}), InterpolatorLossConfig(), GroupConfig())
    data = TrainingTriplets([moving(2.0), moving(5.0)], 32, True, 0, None)
    samples = [data.get(n, 0) for n in range(2)]
    together, _ = task.training_step(collate(samples))
    single = [task.training_step(collate([sample]))[0].detach() for sample in samples]
    assert float(together.detach()) == pytest.approx(float(torch.stack(single).mean()), rel=1e-4)


# -- data ----------------------------------------------------------------------------------------------------------


def moving(shift: float, size: tuple[int, int] = (48, 64)) -> Triplet:
    return Triplet(f"by {shift}", *(textured(*size, shift=part * shift) for part in (0, 0.5, 1)))


def test_teacher_flow_points_from_the_middle_both_ways() -> None:
    triplet = moving(6.0, (96, 128))
    flow = teacher_flow(triplet.first, triplet.middle, triplet.last)[16:-16, 16:-16]
    assert flow.shape == (64, 96, 4)
    assert np.median(flow, axis=(0, 1)) == pytest.approx([-3, 0, 3, 0], abs=0.5)


def test_crops_of_the_three_frames_belong_together() -> None:
    data = TrainingTriplets([moving(4.0)], 32, True, 7, None)
    seen = set()
    for epoch in range(24):
        sample = data.get(0, epoch)
        assert all((data.get(0, epoch)[name] == sample[name]).all() for name in sample), "a pure function"
        assert sample["first"].shape == sample["middle"].shape == (32, 32, 3)
        assert sample["flow"].shape == (32, 32, 4)
        blend = (sample["first"].astype(float) + sample["last"]) / 2
        flow = teacher_flow(sample["first"], sample["middle"], sample["last"])
        assert (sample["flow"] == flow).all()
        assert np.abs(blend - sample["middle"]).mean() < 25  # frames of one place
        seen.add(sample["middle"].tobytes())
    assert len(seen) > 20
    assert not TrainingTriplets([moving(4.0)], 32, False, 7, None).get(0, 0)["flow"].any()
    with pytest.raises(ValueError, match="64x48, smaller than crop_size=64"):
        TrainingTriplets([moving(4.0)], 64, True, 7, None).get(0, 0)


# -- a run ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def triplets(tmp_path_factory: pytest.TempPathFactory) -> str:
    """20 textures that move; two of them are held out."""
    folder = tmp_path_factory.mktemp("triplets")
    for n in range(20):
        for k, frame in enumerate(moving(1.5 + 0.3 * (n % 11))[1:]):
            (folder / f"{n:02d}_frame{k}.png").write_bytes(encode_png(frame))
    return str(folder)


def tiny_job(triplets: str, **overrides: Any) -> TrainInterpolatorJob:
    values = {
        "triplets": triplets,
        **{f"model.{key}": value for key, value in TINY.model_dump().items()},
        "crop_size": 32,
        "loss.flow": 0.1,
        "optim.lr": 2e-3,
        "optim.warmup_steps": 5,
        "train.epochs": None,
        "train.steps": 40,
        "train.batch_size": 4,
        "train.checkpoint_every": 20,
        "train.prefetch": 0,
        **overrides,
    }
    return load(TrainInterpolatorJob, None, values)


@pytest.fixture(scope="module")
def finished(triplets: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    run = tmp_path_factory.mktemp("run")
    torch.manual_seed(0)
    return run, train(tiny_job(triplets).model_dump(mode="json"), LocalContext(run))


def test_a_run_improves_on_its_start(finished: tuple[Path, dict[str, Any]], triplets: str) -> None:
    run, result = finished
    assert result["metrics"]["PSNR"] > result["metrics"]["PSNR_start"] + 1
    assert result["metrics"]["SSIM"] > result["metrics"]["SSIM_start"]
    assert json.loads((run / "artifact" / "metrics.json").read_text()) == pytest.approx(result["metrics"])
    triplet = moving(1.5 + 0.3 * 9)  # the first of the two held out is number 9, and the second 19 moves as 8
    other = moving(1.5 + 0.3 * 8)
    middle = make_middle("vfiformer", str(run / "artifact"))
    scores = [psnr_ssim(t.middle, middle(t.first, t.last))[0] for t in (triplet, other)]
    assert np.mean(scores) == pytest.approx(result["metrics"]["PSNR"], abs=0.01)


@pytest.mark.slow
def test_a_restarted_run_ends_as_an_undisturbed_one(
    finished: tuple[Path, dict[str, Any]], triplets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    job = tiny_job(triplets).model_dump(mode="json")
    samples = Loader.samples

    def dies(self: Loader, micro_step: int) -> Any:
        calls.append(1)
        if len(calls) > 30:
            raise Killed
        return samples(self, micro_step)

    calls: list[int] = []
    monkeypatch.setattr(Loader, "samples", dies)
    torch.manual_seed(0)
    with pytest.raises(Killed):
        train(job, LocalContext(tmp_path))
    monkeypatch.undo()
    torch.manual_seed(99)
    again = train(job, LocalContext(tmp_path))
    assert again["metrics"] == pytest.approx(finished[1]["metrics"], abs=1e-3)


def test_training_can_begin_with_given_weights(
    finished: tuple[Path, dict[str, Any]], triplets: str, tmp_path: Path
) -> None:
    artifact = str(finished[0] / "artifact")
    job = tiny_job(triplets, **{"start": artifact, "train.steps": 1, "loss.flow": 0.0})
    result = train(job.model_dump(mode="json"), LocalContext(tmp_path))
    assert result["metrics"]["PSNR_start"] == pytest.approx(finished[1]["metrics"]["PSNR"], abs=1e-3)
    other = tiny_job(triplets, **{"start": artifact, "model.width": 16})
    with pytest.raises(ValueError, match="has another shape than model"):
        train(other.model_dump(mode="json"), LocalContext(tmp_path / "other"))


def test_validation_is_on_whole_frames_of_any_size(tmp_path: Path) -> None:
    task = InterpolatorTask(TINY, InterpolatorLossConfig(), GroupConfig()).eval()
    whole = WholeTriplets([moving(2.0, (33, 41)), moving(2.0, (20, 70))])
    context = LocalContext(tmp_path)
    metrics = task.validate([collate([whole.get(n, 0)]) for n in range(2)], context)
    expected = []
    for n in range(2):
        sample = whole.get(n, 0)
        images = torch.from_numpy(np.stack([sample["first"], sample["last"]])).permute(0, 3, 1, 2) / 255
        with torch.no_grad():
            made = task.model(images[:1], images[1:]).frame[0].permute(1, 2, 0)
        expected.append(psnr_ssim(sample["middle"], (made * 255).round().to(torch.uint8).numpy())[0])
    assert metrics["PSNR"] == pytest.approx(np.mean(expected), abs=0.01)


def test_faults() -> None:
    with pytest.raises(ConfigError) as caught:
        tiny_job("t", crop_size=40, **{"loss.l1": 0, "loss.census": 0})
    assert sorted(caught.value.faults, reverse=True) == [
        "loss.l1 and census: at least one needs a weight above 0",
        "crop_size: 40 is not divisible by model.pad_multiple = 32; take 32",
    ]


def test_the_interpolator_of_the_paper_is_the_default() -> None:
    job = TrainInterpolatorJob(triplets="t")
    assert (job.crop_size, job.train.epochs, job.train.batch_size) == (192, 300, 24)
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in VFIformer(job.model).parameters()) == 24_166_930
