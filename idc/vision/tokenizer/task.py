"""Training of the image tokenizer on the shared loop.

The codebook is not trained by the optimizer. Each code is the moving average of the encoder outputs assigned to it
(VQ-VAE's second form, van den Oord et al. 2017, appendix A.1), and an unused code is revived. To keep the codebook the
same on all ranks under every engine:

- the codebook and its averages are buffers, which no engine shards and no optimizer copies;
- it is updated once per optimizer step, after the last micro-batch, from sums over all micro-batches and (by one
  all-reduce) all ranks;
- candidates for new codes are positions in the batch of the whole step, drawn by (seed, step): each rank fills in those
  that fall into its slice of a micro-batch, and the all-reduce adds them up;
- every random draw has its own CPU generator seeded by (seed, step), and draws from data that is equal on all ranks.

So 4 micro-batches are equivalent to 1 large one, and 2 workers to 1, except for the order of float sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from idc.data.images import decode_image
from idc.data.store import MappedRows
from idc.training.context import Context
from idc.training.data import sample_rng
from idc.training.system import Parts, System
from idc.training.task import Batch, Task
from idc.vision.image_quality import contact_sheet, psnr_ssim
from idc.vision.tokenizer.config import TokenizerConfig, TokenizerLossConfig, TrainTokenizerJob
from idc.vision.tokenizer.model import (
    SYSTEM,
    ImageTokenizer,
    artifact_settings,
    nearest_rows,
    prepare_frame,
    to_frames,
    to_images,
)

_POOL_FACTOR = 8
"""Encoder outputs kept for the first k-means, as a multiple of the number of codes."""
_LLOYD_STEPS = 8
_LINEAR_START_IMAGES = 500
_NUM_PICTURES = 8
_CONSTANT = 100.0
"""Value of the constant channels, relative to the components' root mean square."""


