"""ProCap's equations a second time, naively: one sample, patch, position and head at a time. Nothing is shared with the
program but the names of its weights, the form of its batches, and for the masks the order of the draws.

The sequence is the paper's (section 3.1.3, eq. 9); where the official code differs, ``official.py`` is its second
implementation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import nn

from idc.data.text import PAD
from idc.systems.procap.config import DecoderConfig, EncoderConfig, LossConfig, MaskingConfig
from idc.systems.procap.model import Shapes
from tests.nn.naive import Layers, Tokens, attention, log_probability, quick_gelu, sigmoid, softmax, weights_of

Patch = tuple[int, int, int]
"""Frame, row and column."""


def shaken(module: nn.Module, by: float = 0.2) -> None:
    """No parameter stays at an initial value that hides its place, such as a mask embedding of 0."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by * torch.randn_like(parameter))


def masked_patches(config: MaskingConfig, shapes: Shapes, rng: Generator) -> set[Patch]:
    """Equations 13 to 17: a scheme, then the patches that it masks."""
    height, width = shapes.grid
    patches = [(k, m, n) for k in range(shapes.frames) for m in range(height) for n in range(width)]
    chances = (config.random, config.entire, config.in_block, config.out_of_block)
    scheme = ("random", "entire", "in_block", "out_of_block")[int(rng.choice(4, p=chances))]
    if scheme == "random":  # (14)
        if config.drawn_for == "sample":
            shares = dict.fromkeys(patches, rng.uniform(config.low, config.high))
        else:
            shares = {patch: rng.uniform(config.low, config.high) for patch in patches}
        masked = {patch for patch in patches if rng.random() < shares[patch]}
        if masked:
            return masked
        frame, place = int(rng.integers(shapes.frames)), int(rng.integers(height * width))
        return {(frame, place // width, place % width)}
    if scheme == "entire":  # (13)
        return set(patches)
    area = rng.uniform(0.2, 0.8) * height * width
    aspect = math.exp(rng.uniform(-math.log(2), math.log(2)))
    high = min(max(round(math.sqrt(area * aspect)), 1), height)
    wide = min(max(round(math.sqrt(area / aspect)), 1), width)
    if (high, wide) == (height, width):
        wide -= 1  # a block that is not the whole frame
    top, left = int(rng.integers(height - high + 1)), int(rng.integers(width - wide + 1))
    block = {(m, n) for m in range(top, top + high) for n in range(left, left + wide)}  # (15)
    inside = scheme == "in_block"
    return {(k, m, n) for k, m, n in patches if ((m, n) in block) == inside}  # (16), (17)


class Procedure(Layers):
    """The procedure encoder.

    Args:
        module: the task that has it; its weights are read.
        name: of the encoder in it.
    """

    def __init__(self, module: nn.Module, name: str, config: EncoderConfig, shapes: Shapes):
        super().__init__(weights_of(module))
        self.name, self.encoder, self.shapes = name, config, shapes

    def stem(self, frames_F3YX: np.ndarray, mask: set[Patch]) -> list[Tokens]:
        """Features of the patches of frames, whose masked patches are grey; of a frame also twice what it differs by
        from the mean of both ends."""
        side, levels = 2 ** len(self.encoder.stem), len(self.encoder.stem)
        shown = 2 * frames_F3YX - 1
        for k, m, n in mask:
            shown[k, :, m * side : (m + 1) * side, n * side : (n + 1) * side] = 0
        features = []
        for frame in shown:
            x = np.concatenate([frame, 2 * (frame - (shown[0] + shown[-1]) / 2)])
            for level in range(levels):
                pad = (0, 1, 0, 1) if level == levels - 1 else (1, 1, 1, 1)
                x = self.convolution(f"{self.name}.stem.layers.{4 * level + 1}", x, stride=2, pad=pad)
                x = np.maximum(self.group_norm(f"{self.name}.stem.layers.{4 * level + 2}", x, groups=8), 0)
            features.append([x[:, m, n] for m in range(x.shape[1]) for n in range(x.shape[2])])
        return features

    def patches(self, frames: np.ndarray, mask: set[Patch]) -> list[Tokens]:
        """e^I_msk of each frame, without positions."""
        height, width = self.shapes.grid
        features = self.stem(frames, mask) if self.encoder.stem else [list(frame) for frame in frames]
        embedded = []
        for k, frame in enumerate(features):
            embedded.append(
                [
                    self.weights[f"{self.name}.mask_embedding"]
                    if (k, place // width, place % width) in mask
                    else self.linear(f"{self.name}.feature_in", self.norm(f"{self.name}.feature_norm", patch))
                    for place, patch in enumerate(frame)
                ]
            )
            assert len(frame) == height * width
        return embedded

    def positioned(self, frames: Sequence[Tokens]) -> Tokens:
        """With positions, frame after frame; two frames are the first and the last."""
        numbers = [0, self.shapes.frames - 1] if len(frames) == 2 else range(len(frames))
        of_frame, of_row, of_column = (
            self.weights[f"{self.name}.{axis}_positions"] for axis in ("frame", "row", "column")
        )
        width = self.shapes.grid[1]
        return [
            patch + of_frame[number, 0, 0] + of_row[0, place // width, 0] + of_column[0, 0, place % width]
            for number, frame in zip(numbers, frames, strict=True)
            for place, patch in enumerate(frame)
        ]

    def blocks(self, x: Tokens) -> Tokens:
        for number in range(self.encoder.layers):
            name = f"{self.name}.blocks.{number}"
            normed = [self.norm(f"{name}.norm_attention", token) for token in x]
            queries, keys, values = (
                [self.part(f"{name}.attention.qkv", token, third, 3) for token in normed] for third in range(3)
            )
            mixed = [attention(query, keys, values, self.encoder.heads) for query in queries]
            x = [token + self.linear(f"{name}.attention.out", found) for token, found in zip(x, mixed, strict=True)]
            inner = [quick_gelu(self.linear(f"{name}.widen", self.norm(f"{name}.norm_mlp", token))) for token in x]
            x = [token + self.linear(f"{name}.narrow", wide) for token, wide in zip(x, inner, strict=True)]
        return x

    def hidden(self, frames: np.ndarray, mask: set[Patch], caption: Sequence[int]) -> tuple[Any, Any, Tokens]:
        """h^align, h^csy and h^I (eq. 4) of {align, caption, consistency, frames}."""
        words, positions = (self.weights[f"{self.name}.text_{part}"] for part in ("embedding.weight", "positions"))
        padding = len(words) - self.encoder.text_length  # each slot has its own, after the words
        text = [words[padding + slot if word == PAD else word] + positions[slot] for slot, word in enumerate(caption)]
        align, consistency = (self.weights[f"{self.name}.{kind}_token"] for kind in ("align", "consistency"))
        out = self.blocks([align, *text, consistency, *self.positioned(self.patches(frames, mask))])
        return out[0], out[1 + len(text)], out[2 + len(text) :]

    def procedure(self, frames: np.ndarray, kind: str) -> Tokens:
        """The latent procedure of eq. 9; or of all frames, or of the two images alone."""
        embedded = self.patches(frames, set())
        if kind == "queries":
            query = self.weights[f"{self.name}.mask_embedding"]
            between = [[query] * len(embedded[0]) for _ in range(self.shapes.num_keyframes)]
            embedded = [embedded[0], *between, embedded[1]]
        return self.blocks(self.positioned(embedded))


class Stage1(Procedure):
    """L_PRO (eq. 5)."""

    def __init__(self, task: nn.Module, config: EncoderConfig, shapes: Shapes, loss: LossConfig):
        super().__init__(task, "encoder", config, shapes)
        self.loss = loss

    def head(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.linear(f"heads.{name}.1", self.norm(f"heads.{name}.0", x))

    def true(self, name: str, x: np.ndarray) -> float:
        """p(1 | ...)."""
        return sigmoid(self.head(name, x)[0])

    def losses(self, batch: Mapping[str, Any]) -> dict[str, float]:
        """L_msm, L_align and L_csy of a batch, and their weighted sum."""
        width = self.shapes.grid[1]
        arrays = {name: value.numpy() for name, value in batch.items()}
        count = len(arrays["frames"])
        msm, align, consistency = 0.0, [], 0.0
        for b in range(count):
            mask = {(k, p // width, p % width) for k, p in zip(*arrays["masked"][b].nonzero(), strict=True)}
            frames, text = arrays["frames"][b], arrays["text"][b]
            h_align, h_csy, h_frames = self.hidden(frames, mask, text)
            errors = []
            for k, m, n in mask:  # (6)
                place = k * self.shapes.patches + m * width + n
                errors.append(
                    -log_probability(self.head("msm", h_frames[place]), arrays["tokens"][b, k, m * width + n])
                )
            msm += sum(errors) / len(errors) / count
            if len(text):
                other = arrays["other_text"][b]
                if self.loss.align_negative == "swap_halves":
                    other = arrays["text"][(b + count // 2) % count]
                unaligned, _, _ = self.hidden(frames, mask, other)
                if not (self.loss.align_skips_entire and arrays["entire"][b]):  # (7)
                    align.append(-math.log(self.true("align", h_align)) - math.log(1 - self.true("align", unaligned)))
            _, warped, _ = self.hidden(arrays["warped"][b], mask, text)
            consistency -= math.log(self.true("consistency", h_csy)) / count  # (8)
            consistency -= math.log(1 - self.true("consistency", warped)) / count
        parts = {"msm": msm, "align": sum(align) / max(1, len(align)), "consistency": consistency}
        weights = {"msm": self.loss.msm, "align": self.loss.align, "consistency": self.loss.consistency}
        return {**parts, "loss": sum(weights[name] * value for name, value in parts.items())}


class Stage2(Procedure):
    """L_CAP (eq. 10)."""

    def __init__(self, task: nn.Module, config: EncoderConfig, decoder: DecoderConfig, shapes: Shapes):
        super().__init__(task, "captioner.encoder", config, shapes)
        self.decoder = decoder

    def memories(self, procedures: Sequence[Tokens]) -> list[Tokens]:
        """The procedures at the decoder's width; the batch norm is that of training."""
        name = "captioner.decoder.project"
        projected = [
            [self.linear(f"{name}.2", np.maximum(self.linear(f"{name}.0", token), 0)) for token in procedure]
            for procedure in procedures
        ]
        if self.decoder.memory_norm == "layer":
            return [[self.norm(f"{name}.3", token) for token in procedure] for procedure in projected]
        flat = np.stack([np.concatenate(procedure) for procedure in projected])
        for column, values in enumerate(flat.T.copy()):
            flat[:, column] = (values - values.mean()) / math.sqrt(values.var() + 1e-5)
        flat = flat * self.weights[f"{name}.3.norm.weight"] + self.weights[f"{name}.3.norm.bias"]
        return [list(row.reshape(len(projected[0]), -1)) for row in flat]

    def words(self, ids: Sequence[int], memory: Tokens) -> Tokens:
        """Logits of the word after each of ``ids``, from post-norm layers without biases in their attention."""
        words, width, heads = self.weights["captioner.decoder.words"], self.decoder.width, self.decoder.heads
        x = []
        for t, word in enumerate(ids):
            angles = [t / 10_000 ** (2 * (channel // 2) / width) for channel in range(width)]
            sines = [(math.sin, math.cos)[channel % 2](angle) for channel, angle in enumerate(angles)]
            x.append(words[word] * math.sqrt(width) + np.array(sines))
        for number in range(self.decoder.layers):
            name = f"captioner.decoder.layers.{number}"
            after = []
            for t, token in enumerate(x):
                seen = x[: t + 1]
                after.append(self.attended(f"{name}.self_attention", f"{name}.norm_self", token, seen, heads))
            names = f"{name}.cross_attention", f"{name}.norm_cross"
            x = [self.attended(*names, token, memory, heads) for token in after]
            inner = [np.maximum(self.linear(f"{name}.widen", token), 0) for token in x]
            x = [
                self.norm(f"{name}.norm_feedforward", token + self.linear(f"{name}.narrow", wide))
                for token, wide in zip(x, inner, strict=True)
            ]
        return [words @ token + self.weights["captioner.decoder.word_bias"] for token in x]

    def attended(self, name: str, norm: str, x: np.ndarray, memory: Tokens, heads: int) -> np.ndarray:
        keys, values = ([self.linear(f"{name}.{role}", token) for token in memory] for role in "kv")
        found = attention(self.linear(f"{name}.q", x), keys, values, heads)
        return self.norm(norm, x + self.linear(f"{name}.out", found))

    def captioning(self, batch: Mapping[str, Any], kind: str = "queries", smoothing: float = 0.0) -> dict[str, float]:
        """The sum over a caption's words, the mean over a pair's captions and over the pairs; the mean over the words
        of a pair, and the share of right ones, the mean over the pairs.

        Args:
            smoothing: probability mass of the target on the words that are wrong.
        """
        frames = batch["procedure" if kind == "frames" else "ends"].numpy()
        memories = self.memories([self.procedure(images, kind) for images in frames])
        sums, means, rights = [], [], []
        for pair, memory in enumerate(memories):
            terms, right, captions = [], [], 0
            for ids, targets in zip(batch["ids"][pair].tolist(), batch["targets"][pair].tolist(), strict=True):
                captions += any(target != PAD for target in targets)
                for t, logits in enumerate(self.words(ids, memory)):
                    if targets[t] == PAD:
                        continue
                    goal = np.full(len(logits), smoothing / (len(logits) - 1))
                    goal[targets[t]] = 1 - smoothing
                    terms.append(-float(goal @ np.log(softmax(logits))))
                    right.append(int(np.argmax(logits)) == targets[t])
            sums.append(sum(terms) / captions)
            means.append(sum(terms) / len(terms))
            rights.append(sum(right) / len(right))
        names = ("loss", "loss_per_word", "word_accuracy")
        return {name: sum(values) / len(values) for name, values in zip(names, (sums, means, rights), strict=True)}
