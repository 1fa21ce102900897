"""Noise as a pre-trained NAMC identifies it, and its reconstruction of masked regions (appendix A; figures 6 to 8,
table 9)."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from idc.captioning.contract import stretched
from idc.data.descriptions.template import PairDescription
from idc.data.text import words
from idc.progress import Progress
from idc.systems.namc.config import InspectJob, PretrainJob
from idc.systems.namc.data import DescribedPairs, ImageStore, collate_described, texts_of
from idc.systems.namc.known_noise import Known, areas_under_roc, ideal_irrelevance, known_irrelevance, noisy_words
from idc.systems.namc.nim import words_exist
from idc.systems.namc.task import CNN, PretrainTask, frozen_grid, load_tokenizer, scaled, text_tokens
from idc.training.artifact import read_artifact
from idc.vision.image_quality import psnr_ssim
from idc.vision.tokenizer.model import ImageTokenizer, to_frames

_BATCH = 16


class Relevant(NamedTuple):
    """An image with its description.

    Attributes:
        image: uint8 (S, S, 3).
        patches: relevance (grid, grid), in [0, 1] within the image.
        words: of each word its relevance, in [0, 1] within the text, and whether it is known to be wrong.
        masked: M_I (grid, grid).
        rebuilt: the image decoded from its tokens, with those of masked positions predicted by MIR.
    """

    image: np.ndarray
    patches: np.ndarray
    words: list[tuple[str, float, bool]]
    masked: np.ndarray
    rebuilt: np.ndarray | None


class Inspection(NamedTuple):
    """Figures and pictures.

    Attributes:
        figures: by name: areas under the ROC curve, PSNR and SSIM of table 9, shares of masked tokens.
        pairs: pair_id and both images.
    """

    figures: dict[str, float]
    pairs: list[tuple[str, tuple[Relevant, Relevant]]]


@torch.no_grad()
def inspect(job: InspectJob) -> Inspection:
    """Read the described pairs with NIM, and reconstruct what it masks with MIR.

    Raises:
        ValueError: not a pre-trained NAMC with NIM, or the tokenizer does not fit.
    """
    task, trained, tokenizer = _load(job)
    assert task.nim is not None
    image, grid = trained.model.image, trained.model.image.grid
    data = DescribedPairs(
        job.pairs, job.split, images=ImageStore(image.size, 0), vocabulary=task.vocabulary,
        tokens=text_tokens(task), positions=image.grid**2, length=trained.model.decoder.max_length,
        seed=trained.train.seed, regions=True,
    )  # fmt: skip
    seen: list[Known] = []
    quality: dict[str, list[tuple[float, float]]] = {"MIR, VQGAN": [], "VQGAN, raw": [], "MIR, raw": []}
    ideal: list[Known] = []
    masked: list[tuple[int, int, int, int]] = []
    pairs: list[tuple[str, tuple[Relevant, Relevant]]] = []
    count = min(job.max_pairs, len(data))
    progress = Progress(count, "inspect", "pair")
    for start in range(0, count, _BATCH):
        rows = range(start, min(start + _BATCH, count))
        batch = collate_described([data.get(index, 0) for index in rows])
        texts = texts_of(batch)
        of_patches, of_words = task.nim.relevance(batch["images"], texts)
        seen.append(known_irrelevance(task.nim, batch, texts))
        masks, lost = task.nim.masks(batch["images"], texts, batch["uniform_images"], batch["uniform_texts"])
        masked += [(int(masks.sum()), masks.numel(), int(lost.sum()), int(words_exist(texts).sum()))]
        rebuilt: np.ndarray | None = None
        if tokenizer is not None:
            plain, rebuilt = _decoded(task, tokenizer, batch, masks, lost)
            raw = to_frames(scaled(batch["images"], tokenizer.config.image_size))
            for real, decoded, guessed in zip(raw, plain, rebuilt, strict=True):
                quality["MIR, VQGAN"].append(psnr_ssim(decoded, guessed))
                quality["VQGAN, raw"].append(psnr_ssim(real, decoded))
                quality["MIR, raw"].append(psnr_ssim(real, guessed))
        for position, index in enumerate(rows):
            row_index, description = data.described[index]
            assert not isinstance(description, str)
            ideal += _ideal(description, data.rows[row_index]["meta"])
            if index >= job.shown:
                continue
            sides = []
            for text, at in zip((description.before, description.after), (position, len(rows) + position), strict=True):
                sides.append(
                    Relevant(
                        batch["images"][at].numpy(),
                        stretched(of_patches[at].numpy()).reshape(grid, grid),
                        _named(words(text), of_words[at], batch["wrong"][at]),
                        masks[at].view(grid, grid).numpy(),
                        None if rebuilt is None else rebuilt[at],
                    )
                )
            pairs.append((str(data.rows[row_index]["pair_id"]), (sides[0], sides[1])))
        progress.update(rows.stop)
    progress.close()
    patches, all_patches, lost_words, all_words = (sum(column) for column in zip(*masked, strict=True))
    figures = {"pairs": float(count), "masked patches": patches / all_patches, "masked words": lost_words / all_words}
    areas = areas_under_roc(seen)
    for name, label in (("wrong_word_auc", "wrong words"), ("undescribed_patch_auc", "undescribed patches")):
        if name in areas:
            flags = np.concatenate([figure[name][1][figure[name][1] >= 0] for figure in seen])
            figures |= {
                label: float(flags.mean()),
                f"AUC, {label}": areas[name],
                f"AUC, {label}, images of other pairs": areas[f"{name}_of_strange_images"],
            }
    for name, area in areas_under_roc(ideal).items():
        figures[f"AUC, wrong words, ideal reader by {name}"] = area
    for name, values in quality.items():
        if values:
            figures |= {f"PSNR {name}": float(np.mean([p for p, _ in values]))}
            figures |= {f"SSIM {name}": float(np.mean([s for _, s in values]))}
    return Inspection(figures, pairs)


def _ideal(description: PairDescription, meta: str) -> list[Known]:
    """The irrelevance of both texts' words to an ideal reader, if their noise and the scenes are known."""
    truth = json.loads(meta) if meta else {}
    readers = []
    for text, image in ((description.before, "before"), (description.after, "after")):
        flags = noisy_words(text, truth.get("description_noise"), image)
        if flags is not None and image in truth:
            irrelevance = ideal_irrelevance(text, truth[image])
            readers.append({name: (np.array(values), np.array(flags)) for name, values in irrelevance.items()})
    return readers