class TokenizerTask(Task):
    """Reconstruction, commitment and the moving codebook."""

    step: Tensor
    code_counts: Tensor
    code_sums: Tensor
    idle_steps: Tensor
    pool: Tensor
    step_counts: Tensor
    step_sums: Tensor
    step_candidates: Tensor

    def __init__(
        self, tokenizer: TokenizerConfig, loss: TokenizerLossConfig, seed: int = 0, grad_accumulation: int = 1
    ) -> None:
        super().__init__()
        self.tokenizer = ImageTokenizer(tokenizer)
        self.loss = loss
        self.seed = seed
        self.grad_accumulation = grad_accumulation
        codes, width = tokenizer.codebook_size, tokenizer.latent_dim
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("code_counts", torch.zeros(codes))
        self.register_buffer("code_sums", torch.zeros(codes, width))
        self.register_buffer("idle_steps", torch.zeros(codes, dtype=torch.int64))
        self.register_buffer("pool", torch.zeros(_POOL_FACTOR * codes, width))
        # of the current step; checkpoints are written between steps, when these are zero
        self.register_buffer("step_counts", torch.zeros(codes), persistent=False)
        self.register_buffer("step_sums", torch.zeros(codes, width), persistent=False)
        self.register_buffer("step_candidates", torch.zeros(codes, width), persistent=False)
        self._micro = 0

    def param_groups(self) -> list[dict[str, Any]]:
        return [{"name": "tokenizer", "params": list(self.parameters()), **self.loss.optim.model_dump()}]

    # -- one micro-batch ---------------------------------------------------------------------------------------------

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """``batch`` has "images" uint8 (B, 3, H, W) and "continuous" bool (B,): decode these without quantisation."""
        images_BCHW = batch["images"].float() / 255
        target_BCHW = 2 * images_BCHW - 1
        step = int(self.step)
        if self.training and step == max(1, self.loss.codebook_start) and self._micro == 0:
            self._begin_codebook(step)
        quantised = step >= max(1, self.loss.codebook_start)

        z_BND = self.tokenizer.project(self.tokenizer.encoder_features(images_BCHW))
        logs: dict[str, Tensor | float] = {}
        if quantised:
            tokens_BN = self.tokenizer.nearest(z_BND.detach())
            codes_BND = self.tokenizer.codebook[tokens_BN]
            commitment = (z_BND - codes_BND).square().mean()
            straight_through_BND = z_BND + (codes_BND - z_BND).detach()
            latents_BND = torch.where(batch["continuous"][:, None, None], z_BND, straight_through_BND)
        else:
            tokens_BN = None
            commitment = z_BND.new_zeros(())
            latents_BND = z_BND
        made_BCHW = self.tokenizer.reconstruct(latents_BND).float()

        l1, l2 = (made_BCHW - target_BCHW).abs().mean(), (made_BCHW - target_BCHW).square().mean()
        total = self.loss.l1 * l1 + self.loss.l2 * l2 + self.loss.commitment * commitment
        logs.update(l1=l1, l2=l2, commitment=commitment, quantised=float(quantised))
        if self.training:
            self._gather(z_BND.detach(), tokens_BN, step)
            self._micro += 1
            if self._micro == self.grad_accumulation:
                logs.update(self._update_codebook(step, quantised))
                self._micro = 0
            else:
                logs.update(used_share=0.0, revived=0.0)
        return total, logs

    # -- the codebook ------------------------------------------------------------------------------------------------

    def _gather(self, z_BND: Tensor, tokens_BN: Tensor | None, step: int) -> None:
        rows = z_BND.flatten(0, 1)
        rank, world = _rank_and_world()
        first = (self._micro * world + rank) * len(rows)
        total = self.grad_accumulation * world * len(rows)
        positions = torch.randperm(total, generator=self._generator(step, "candidates"))[: len(self.step_candidates)]
        mine = ((positions >= first) & (positions < first + len(rows))).nonzero()[:, 0]
        self.step_candidates[mine.to(rows.device)] = rows[(positions[mine] - first).to(rows.device)]
        if tokens_BN is not None:
            tokens = tokens_BN.flatten()
            self.step_counts += torch.bincount(tokens, minlength=len(self.step_counts))
            self.step_sums.index_add_(0, tokens, rows)

    def _update_codebook(self, step: int, quantised: bool) -> dict[str, Tensor | float]:
        """At the end of an optimizer step: move the codes, revive dead ones, keep candidates for the first k-means."""
        if _rank_and_world()[1] > 1:
            flat = torch.cat([self.step_counts, self.step_sums.flatten(), self.step_candidates.flatten()])
            dist.all_reduce(flat)
            counts, sums, candidates = flat.split(
                [self.step_counts.numel(), self.step_sums.numel(), self.step_candidates.numel()]
            )
            self.step_counts.copy_(counts)
            self.step_sums.copy_(sums.view_as(self.step_sums))
            self.step_candidates.copy_(candidates.view_as(self.step_candidates))
        logs: dict[str, Tensor | float] = {"used_share": 0.0, "revived": 0.0}
        if quantised:
            used = self.step_counts > 0
            keep = self.loss.codebook_decay
            self.code_counts.mul_(keep).add_(self.step_counts, alpha=1 - keep)
            self.code_sums.mul_(keep).add_(self.step_sums, alpha=1 - keep)
            # A code whose average count has decayed to nothing stays where it is: its mean would be 0 / 0.
            alive = self.code_counts > 1e-6
            self.codebook[alive] = self.code_sums[alive] / self.code_counts[alive, None]
            self.idle_steps.add_(1).masked_fill_(used, 0)
            logs = {"used_share": used.float().mean(), "revived": float(self._revive(step))}
        else:
            slots = (torch.arange(len(self.step_candidates)) + step * len(self.step_candidates)) % len(self.pool)
            self.pool[slots.to(self.pool.device)] = self.step_candidates
        self.step += 1
        self.step_counts.zero_()
        self.step_sums.zero_()
        self.step_candidates.zero_()
        return logs

    @property
    def codebook(self) -> Tensor:
        return self.tokenizer.codebook

    def _revive(self, step: int) -> int:
        """Move dead codes to candidates of this step, drawn in proportion to how badly the codebook fits them."""
        dead = (self.idle_steps >= self.loss.revive_after).nonzero()[:, 0]
        if not len(dead):
            return 0
        # Rows of zeros hold no candidate; the 1e-12 lets codes be drawn where all errors are 0.
        filled = self.step_candidates[self.step_candidates.abs().sum(1) > 0]
        error = (filled - self.codebook[nearest_rows(filled, self.codebook)]).square().sum(1).double().cpu() + 1e-12
        dead = dead[: len(filled)]
        chosen = torch.multinomial(error, len(dead), generator=self._generator(step, "revive")).to(filled.device)
        self._set_codes(dead, filled[chosen], torch.ones(len(dead), device=filled.device))
        return len(dead)

    def _begin_codebook(self, step: int) -> None:
        """Initialise the codes as k-means centres of the pooled encoder outputs of the last steps."""
        filled = self.pool[self.pool.abs().sum(1) > 0]
        centres, sizes = kmeans(filled.cpu(), len(self.codebook), self._generator(step, "kmeans"))
        if _rank_and_world()[1] > 1:  # they are equal, but sums on a GPU may differ in the last bit
            centres, sizes = centres.to(self.codebook.device), sizes.to(self.codebook.device)
            dist.broadcast(centres, 0)
            dist.broadcast(sizes, 0)
        everything = torch.arange(len(self.codebook), device=self.codebook.device)
        self._set_codes(everything, centres.to(self.codebook.device), sizes.to(self.codebook.device))

    def _set_codes(self, codes: Tensor, rows: Tensor, counts: Tensor) -> None:
        self.codebook[codes] = rows
        self.code_counts[codes] = counts
        self.code_sums[codes] = rows * counts[:, None]
        self.idle_steps[codes] = 0

    def _generator(self, step: int, purpose: str) -> torch.Generator:
        entropy = (self.seed, step, int.from_bytes(purpose.encode()[:8], "big"))
        seed = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0] >> 1)
        return torch.Generator().manual_seed(seed)

    # -- validation --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """Mean PSNR and SSIM, share of codes used and their perplexity, on held-out images."""
        counts = np.zeros(self.tokenizer.config.codebook_size, dtype=np.int64)
        scores: list[tuple[float, float]] = []
        pictures: list[np.ndarray] = []
        for batch in loader:
            images = batch["images"].float() / 255
            tokens = self.tokenizer.encode(images)
            decoded = to_frames(self.tokenizer.decode(tokens))
            counts += np.bincount(tokens.flatten().cpu().numpy(), minlength=len(counts))
            for true, guess in zip(to_frames(images), decoded, strict=True):
                scores.append(psnr_ssim(true, guess))
                if len(pictures) < 2 * _NUM_PICTURES:
                    pictures += [true, guess]
        parts = context.all_gather_object((counts, scores))
        if context.rank == 0 and pictures:
            context.tracker.image("reconstructions", contact_sheet(pictures, rows=2), int(self.step))
        counts = sum(part[0] for part in parts)
        everything = [score for part in parts for score in part[1]]
        share = counts[counts > 0] / counts.sum()
        return {
            "PSNR": float(np.mean([score[0] for score in everything])),
            "SSIM": float(np.mean([score[1] for score in everything])),
            "codebook_usage": float((counts > 0).mean()),
            "perplexity": float(np.exp(-(share * np.log(share)).sum())),
        }


