"""The image tokenizer around diffusers' VQModel: codes, features, the artifact; a tiny training and its codebook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from idc.config import ConfigError, load
from idc.training.context import LocalContext
from idc.training.tracker import Tracker
from idc.vision.pretrained import network_fingerprint
from idc.vision.tokenizer.config import TokenizerConfig, TokenizerLossConfig, TrainTokenizerJob
from idc.vision.tokenizer.model import ImageTokenizer, prepare_frame, prepare_images, to_frames, to_images
from idc.vision.tokenizer.task import TokenizerImages, TokenizerTask, collate_images, kmeans, start_linear, train
from tests.vision.scenes import COLOURS, TINY, pair_row, scene, write_pairs


@pytest.fixture(scope="module")
def tokenizer() -> ImageTokenizer:
    torch.manual_seed(0)
    model = ImageTokenizer(TINY).eval()
    model.codebook.copy_(torch.randn(model.codebook.shape))
    return model


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return to_images(np.stack([scene(colour, left) for left, colour in enumerate(("red", "green", "blue", None))]))


def test_tokens_and_features_agree_with_diffusers(tokenizer: ImageTokenizer, images: torch.Tensor) -> None:
    with torch.no_grad():
        latents = tokenizer.model.encode(torch.nn.functional.pixel_unshuffle(2 * images - 1, 4)).latents
        _, _, (_, _, expected) = tokenizer.model.quantize(latents)
        tokens, features = tokenizer.tokens_and_features(images)
    assert tokens.shape == (4, 16)
    assert tokens.dtype == torch.int64
    assert features.shape == (4, 16, 16)
    assert tokens.flatten().tolist() == expected.tolist()
    assert torch.equal(tokens, tokenizer.encode(images))
    torch.testing.assert_close(features, tokenizer.features(images))


def test_patches_are_row_by_row(tokenizer: ImageTokenizer, images: torch.Tensor) -> None:
    with torch.no_grad():
        maps, features = tokenizer.encoder_features(images), tokenizer.features(images)
        torch.testing.assert_close(features[:, 4 * 1 + 2], maps[:, :, 1, 2])
        rows = tokenizer.project(maps)
        reconstructed = tokenizer.reconstruct(rows)
        expected = tokenizer.model.decoder(tokenizer.model.post_quant_conv(rows.transpose(1, 2).reshape(-1, 16, 4, 4)))
        torch.testing.assert_close(reconstructed, torch.nn.functional.pixel_shuffle(expected, 4))


def test_official_features_are_of_unit_images(tokenizer: ImageTokenizer, images: torch.Tensor) -> None:
    official = ImageTokenizer(TINY.model_copy(update={"feature_range": "unit"})).eval()
    official.load_state_dict(tokenizer.state_dict())
    with torch.no_grad():
        tokens, features = official.tokens_and_features(images)
        assert torch.equal(tokens, tokenizer.encode(images))
        torch.testing.assert_close(features, tokenizer.features((images + 1) / 2))


def test_codes_become_images_and_wrong_shapes_are_refused(tokenizer: ImageTokenizer) -> None:
    with torch.no_grad():
        images = tokenizer.decode(torch.arange(32).view(2, 16))
    assert images.shape == (2, 3, 32, 32)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    with pytest.raises(ValueError, match=r"\(2, 15\), expected \(B, 16\)"):
        tokenizer.decode(torch.zeros(2, 15, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\(1, 3, 32, 40\), expected \(B, 3, 32, 32\)"):
        tokenizer.encode(torch.zeros(1, 3, 32, 40))


def test_save_and_load(tokenizer: ImageTokenizer, images: torch.Tensor, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    again = ImageTokenizer.load(tmp_path)
    assert again.config == tokenizer.config
    assert not again.training
    with torch.no_grad():
        assert torch.equal(again.features(images), tokenizer.features(images))
    first = network_fingerprint(tmp_path)
    again.codebook[0, 0] += 1
    again.save(tmp_path)
    assert network_fingerprint(tmp_path) != first


def test_load_refuses_what_does_not_fit(tokenizer: ImageTokenizer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not an artifact"):
        ImageTokenizer.load(tmp_path)
    tokenizer.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "config": {**config["config"], "codebook_size": 64}}))
    with pytest.raises(ValueError, match="does not fit"):
        ImageTokenizer.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "config": {**config["config"], "image_size": 64}}))
    with pytest.raises(ValueError, match=r"preprocess\.json"):
        ImageTokenizer.load(tmp_path)


def test_frames_and_images() -> None:
    frames = np.stack([scene("red"), scene("blue")])
    assert (to_frames(to_images(frames)) == frames).all()
    wide = prepare_frame(scene("red", 50, (48, 96)), TINY)
    assert wide.shape == (32, 32, 3)
    assert wide[16, 19].tolist() == pytest.approx([200, 40, 40], abs=25)  # the square at 50..62 of 96


def test_official_images_are_resized_bilinearly_and_not_rounded() -> None:
    """Each pixel is a weighted mean of its surroundings; halving weighs the four nearest of a row 1, 3, 3, 1."""
    config = TINY.model_copy(update={"resize": "bilinear"})
    rows = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    (image,) = prepare_images([rows], config)
    column = (torch.tensor([1.0, 3, 3, 1]).view(4, 1) @ torch.tensor([1.0, 3, 3, 1]).view(1, 4)) / 64
    expected = (torch.from_numpy(rows[1:5, 3:7]).float() / 255 * column.unsqueeze(-1)).sum((0, 1))
    torch.testing.assert_close(image[:, 1, 2], expected)
    assert ((image * 255 - (image * 255).round()).abs() > 0.01).any()
    assert (prepare_frame(rows, config) == to_frames(image[None])[0]).all()
    both = prepare_images([rows, rows[:32]], TINY)
    assert (to_frames(both[:1])[0] == prepare_frame(rows, TINY)).all()
    assert both.shape == (2, 3, 32, 32)


LINEAR = TokenizerConfig(
    image_size=32, patch_size=8, channels=68, channel_mult=(1,), res_blocks=1, mid_attention=True, norm_groups=2,
    codebook_size=32, latent_dim=32,
)  # fmt: skip
LOSS = TokenizerLossConfig(codebook_start=2, codebook_decay=0.5, revive_after=3, flip=False)


def many_scenes(count: int = 48) -> np.ndarray:
    names = [*COLOURS, None]
    return np.stack([scene(names[n % 5], left=(7 * n) % 20) for n in range(count)])


def batch_of(frames: np.ndarray) -> dict[str, torch.Tensor]:
    return collate_images([(frame, False) for frame in frames])


# -- a run --------------------------------------------------------------------------------------------------------


class Pictures(Tracker):
    """Keeps pictures."""

    def __init__(self) -> None:
        self.images: dict[str, np.ndarray] = {}

    def image(self, name: str, image: Any, step: int | None = None) -> None:
        self.images[name] = image


def tiny_job(pairs: str, **overrides: Any) -> TrainTokenizerJob:
    values = {
        "pairs": pairs,
        **{f"tokenizer.{key}": value for key, value in LINEAR.model_dump().items()},
        "loss.linear_start": True,
        "loss.codebook_start": 4,
        "loss.optim.lr": 1e-3,
        "train.steps": 30,
        "train.batch_size": 8,
        "train.log_every": 5,
        "train.checkpoint_every": 10,
        "train.prefetch": 0,
        **overrides,
    }
    return load(TrainTokenizerJob, None, values)


def test_a_run_learns_to_show_colours(tmp_path: Path) -> None:
    rows = [pair_row(n, "val" if n % 4 == 3 else "train") for n in range(24)]
    job, tracker = tiny_job(write_pairs(tmp_path / "pairs", rows)), Pictures()
    torch.manual_seed(0)
    metrics = train(job.model_dump(mode="json"), LocalContext(tmp_path / "run", tracker=tracker))["metrics"]
    for name, least in {"PSNR": 24, "SSIM": 0.75, "codebook_usage": 0.25, "perplexity": 4}.items():
        assert metrics[name] > least, name
    assert tracker.images["reconstructions"].shape == (64, 8 * 32, 3)
    artifact = tmp_path / "run" / "artifact"
    assert json.loads((artifact / "metrics.json").read_text())["PSNR"] == metrics["PSNR"]
    tokenizer = ImageTokenizer.load(artifact)
    frames = np.stack([scene(colour, 9) for colour in COLOURS])
    with torch.no_grad():
        made = to_frames(tokenizer.decode(tokenizer.encode(to_images(frames))))
    for frame, guess in zip(frames, made, strict=True):
        np.testing.assert_allclose(guess[12:20, 11:19].mean((0, 1)), frame[12:20, 11:19].mean((0, 1)), atol=45)


# -- the codebook -------------------------------------------------------------------------------------------------


def steps(task: TokenizerTask, frames: np.ndarray, count: int, parts: int = 1) -> TokenizerTask:
    """Some optimizer steps of plain gradient descent over ``frames`` in ``parts`` micro-batches."""
    task.train()
    for _ in range(count):
        for part in np.split(frames, parts):
            loss, _ = task.training_step(batch_of(part))
            (loss / parts).backward()
        with torch.no_grad():
            for parameter in task.parameters():
                if parameter.grad is not None:
                    parameter -= 0.02 * parameter.grad
                    parameter.grad = None
    return task


def fresh(parts: int = 1, **loss: Any) -> TokenizerTask:
    torch.manual_seed(0)
    return TokenizerTask(TINY, LOSS.model_copy(update=loss), seed=3, grad_accumulation=parts)


def assert_same(first: TokenizerTask, second: dict[str, torch.Tensor]) -> None:
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(tensor, second[name], rtol=1e-3, atol=2e-5, msg=lambda text, n=name: f"{n}: {text}")


def test_four_micro_batches_are_one_batch() -> None:
    frames = many_scenes(16)
    whole, cut = steps(fresh(), frames, 8), steps(fresh(4), frames, 8, parts=4)
    assert int(whole.step) == int(cut.step) == 8
    assert_same(whole, cut.state_dict())


def test_all_that_the_codebook_remembers_is_in_a_checkpoint() -> None:
    """Also for how long codes that are nearest to nothing have been idle."""
    frames, whole, again = many_scenes(16), steps(fresh(), many_scenes(16), 3), fresh()
    with torch.no_grad():
        whole._set_codes(torch.arange(4), whole.codebook[:4] + 100, torch.ones(4))
    steps(whole, frames, 1)
    assert whole.idle_steps[:4].all()
    again.load_state_dict(whole.state_dict())
    assert_same(steps(whole, frames, 5), steps(again, frames, 5).state_dict())


def _worker(rank: int, frames: np.ndarray, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    task = fresh()
    task.train()
    for _ in range(8):
        loss, _ = task.training_step(batch_of(np.split(frames, 2)[rank]))
        loss.backward()
        with torch.no_grad():
            for parameter in task.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter -= 0.02 * parameter.grad / 2
                    parameter.grad = None
    torch.save(task.state_dict(), f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_workers_are_one(tmp_path: Path) -> None:
    frames = many_scenes(16)
    mp.spawn(_worker, args=(frames, str(tmp_path)), nprocs=2)
    states = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    for name in states[0]:
        if "code" in name or "quantize" in name or name in ("step", "pool", "idle_steps"):
            assert torch.equal(states[0][name], states[1][name]), name
    assert_same(steps(fresh(), frames, 8), states[0])


def test_codebook_begins_with_kmeans_and_follows_the_encoder() -> None:
    task = fresh()
    frames = many_scenes(16)
    steps(task, frames, 2)
    assert float(task.codebook.abs().max()) < 0.1  # not begun: VQModel's uniform start
    steps(task, frames, 1)
    with torch.no_grad():
        rows = task.tokenizer.project(task.tokenizer.encoder_features(to_images(frames)))
        nearest = task.codebook[task.tokenizer.nearest(rows)]
    assert float((rows - nearest).square().mean() / rows.var()) < 0.3
    before = task.codebook.clone()
    steps(task, frames, 1)
    assert not torch.equal(task.codebook, before)


def test_dead_codes_are_revived_among_badly_fitted_patches() -> None:
    task = steps(fresh(revive_after=2), many_scenes(16), 4)
    task.codebook[:8] = 1e3  # where no patch is
    task.code_counts[:8] = 0
    task.code_sums[:8] = 0
    task.idle_steps.zero_()
    steps(task, many_scenes(16), 1)
    assert float(task.codebook[:8].abs().max()) == 1e3  # idle for one step: still there
    steps(task, many_scenes(16), 1)
    assert float(task.codebook.abs().max()) < 100
    assert task.idle_steps[:8].tolist() == [0] * 8


def test_kmeans_finds_clusters() -> None:
    generator = torch.Generator().manual_seed(0)
    true = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    rows = true.repeat_interleave(torch.tensor([50, 30, 20]), 0) + 0.1 * torch.randn(100, 2, generator=generator)
    centres, sizes = kmeans(rows, 3, generator)
    order = sizes.argsort(descending=True)
    assert sizes[order].tolist() == [50, 30, 20]
    torch.testing.assert_close(centres[order], true, atol=0.1, rtol=0)
    few, _ = kmeans(rows[:2], 5, generator)
    assert few.shape == (5, 2)


# -- the linear start ---------------------------------------------------------------------------------------------


def test_linear_start_is_principal_component_analysis() -> None:
    images = to_images(many_scenes())
    tokenizer = ImageTokenizer(LINEAR)
    start_linear(tokenizer, images)
    patches = torch.nn.functional.pixel_unshuffle(2 * images - 1, 8).permute(0, 2, 3, 1).flatten(0, 2)
    mean = patches.mean(0)
    _, _, components = torch.linalg.svd(patches - mean, full_matrices=False)
    kept = components[:32]
    best = (patches - mean) @ kept.T @ kept + mean
    with torch.no_grad():
        rows = tokenizer.project(tokenizer.encoder_features(images))
        made = torch.nn.functional.pixel_unshuffle(tokenizer.reconstruct(rows), 8).permute(0, 2, 3, 1).flatten(0, 2)
    torch.testing.assert_close(made, best, atol=2e-2, rtol=0)
    distances = torch.cdist(rows.flatten(0, 1)[:50], rows.flatten(0, 1)[:50])
    expected = torch.cdist(best[:50], best[:50])
    ratio = (distances / expected)[expected > 0.5]
    torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio), rtol=0.02, atol=0)


@pytest.mark.parametrize(("override", "fault"), [
    ({"tokenizer.channel_mult": [1, 1]}, "needs one level"),
    ({"tokenizer.channels": 64}, "at least 68"),
    ({"loss.codebook_start": 30}, "is not before train.steps"),
])  # fmt: skip
def test_contradictions_are_refused(override: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        tiny_job("pairs", **override)


# -- parts --------------------------------------------------------------------------------------------------------


def test_images_of_pairs_are_drawn_by_index_and_epoch() -> None:
    rows = [pair_row(n, "train") for n in range(4)]
    loss = TokenizerLossConfig(blend_share=0.5, continuous_share=0.5)
    images = TokenizerImages(rows, TINY, loss, augment=True, seed=1)
    plain = TokenizerImages(rows, TINY, loss, augment=False)
    assert len(images) == 8
    assert all(np.array_equal(images.get(n, 0)[0], images.get(n, 0)[0]) for n in range(8))
    assert any((images.get(n, 0)[0] != images.get(n, 1)[0]).any() for n in range(8))
    assert {images.get(n, e)[1] for n in range(8) for e in (0, 1)} == {True, False}  # continuous or not
    assert (plain.get(1, 0)[0] == plain.get(1, 5)[0]).all()
    assert (plain.get(0, 0)[0] != plain.get(1, 0)[0]).any()  # before and after of a changed pair
    assert len(TokenizerImages(rows, TINY, loss, augment=True, limit=3)) == 6