def _load(job: InspectJob) -> tuple[PretrainTask, PretrainJob, ImageTokenizer | None]:
    artifact = read_artifact(job.pretrained, system="namc")
    trained = PretrainJob.model_validate(artifact.config["job"]) if artifact.config["stage"] == "pretrain" else None
    if trained is None or not trained.nim.enabled:
        raise ValueError(f"pretrained: {job.pretrained} has no NIM; give an artifact of jobs/pretrain_namc.py with it")
    assert artifact.vocabulary is not None
    device = torch.device("cpu")
    image = trained.model.image
    grid = frozen_grid(image, device, artifact.extra(CNN) if image.cnn == "resnet" else None)
    tokenizer, codebook = None, 0
    discrete = trained.mir.enabled and trained.mir.target == "discrete"
    if discrete:
        codebook = int(artifact.state_dict()["heads.predict.weight"].shape[0])
    if job.tokenizer is not None:
        tokenizer = load_tokenizer(job.tokenizer, image, device)
        if not discrete or tokenizer.config.codebook_size != codebook:
            raise ValueError(
                f"tokenizer: {job.tokenizer} has {tokenizer.config.codebook_size} tokens, the model predicts "
                f"{codebook}; give the one it was trained with"
            )
    task = PretrainTask(trained, grid, artifact.vocabulary, None, codebook)
    artifact.load_into(task)
    return task.eval(), trained, tokenizer


def _decoded(
    task: PretrainTask, tokenizer: ImageTokenizer, batch: Any, masks: Tensor, lost: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """The images decoded from their own tokens, and with the masked ones predicted; uint8 (N, Y, X, 3)."""
    assert task.nim is not None
    assert task.heads is not None
    texts, encoder = texts_of(batch), task.net.encoder
    text = task.heads.text(task.nim.encoder.texts(texts, lost).tokens)
    beyond_end = torch.arange(text.shape[1]) > texts.end.unsqueeze(1)
    hidden = encoder.reconstruct(encoder.embed(task.features(batch), masks), text, beyond_end)
    tokens = tokenizer.encode(scaled(batch["images"], tokenizer.config.image_size))
    guessed = torch.where(masks, task.heads.predict(hidden).argmax(-1), tokens)
    return to_frames(tokenizer.decode(tokens)), to_frames(tokenizer.decode(guessed))


def _named(text: list[str], relevance: Tensor, wrong: Tensor) -> list[tuple[str, float, bool]]:
    number = min(len(text), len(relevance))
    shown = stretched(relevance[:number].numpy()).tolist()
    return [(word, value, bool(flag == 1)) for word, value, flag in zip(text, shown, wrong.tolist(), strict=False)]
