"""Training of VFIformer on the shared loop: losses on the middle frame, its census transform, and a teacher's flow."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idc.training.config import GroupConfig
from idc.training.context import Context
from idc.training.data import EvalLoader, Loader, Loaders, OnDevice, sample_rng
from idc.training.loop import fit
from idc.training.task import Batch, Task
from idc.vision.image_quality import contact_sheet, psnr_ssim
from idc.vision.interpolation.config import InterpolatorLossConfig, TrainInterpolatorJob, VFIformerConfig
from idc.vision.interpolation.convert import load_vfiformer
from idc.vision.interpolation.flow_network import resized_flow
from idc.vision.interpolation.model import VFIformer
from idc.vision.interpolation.triplets import Triplets, open_triplets
from idc.vision.tokenizer.model import to_frames

START_FILE = "start.json"
"""File in the run's folder with the validation before the first step."""

_NUM_PICTURES = 4
_PICTURE_SIDE = 256
_GREY = (0.2989, 0.5870, 0.1140)


class InterpolatorTask(Task):
    """VFIformer with its losses."""

    def __init__(self, config: VFIformerConfig, loss: InterpolatorLossConfig, optim: GroupConfig) -> None:
        super().__init__()
        self.model = VFIformer(config)
        self.loss = loss
        self.optim = optim

    def param_groups(self) -> list[dict[str, Any]]:
        return [{"name": "interpolator", "params": list(self.parameters()), **self.optim.model_dump()}]

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """``batch`` has "first", "middle", "last" uint8 (B, 3, H, W) and "flow" float (B, 4, H, W) from the middle."""
        first, middle, last = (batch[name].float() / 255 for name in ("first", "middle", "last"))
        made = self.model(first, last)
        frame = made.frame.float()
        l1, census = (frame - middle).abs().mean(), census_loss(frame, middle)
        logs: dict[str, Tensor | float] = {"l1": l1, "census": census}
        total = self.loss.l1 * l1 + self.loss.census * census
        if self.loss.flow:
            flow = flow_loss(made.estimates, batch["flow"])
            total = total + self.loss.flow * flow
            logs["flow"] = flow
        return total, logs

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """Mean PSNR and SSIM of whole middle frames over the triplets."""
        scores: list[tuple[float, float]] = []
        pictures: list[np.ndarray] = []
        for batch in loader:
            first, middle, last = (batch[name].float() / 255 for name in ("first", "middle", "last"))
            made = to_frames(self.model(first, last).frame)
            for n, (true, guess) in enumerate(zip(to_frames(middle), made, strict=True)):
                scores.append(psnr_ssim(true, guess))
                if len(pictures) < 4 * _NUM_PICTURES:
                    shown = (*to_frames(first[n : n + 1]), true, guess, *to_frames(last[n : n + 1]))
                    pictures += [_thumbnail(picture) for picture in shown]
        parts = context.all_gather_object(scores)
        if context.rank == 0 and pictures:
            context.tracker.image("first, true middle, made middle, last", contact_sheet(pictures, rows=4))
        everything = [score for part in parts for score in part]
        return {
            "PSNR": float(np.mean([score[0] for score in everything])),
            "SSIM": float(np.mean([score[1] for score in everything])),
        }


def census_loss(made: Tensor, true: Tensor) -> Tensor:
    """Soft Hamming distance of the signs by which the 7x7 neighbours of a pixel are brighter or darker than it (the
    ternary census transform as VFIformer takes it from RIFE), on RGB (B, 3, H, W) in [0, 1]; zeros beyond the border,
    whose outermost pixels do not count."""
    apart = (_census(made) - _census(true)).square()
    distance = (apart / (0.1 + apart)).mean(1)
    inside = torch.zeros_like(distance)
    inside[:, 1:-1, 1:-1] = 1
    return (distance * inside).mean()


def _census(images: Tensor) -> Tensor:
    grey = (images * images.new_tensor(_GREY)[:, None, None]).sum(1, keepdim=True)
    neighbours = F.unfold(grey, 7, padding=3).unflatten(2, grey.shape[2:])
    difference = neighbours - grey
    return difference / torch.sqrt(0.81 + difference.square())


def flow_loss(estimates: list[Tensor], flow: Tensor) -> Tensor:
    """End-point error of the flow network's estimates at half resolution: sum over its blocks, mean over both
    directions."""
    target = resized_flow(flow, 1 / 2)
    apart = torch.stack([(estimate.float() - target).square().unflatten(1, (2, 2)).sum(2) for estimate in estimates])
    return torch.sqrt(apart + 1e-6).mean(dim=(1, 2, 3, 4)).sum()


def _thumbnail(picture: np.ndarray) -> np.ndarray:
    """Crop or pad to the top left square of a fixed size."""
    part = picture[:_PICTURE_SIDE, :_PICTURE_SIDE]
    return np.pad(part, [(0, _PICTURE_SIDE - part.shape[0]), (0, _PICTURE_SIDE - part.shape[1]), (0, 0)])


# -- data ----------------------------------------------------------------------------------------------------------