def kmeans(rows: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Cluster ``rows`` (N, D) by k-means++ and some Lloyd steps: centres (count, D) and their sizes (count,).

    With fewer rows than centres, rows are repeated with a little noise. Not scikit-learn's, because the draws come from
    a torch generator and every trained codebook, the demo's too, depends on them and on the order of the sums.
    """
    if not len(rows):
        raise ValueError("the codebook cannot be initialised: there are no encoder outputs")
    if len(rows) < count:
        scale = 1e-3 * float(rows.std()) if len(rows) > 1 else 1e-3
        again = rows.repeat(-(-count // len(rows)), 1)[:count]
        rows = again + scale * torch.randn(again.shape, generator=generator)
    centres = torch.empty(count, rows.shape[1])
    centres[0] = rows[torch.randint(len(rows), (1,), generator=generator)]
    distance = (rows - centres[0]).square().sum(1)
    for n in range(1, count):
        weight = distance.clamp(min=0).double() + 1e-12
        centres[n] = rows[torch.multinomial(weight, 1, generator=generator)]
        distance = torch.minimum(distance, (rows - centres[n]).square().sum(1))
    sizes = torch.ones(count)
    for _ in range(_LLOYD_STEPS):
        nearest = nearest_rows(rows, centres)
        sizes = torch.bincount(nearest, minlength=count).float()
        sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
        centres = torch.where(sizes[:, None] > 0, sums / sizes[:, None].clamp(min=1), centres)
    return centres, sizes.clamp(min=1)


def _rank_and_world() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


# -- the linear start -----------------------------------------------------------------------------------------------


@torch.no_grad()
def start_linear(tokenizer: ImageTokenizer, images: Tensor) -> None:
    """Set the weights of a tokenizer with one level (``patch_size`` is its whole stride), by some hundred images (B,
    3, H, W) in [0, 1], so that together they compute the principal component analysis of patches: the best linear code
    of width d_z. A network with random weights spends its first thousand steps on learning to pass colours through.

    Every residual branch is initialised to zero. The first convolution of the encoder holds the components, each with
    both signs, since silu(x) - silu(-x) = x, and the last one computes the differences; the decoder does the same with
    the transposed components. The last normalisation would remove the contrast of an image; in each of its groups a
    pair of channels with large constant values of both signs makes its mean 0 and its deviation nearly constant.

    Deterministic: the signs and the scale of the components are fixed. Distances between features are proportional to
    distances between patches.
    """
    config, model = tokenizer.config, tokenizer.model
    assert len(config.channel_mult) == 1, config.channel_mult
    patches = F.pixel_unshuffle(2 * images.double() - 1, config.patch_size).permute(0, 2, 3, 1).flatten(0, 2)
    mean = patches.mean(0)
    centred = patches - mean
    _, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    width = min(config.latent_dim, len(mean))
    components = vectors.flip(1).T[:width]
    components = torch.where(components.sum(1, keepdim=True) < 0, -components, components)
    scale = (centred @ components.T).square().mean().sqrt()

    for branch in _modules(model, "ResnetBlock2D"):
        nn.init.zeros_(branch.conv2.weight)
        nn.init.zeros_(branch.conv2.bias)
    for attention in _modules(model, "Attention"):
        nn.init.zeros_(attention.to_out[0].weight)
        nn.init.zeros_(attention.to_out[0].bias)
    size = config.channels * config.channel_mult[0] // config.norm_groups
    _through(model.encoder, (components / scale).float(), -(components / scale @ mean).float(), None, size)
    for projection in (model.quant_conv, model.post_quant_conv):
        nn.init.dirac_(projection.weight)
        nn.init.zeros_(projection.bias)
    identity = torch.eye(width, config.latent_dim)
    _through(model.decoder, identity, torch.zeros(width), ((components * scale).T.float(), mean.float()), size)


def _modules(model: nn.Module, name: str) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__ == name]


def _through(half: Any, rows: Tensor, bias: Tensor, out: tuple[Tensor, Tensor] | None, size: int) -> None:
    """Make encoder or decoder the linear map ``rows`` (width, inputs), followed by ``out`` (outputs, width) and its
    bias; without ``out``, the coordinates themselves. Groups of the last normalisation have ``size`` channels."""
    conv_in, norm, conv_out = half.conv_in, half.conv_norm_out, half.conv_out
    for conv in (conv_in, conv_out):
        nn.init.zeros_(conv.weight)
        nn.init.zeros_(conv.bias)
    per_group = (size - 2) // 2
    group = torch.arange(len(rows)) // per_group
    plus = group * size + 2 + 2 * (torch.arange(len(rows)) % per_group)
    for channels, sign in ((plus, 1.0), (plus + 1, -1.0)):
        conv_in.weight[channels, :, 1, 1] = sign * rows
        conv_in.bias[channels] = sign * bias
    first = torch.arange(norm.num_groups) * size
    conv_in.bias[first], conv_in.bias[first + 1] = _CONSTANT, -_CONSTANT
    used = torch.bincount(group, minlength=norm.num_groups)
    deviation = ((2 * _CONSTANT**2 + 2 * used) / size).sqrt()  # components have a mean square of about 1
    nn.init.zeros_(norm.bias)
    norm.weight.copy_(deviation.repeat_interleave(size))
    norm.weight[first] /= _CONSTANT  # their purpose ends with the normalisation: scale them to 1
    norm.weight[first + 1] /= _CONSTANT
    outputs, out_bias = out if out is not None else (torch.eye(conv_out.out_channels, len(rows)), None)
    conv_out.weight[:, plus, 1, 1] = outputs
    conv_out.weight[:, plus + 1, 1, 1] = -outputs
    if out_bias is not None:
        conv_out.bias.copy_(out_bias)


# -- data --------------------------------------------------------------------------------------------------------


class TokenizerImages:
    """Dataset of the single images of pairs, before and after, prepared for the tokenizer; with ``augment`` blended,
    mirrored, and without quantisation by the settings of ``loss``. ``limit``: of pairs, the first."""

    def __init__(
        self,
        rows: Sequence[dict[str, Any]],
        tokenizer: TokenizerConfig,
        loss: TokenizerLossConfig,
        *,
        augment: bool,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        self.rows = rows
        self.tokenizer = tokenizer
        self.loss = loss
        self.augment = augment
        self.seed = seed
        self.num_pairs = len(rows) if limit is None else min(limit, len(rows))

    def __len__(self) -> int:
        return 2 * self.num_pairs

    def get(self, index: int, epoch: int) -> tuple[np.ndarray, bool]:
        """Returns (uint8 (H, W, 3), whether to decode it without quantisation)."""
        row = self.rows[index // 2]
        pixels = self._frame(row["after" if index % 2 else "before"])
        if not self.augment:
            return pixels, False
        blend, weight, flip, continuous = sample_rng(self.seed, epoch, index).random(4)
        if blend < self.loss.blend_share:
            other = self._frame(row["before" if index % 2 else "after"])
            pixels = np.rint(weight * pixels + (1 - weight) * other.astype(np.float32)).astype(np.uint8)
        if self.loss.flip and flip < 0.5:
            pixels = pixels[:, ::-1]
        return pixels, bool(continuous < self.loss.continuous_share)

    def _frame(self, data: bytes) -> np.ndarray:
        return prepare_frame(decode_image(data), self.tokenizer)


def collate_images(samples: list[tuple[np.ndarray, bool]]) -> dict[str, Tensor]:
    """Make a batch: {"images": uint8 (B, 3, H, W), "continuous": bool (B,)}."""
    images = np.stack([pixels for pixels, _ in samples])
    return {
        "images": torch.from_numpy(images).permute(0, 3, 1, 2),
        "continuous": torch.tensor([continuous for _, continuous in samples]),
    }


# -- the run -----------------------------------------------------------------------------------------------------


def _build(job: TrainTokenizerJob, context: Context) -> Parts:
    task = TokenizerTask(job.tokenizer, job.loss, job.train.seed, job.train.grad_accumulation)
    rows = {split: MappedRows(job.pairs, columns=["before", "after"], split=split) for split in ("train", "val")}

    def images(split: str, augment: bool) -> TokenizerImages:
        limit = job.max_pairs if split == "train" else None
        return TokenizerImages(rows[split], job.tokenizer, job.loss, augment=augment, seed=job.train.seed, limit=limit)

    if job.loss.linear_start:
        plain = images("train", augment=False)
        indices = range(0, len(plain), -(-len(plain) // _LINEAR_START_IMAGES))
        start_linear(task.tokenizer, to_images(np.stack([plain.get(index, 0)[0] for index in indices])))
    return Parts(
        task,
        images("train", augment=True),
        images("val", augment=False) if len(rows["val"]) else None,
        collate_images,
        lambda: artifact_settings(job.tokenizer),
        weights="tokenizer.",
        limit=None if job.validation_pairs is None else 2 * job.validation_pairs,
    )


train = System(SYSTEM, TrainTokenizerJob, _build).train
