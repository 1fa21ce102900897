"""NAMC's equations a second time, naively: one image, text and pair at a time, without padding or attention masks; what
is hidden is left out of the memory. Only CLIP's layers and the decoder's are shared with the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from idc.data.text import UNK
from idc.systems.namc.model import Attention, EncoderLayer, MaskedImageEncoder
from idc.systems.namc.nim import Texts
from idc.systems.namc.task import PretrainTask


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    return x @ layer.weight.T + layer.bias  # type: ignore[operator, union-attr]


def normed(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias


def attend(part: Attention, queries: Tensor, memory: Tensor) -> Tensor:
    """(P, D) queries to a memory (S, D) of which everything is seen."""
    width = queries.shape[-1]
    size = width // part.heads
    q, kv = linear(part.q, queries), linear(part.kv, memory)
    k, v = kv[:, :width], kv[:, width:]
    heads = []
    for head in range(part.heads):
        own = slice(head * size, (head + 1) * size)
        weights = torch.softmax(q[:, own] @ k[:, own].T / math.sqrt(size), dim=1)
        heads.append(weights @ v[:, own])
    return linear(part.out, torch.cat(heads, dim=1))


def layer_of(layer: EncoderLayer, x: Tensor, seen: Tensor, memory: Tensor) -> Tensor:
    """Self-attention to the positions ``seen``, cross-attention to a memory, feed-forward part."""
    own = normed(layer.norm_self, x)
    x = x + attend(layer.attend_self, own, own[seen])
    x = x + attend(layer.attend_other, normed(layer.norm_cross, x), normed(layer.norm_memory, memory))
    return x + linear(layer.narrow, nn.functional.gelu(linear(layer.widen, normed(layer.norm_feedforward, x))))


def embedded(encoder: MaskedImageEncoder, features: Tensor, masked: Tensor | None) -> Tensor:
    rows = [encoder.mask if masked is not None and masked[place] else row for place, row in enumerate(features)]
    return linear(encoder.project, torch.stack(list(rows))) + encoder.positions


def compared(encoder: MaskedImageEncoder, images: Sequence[Tensor], masks: Sequence[Tensor | None]) -> Tensor:
    """E_MIR (P, D) of the features of before and after."""
    streams = [embedded(encoder, features, masked) for features, masked in zip(images, masks, strict=True)]
    seen = [torch.ones(len(x), dtype=torch.bool) if m is None else ~m for x, m in zip(streams, masks, strict=True)]
    for layer in encoder.layers:
        assert isinstance(layer, EncoderLayer)
        streams = [
            layer_of(layer, streams[0], seen[0], streams[1][seen[1]]),
            layer_of(layer, streams[1], seen[1], streams[0][seen[0]]),
        ]
    before, after = (normed(encoder.norm, x) for x in streams)
    return linear(encoder.join, torch.cat([before, after], dim=1))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return a @ b / (a.norm() * b.norm())


def divergence(similarities: list[list[Tensor]], temperature: float, kind: str) -> Tensor:
    """One direction of the contrastive loss; the right text of image i is text i."""
    total = torch.zeros(())
    for i, row in enumerate(similarities):
        p = torch.softmax(torch.stack(row) / temperature, dim=0)
        if kind == "infonce":
            total = total - p[i].log()
        else:
            total = total + sum(
                (p[j] * (p[j].log() - math.log((1.0 if i == j else 0.0) + 1e-8)) for j in range(len(row))),
                start=torch.zeros(()),
            )
    return total / len(similarities)


def losses(
    task: PretrainTask,
    samples: Sequence[dict[str, Any]],
    tokens_of: Callable[[Tensor], Tensor] | None = None,
    grid: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """L_NIM, L_MIR and L_FDG of samples of :class:`idc.systems.namc.data.DescribedPairs`."""
    job, nim, net = task.job, task.nim, task.net
    assert nim is not None
    settings, dual = job.nim, nim.encoder
    whole: list[list[tuple[Tensor, Tensor]]] = [[], []]
    mir, fdg = torch.zeros(()), torch.zeros(())
    for sample in samples:
        masks: list[Tensor] = []
        features: list[Tensor] = []
        lost: list[Tensor] = []
        for side in range(2):
            image = torch.from_numpy(sample["images"][side])[None]
            ids, numbers = sample["texts"][side]
            text = Texts(torch.tensor([ids]), torch.tensor([numbers]), torch.tensor([len(ids) - 1]), max(numbers) + 1)
            with torch.no_grad():
                patches, tokens = dual.images(image).tokens[0], dual.texts(text).tokens[0]
            inside = [place for place, number in enumerate(numbers) if number >= 0]
            image_relevance = [max(float(cosine(patch, tokens[place])) for place in inside) for patch in patches]
            pieces: dict[int, list[float]] = {}
            for place in inside:
                best = max(float(cosine(tokens[place], patch)) for patch in patches)
                pieces.setdefault(numbers[place], []).append(best)
            text_relevance = [sum(pieces[number]) / len(pieces[number]) for number in sorted(pieces)]
            drawn = []
            for ratio, values, uniform in (
                (settings.image_ratio, image_relevance, sample["uniform_images"][side]),
                (settings.text_ratio, text_relevance, sample["uniform_texts"][side]),
            ):
                irrelevance = [1 - value for value in values]
                mean = sum(irrelevance) / len(irrelevance)
                drawn.append([u < ratio + ir - mean for u, ir in zip(uniform, irrelevance, strict=False)])
            image_mask, text_mask = torch.tensor(drawn[0]), torch.tensor(drawn[1])
            assert not image_mask.all()
            masks.append(image_mask)
            lost.append(text_mask)
            denoised = dual.texts(text, text_mask[None])
            aligned_image = dual.images(image, image_mask[None] if settings.align_images == "denoised" else None)
            aligned_text = denoised if settings.align_texts == "denoised" else dual.texts(text)
            whole[side].append((aligned_image.whole[0], aligned_text.whole[0]))

            x = net.stem(image)[0] if net.stem is not None else grid(image)[0]  # type: ignore[misc]
            features.append(x)
            if task.heads is not None and image_mask.any():
                memory = linear(task.heads.text, denoised.tokens[0])
                y = embedded(net.encoder, x, image_mask)
                everything = torch.ones(len(y), dtype=torch.bool)
                for layer in net.encoder.layers:
                    assert isinstance(layer, EncoderLayer)
                    y = layer_of(layer, y, everything, memory)
                predicted = linear(task.heads.predict, normed(net.encoder.norm, y))
                errors = []
                for place in image_mask.nonzero().flatten().tolist():
                    if job.mir.target == "discrete":
                        assert tokens_of is not None
                        right = int(tokens_of(image)[0, place])
                        errors.append(-torch.log_softmax(predicted[place], dim=0)[right])
                    else:
                        gap = predicted[place] - x[place].detach()
                        errors.append((gap.abs() if job.mir.target == "l1" else gap**2).mean())
                mir = mir + torch.stack(errors).mean() / len(samples)

        description, places = sample["ids"], sample["places"]  # with begin and end
        masked = [side >= 0 and bool(lost[side][number]) for side, number in places]
        words = [UNK if gone else word for word, gone in zip(description[1:-1], masked, strict=True)]
        memory = compared(net.encoder, features, masks)
        logits = net.decoder(torch.tensor([[description[0], *words]]), memory[None])[0]
        each = [-torch.log_softmax(logits[t], dim=0)[word] for t, word in enumerate([*words, description[-1]])]
        if job.masked_words == "skip":
            each = [loss for loss, gone in zip(each, [*masked, False], strict=True) if not gone]
        fdg = fdg + torch.stack(each).mean() / len(samples)

    contrast = torch.zeros(())
    for subset in whole:
        table = [[cosine(image, text) for _, text in subset] for image, _ in subset]
        for direction in (table, [list(column) for column in zip(*table, strict=True)]):
            contrast = contrast + divergence(direction, settings.temperature, settings.loss)
    return {"nim": contrast, "mir": mir, "fdg": fdg}
