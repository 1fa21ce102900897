"""NAMC's equations a second time, naively: one image, text, position and head at a time, without padding or attention
masks; what is hidden is left out of what is seen. Nothing is shared with the program but the names of its weights and
the samples of its data set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from idc.data.text import UNK
from idc.systems.namc.config import ModelConfig, PretrainJob
from tests.nn.naive import Layers, Tokens, attention, cosine, gelu, log_probability, quick_gelu, softmax, weights_of

Grid = Callable[[torch.Tensor], torch.Tensor]
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


class Captioner(Layers):
    """Images to features, their comparison, the words.

    Args:
        task: its weights are read.
        grid: features (N, P, C) of a frozen CNN; None with a stem.
    """

    def __init__(self, task: nn.Module, config: ModelConfig, grid: Grid | None = None):
        super().__init__(weights_of(task))
        self.model, self.grid = config, grid

    def features(self, image: np.ndarray) -> Tokens:
        """X, of an image (S, S, 3)."""
        if self.grid is not None:
            return list(self.grid(torch.from_numpy(image)[None])[0].double().numpy())
        x = image.transpose(2, 0, 1) / 127.5 - 1
        for level in range(4):
            x = self.convolution(f"net.stem.levels.{3 * level}", x, stride=2, pad=(1, 1, 1, 1))
            x = gelu(self.group_norm(f"net.stem.levels.{3 * level + 1}", x, groups=8))
        return [x[:, row, column] for row in range(x.shape[1]) for column in range(x.shape[2])]

    def embedded(self, features: Tokens, mask: Sequence[bool]) -> Tokens:
        """X^ of the masked image feature: e_M where it is masked."""
        positions, hidden = self.weights["net.encoder.positions"], self.weights["net.encoder.mask"]
        return [
            self.linear("net.encoder.project", hidden if masked else x) + position
            for x, masked, position in zip(features, mask, positions, strict=True)
        ]

    def attended(self, name: str, queries: Tokens, memory: Tokens) -> Tokens:
        keys, values = ([self.part(f"{name}.kv", x, half, 2) for x in memory] for half in (0, 1))
        heads = self.model.encoder.heads
        return [
            self.linear(f"{name}.out", attention(self.linear(f"{name}.q", x), keys, values, heads)) for x in queries
        ]

    def layer(self, number: int, x: Tokens, sees: Sequence[int], memory: Tokens) -> Tokens:
        """Self-attention to the positions that are seen, cross-attention to a memory, feed-forward part."""
        name = f"net.encoder.layers.{number}"
        normed = [self.norm(f"{name}.norm_self", token) for token in x]
        x = added(x, self.attended(f"{name}.attend_self", normed, [normed[place] for place in sees]))
        memory = [self.norm(f"{name}.norm_memory", token) for token in memory]
        x = added(x, self.attended(f"{name}.attend_other", [self.norm(f"{name}.norm_cross", t) for t in x], memory))
        inner = [gelu(self.linear(f"{name}.widen", self.norm(f"{name}.norm_feedforward", token))) for token in x]
        return added(x, [self.linear(f"{name}.narrow", token) for token in inner])

    def compared(self, images: Sequence[Tokens], masks: Sequence[Sequence[bool]]) -> Tokens:
        """E_MIR of the features of before and after."""
        before, after = (self.embedded(x, mask) for x, mask in zip(images, masks, strict=True))
        shown = [[place for place, masked in enumerate(mask) if not masked] for mask in masks]
        for number in range(self.model.encoder.layers):
            seen_before, seen_after = [before[place] for place in shown[0]], [after[place] for place in shown[1]]
            before, after = (
                self.layer(number, before, shown[0], seen_after),
                self.layer(number, after, shown[1], seen_before),
            )
        return [
            self.linear("net.encoder.join", np.concatenate([self.norm("net.encoder.norm", x) for x in places]))
            for places in zip(before, after, strict=True)
        ]

    def normalised(self, memories: Sequence[Tokens]) -> list[Tokens]:
        """The memories of a batch, by the batch norm of ``memory_norm: batch`` in training; else as they are."""
        if self.model.encoder.memory_norm == "none":
            return list(memories)
        flat = np.stack([np.concatenate(memory) for memory in memories])
        out = np.empty_like(flat)
        for column, values in enumerate(flat.T):
            out[:, column] = (values - values.mean()) / math.sqrt(values.var() + 1e-5)
        out = out * self.weights["net.encoder.memory_norm.weight"] + self.weights["net.encoder.memory_norm.bias"]
        return [list(row.reshape(len(memories[0]), -1)) for row in out]

    def words(self, ids: Sequence[int], memory: Tokens) -> Tokens:
        """Logits of the word after each of ``ids``."""
        words, heads = self.weights["net.decoder.words"], self.model.decoder.heads
        x = [words[index] + self.weights["net.decoder.positions"][place] for place, index in enumerate(ids)]
        for number in range(self.model.decoder.layers):
            name = f"net.decoder.layers.{number}"
            normed = [self.norm(f"{name}.norm_self", token) for token in x]
            queries, keys, values = ([self.part(f"{name}.self_qkv", t, third, 3) for t in normed] for third in range(3))
            mixed = [
                attention(query, keys[: place + 1], values[: place + 1], heads) for place, query in enumerate(queries)
            ]
            x = added(x, [self.linear(f"{name}.self_out", token) for token in mixed])
            keys, values = ([self.part(f"{name}.cross_kv", t, half, 2) for t in memory] for half in (0, 1))
            queries = [self.linear(f"{name}.cross_q", self.norm(f"{name}.norm_cross", token)) for token in x]
            x = added(x, [self.linear(f"{name}.cross_out", attention(query, keys, values, heads)) for query in queries])
            inner = [gelu(self.linear(f"{name}.widen", self.norm(f"{name}.norm_feedforward", token))) for token in x]
            x = added(x, [self.linear(f"{name}.narrow", token) for token in inner])
        return [words @ self.norm("net.decoder.norm", token) + self.weights["net.decoder.word_bias"] for token in x]


class Pretraining(Captioner):
    """The losses of pre-training.

    Args:
        tokens_of: image tokens (N, P) of images (N, S, S, 3).
    """

    def __init__(self, task: nn.Module, job: PretrainJob, tokens_of: Grid | None = None, grid: Grid | None = None):
        super().__init__(task, job.model, grid)
        self.job, self.tokens_of = job, tokens_of

    def clip_layers(self, tower: str, x: Tokens, causal: bool) -> Tokens:
        config = self.job.nim.encoder
        for number in range(config.layers):
            name = f"nim.encoder.clip.{tower}.encoder.layers.{number}"
            normed = [self.norm(f"{name}.layer_norm1", token) for token in x]
            queries, keys, values = (
                [self.linear(f"{name}.self_attn.{role}_proj", token) for token in normed] for role in "qkv"
            )
            mixed = []
            for place, query in enumerate(queries):
                last = place + 1 if causal else len(x)
                mixed.append(attention(query, keys[:last], values[:last], config.heads))
            x = added(x, [self.linear(f"{name}.self_attn.out_proj", token) for token in mixed])
            inner = [quick_gelu(self.linear(f"{name}.mlp.fc1", self.norm(f"{name}.layer_norm2", t))) for t in x]
            x = added(x, [self.linear(f"{name}.mlp.fc2", token) for token in inner])
        return x

    def image_tokens(self, image: np.ndarray, mask: Sequence[bool]) -> Tokens:
        """[CLS] and the patches of an image in the shared space; masked patches are e^msk."""
        embedding = "nim.encoder.clip.vision_model.embeddings"
        pixels = ((image / 255 - CLIP_MEAN) / CLIP_STD).transpose(2, 0, 1)
        grid = self.convolution(f"{embedding}.patch_embedding", pixels, stride=16, pad=(0, 0, 0, 0))
        patches = [grid[:, row, column] for row in range(grid.shape[1]) for column in range(grid.shape[2])]
        denoised = [
            self.weights[f"{embedding}.mask"] if masked else patch for patch, masked in zip(patches, mask, strict=True)
        ]
        x = [self.weights[f"{embedding}.class_embedding"], *denoised]
        x = added(x, list(self.weights[f"{embedding}.position_embedding.weight"]))
        tower = "nim.encoder.clip.vision_model"
        x = self.clip_layers("vision_model", [self.norm(f"{tower}.pre_layrnorm", token) for token in x], causal=False)
        return [
            self.linear("nim.encoder.clip.visual_projection", self.norm(f"{tower}.post_layernorm", token))
            for token in x
        ]

    def text_tokens(self, ids: Sequence[int], numbers: Sequence[int], mask: Sequence[bool]) -> Tokens:
        """The tokens of a text in the shared space, [EOS] last; every piece of a masked word is [MASK]."""
        tower = "nim.encoder.clip.text_model"
        embedding, positions = (
            self.weights[f"{tower}.embeddings.{kind}_embedding.weight"] for kind in ("token", "position")
        )
        x = []
        for place, (index, number) in enumerate(zip(ids, numbers, strict=True)):
            masked = number >= 0 and mask[number]
            x.append((self.weights["nim.encoder.text_mask"] if masked else embedding[index]) + positions[place])
        x = self.clip_layers("text_model", x, causal=True)
        return [
            self.linear("nim.encoder.clip.text_projection", self.norm(f"{tower}.final_layer_norm", token))
            for token in x
        ]

    def relevance(self, patches: Tokens, tokens: Tokens, numbers: Sequence[int]) -> tuple[list[float], list[float]]:
        """R_I of the patches and R_T of the words (eq. 1): begin and end are no partners, a word has the mean of its
        pieces."""
        inside = [place for place, number in enumerate(numbers) if number >= 0]
        of_image = [max(cosine(patch, tokens[place]) for place in inside) for patch in patches]
        pieces: dict[int, list[float]] = {}
        for place in inside:
            best = max(cosine(tokens[place], patch) for patch in patches)
            pieces.setdefault(numbers[place], []).append(best)
        return of_image, [sum(pieces[number]) / len(pieces[number]) for number in sorted(pieces)]

    def drawn(self, relevance: Sequence[float], ratio: float, uniform: Sequence[float]) -> list[bool]:
        """Each token for itself, with probability p + IR - mean(IR)."""
        irrelevance = [1 - value for value in relevance]
        mean = sum(irrelevance) / len(irrelevance)
        noise = self.job.nim.masking == "noise"
        return [
            float(u) < (ratio + value - mean if noise else ratio)
            for u, value in zip(uniform, irrelevance, strict=False)
        ]

    def contrast(self, images: Tokens, texts: Tokens) -> float:
        """One direction (eq. 13 to 15) over a subset; text i is that of image i."""
        total = 0.0
        for i, image in enumerate(images):
            p = softmax(np.array([cosine(image, text) for text in texts]) / self.job.nim.temperature)
            if self.job.nim.loss == "infonce":
                total -= math.log(p[i])
            else:
                total += sum(share * (math.log(share) - math.log((i == j) + 1e-8)) for j, share in enumerate(p))
        return total / len(images)

    def losses(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """L_NIM, L_MIR and L_FDG of samples of :class:`idc.systems.namc.data.DescribedPairs`, and the shares of masked
        patches and words."""
        settings = self.job.nim
        subsets: list[tuple[Tokens, Tokens]] = [([], []), ([], [])]
        masked = {"patches": [0, 0], "words": [0, 0]}
        memories: list[Tokens] = []
        lost_words: list[list[list[bool]]] = []
        mir = 0.0
        for sample in samples:
            features: list[Tokens] = []
            image_masks: list[list[bool]] = []
            text_masks: list[list[bool]] = []
            for side, (images, texts) in enumerate(subsets):
                image, (ids, numbers) = sample["images"][side], sample["texts"][side]
                no_patch, no_word = [False] * len(sample["uniform_images"][side]), [False] * (max(numbers) + 1)
                patches = self.image_tokens(image, no_patch)[1:]
                of_image, of_text = self.relevance(patches, self.text_tokens(ids, numbers, no_word), numbers)
                image_mask = self.drawn(of_image, settings.image_ratio, sample["uniform_images"][side])
                text_mask = self.drawn(of_text, settings.text_ratio, sample["uniform_texts"][side])
                assert not all(image_mask), "then one patch is kept, which is tested where the masks are drawn"
                for name, mask in (("patches", image_mask), ("words", text_mask)):
                    masked[name] = [masked[name][0] + sum(mask), masked[name][1] + len(mask)]
                denoised = self.text_tokens(ids, numbers, text_mask)
                aligned = denoised if settings.align_texts == "denoised" else self.text_tokens(ids, numbers, no_word)
                raw = settings.align_images == "raw"
                images.append(self.image_tokens(image, no_patch if raw else image_mask)[0])
                texts.append(aligned[-1])
                features.append(self.features(image))
                image_masks.append(image_mask)
                text_masks.append(text_mask)
                if self.job.mir.enabled and any(image_mask):
                    mir += self.reconstruction(image, features[-1], image_mask, denoised) / len(samples)
            memories.append(self.compared(features, image_masks))
            lost_words.append(text_masks)
        fdg = sum(map(self.generation, samples, self.normalised(memories), lost_words)) / len(samples)
        # (15), (16)
        nim = sum(self.contrast(images, texts) + self.contrast(texts, images) for images, texts in subsets)
        shares = {f"masked_{name}": number / total for name, (number, total) in masked.items()}
        return {"nim": nim, "mir": mir, "fdg": fdg, **shares}

    def reconstruction(self, image: np.ndarray, features: Tokens, mask: Sequence[bool], text: Tokens) -> float:
        """Eq. 17 and 18 of one image: the mean over its masked positions."""
        x = self.embedded(features, mask)
        memory = [self.linear("heads.text", token) for token in text]
        for number in range(self.model.encoder.layers):
            x = self.layer(number, x, range(len(x)), memory)
        errors = []
        for place in (place for place, masked in enumerate(mask) if masked):
            predicted = self.linear("heads.predict", self.norm("net.encoder.norm", x[place]))
            if self.job.mir.target == "discrete":
                assert self.tokens_of is not None
                goal = int(self.tokens_of(torch.from_numpy(image)[None])[0, place])
                errors.append(-log_probability(predicted, goal))
            else:
                gap = predicted - features[place]
                errors.append(float(np.mean(abs(gap) if self.job.mir.target == "l1" else gap**2)))
        return sum(errors) / len(errors)

    def generation(self, sample: Mapping[str, Any], memory: Tokens, lost: Sequence[Sequence[bool]]) -> float:
        """L_FDG of one pair: the mean over the words of its denoised description."""
        begin, *inner, end = sample["ids"]
        gone = [side >= 0 and lost[side][number] for side, number in sample["places"]]
        denoised = [UNK if missing else word for word, missing in zip(inner, gone, strict=True)]
        logits = self.words([begin, *denoised], memory)
        each = [-log_probability(row, word) for row, word in zip(logits, [*denoised, end], strict=True)]
        if self.job.masked_words == "skip":
            each = [loss for loss, missing in zip(each, [*gone, False], strict=True) if not missing]
        return sum(each) / len(each)


def added(a: Tokens, b: Tokens) -> Tokens:
    return [x + y for x, y in zip(a, b, strict=True)]