class TrainingTriplets:
    """Dataset of random crops with a teacher's flow, randomly flipped in both directions and reversed in time."""

    def __init__(self, triplets: Triplets, crop_size: int, with_flow: bool, seed: int, limit: int | None) -> None:
        self.triplets = triplets
        self.crop_size = crop_size
        self.with_flow = with_flow
        self.seed = seed
        self.count = len(triplets) if limit is None else min(limit, len(triplets))

    def __len__(self) -> int:
        return self.count

    def get(self, index: int, epoch: int) -> dict[str, np.ndarray]:
        """``first``, ``middle``, ``last`` uint8 (H, W, 3), ``flow`` float32 (H, W, 4), zeros without ``with_flow``."""
        triplet = self.triplets[index]
        frames = [triplet.first, triplet.middle, triplet.last]
        height, width = frames[0].shape[:2]
        size = self.crop_size
        if height < size or width < size:
            raise ValueError(
                f"triplet {triplet.name} is {width}x{height}, smaller than crop_size={size}; take a smaller one"
            )
        rng = sample_rng(self.seed, epoch, index)
        top, left = int(rng.integers(height - size + 1)), int(rng.integers(width - size + 1))
        frames = [frame[top : top + size, left : left + size] for frame in frames]
        upside_down, mirrored, reversed_time = rng.random(3) < 0.5
        frames = [frame[:: -1 if upside_down else 1, :: -1 if mirrored else 1] for frame in frames]
        first, middle, last = (np.ascontiguousarray(frame) for frame in frames[:: -1 if reversed_time else 1])
        flow = teacher_flow(first, middle, last) if self.with_flow else np.zeros((size, size, 4), np.float32)
        return {"first": first, "middle": middle, "last": last, "flow": flow}


def teacher_flow(first: np.ndarray, middle: np.ndarray, last: np.ndarray) -> np.ndarray:
    """DIS flow from the middle frame to the first and to the last: float32 (H, W, 4), pixels."""
    import cv2

    dis = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM)  # type: ignore[attr-defined]
    grey = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in (first, middle, last)]
    return np.concatenate([dis.calc(grey[1], grey[0], None), dis.calc(grey[1], grey[2], None)], axis=2)


class WholeTriplets:
    """Dataset of whole frames, for validation."""

    def __init__(self, triplets: Triplets) -> None:
        self.triplets = triplets

    def __len__(self) -> int:
        return len(self.triplets)

    def get(self, index: int, epoch: int) -> dict[str, np.ndarray]:
        """``first``, ``middle``, ``last`` uint8 (H, W, 3)."""
        _, first, middle, last = self.triplets[index]
        return {"first": first, "middle": middle, "last": last}


def collate(samples: list[dict[str, np.ndarray]]) -> dict[str, Tensor]:
    """Stack each name's arrays (H, W, C) to one tensor (B, C, H, W)."""
    return {
        name: torch.from_numpy(np.stack([sample[name] for sample in samples])).permute(0, 3, 1, 2)
        for name in samples[0]
    }


# -- the run -------------------------------------------------------------------------------------------------------


def train(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    """Train on this rank; ``payload`` is a resolved :class:`TrainInterpolatorJob`. Returns what ``fit`` returns.

    The interpolator is written to ``<run>/artifact``, as :meth:`VFIformer.save` does, with metrics.json next to it.
    Its metrics include the validation before the first step, as ``PSNR_start`` and ``SSIM_start``.
    """
    job = TrainInterpolatorJob.model_validate(payload)
    task = InterpolatorTask(job.model, job.loss, job.optim)
    if job.start is not None:
        given = load_vfiformer(job.start)
        if given.config != job.model:
            raise ValueError(f"start: {job.start} has another shape than model: {given.config} and {job.model}")
        task.model.load_state_dict(given.state_dict())
    training = TrainingTriplets(
        open_triplets(job.triplets, "train"), job.crop_size, job.loss.flow > 0, job.train.seed, job.max_triplets
    )
    held_out = WholeTriplets(open_triplets(job.triplets, "val"))
    loaders = Loaders(
        Loader.from_config(training, collate, job.train, context.rank, context.world_size),
        EvalLoader(held_out, 1, context.rank, context.world_size, collate, job.validation_triplets)
        if len(held_out)
        else None,
    )
    start = _start(task, loaders.validation, context, job.train.cpus_per_worker)

    def export(state: dict[str, Tensor], metrics: dict[str, float]) -> None:
        model = VFIformer(job.model)
        model.load_state_dict({name.removeprefix("model."): tensor for name, tensor in state.items()})
        model.save(context.run_dir / "artifact")
        text = json.dumps({**metrics, **start}, indent=1) + "\n"
        (context.run_dir / "artifact" / "metrics.json").write_text(text, encoding="utf-8")

    result = fit(task, loaders, context, job.train, export=export)
    return {**result, "metrics": {**result["metrics"], **start}}


def _start(task: InterpolatorTask, loader: EvalLoader | None, context: Context, threads: int) -> dict[str, float]:
    """Validate the initial weights; a restarted run reads the stored result."""
    if loader is None:
        return {}
    path = context.run_dir / START_FILE
    if context.latest_checkpoint() is not None and path.is_file():
        found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
        return found
    torch.set_num_threads(threads)
    task.to(context.device).eval()
    metrics = {
        f"{name}_start": value for name, value in task.validate(OnDevice(loader, context.device), context).items()
    }
    task.train()
    if context.rank == 0:
        path.write_text(json.dumps(metrics) + "\n", encoding="utf-8")
    return metrics
