"""Relevance of a caption's words and of patches of both images (eq. 1), for a fine-tuned NAMC that keeps the dual
encoder of its pre-training. It has been trained on descriptions of single images, not on captions of changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import CLIPConfig, CLIPModel

from idc.atomic import write_text
from idc.captioning.contract import Relevance
from idc.data.text import Vocabulary, words
from idc.systems.namc.config import PretrainJob
from idc.systems.namc.data import Tokens, stack_texts
from idc.systems.namc.nim import DualEncoder, NoiseIdentification, relevance
from idc.training.artifact import Artifact
from idc.vision.pair_encoder.text_tokens import clip_tokenizer

FOLDER = "relevance"
"""Folder of the dual encoder inside an artifact."""
_WEIGHTS, _CLIP, _TOKENIZER, _VOCABULARY = "encoder.safetensors", "clip.json", "tokenizer", "vocabulary.json"


class RelevanceReader:
    """The dual encoder of a pre-training with its way to read texts."""

    def __init__(self, encoder: DualEncoder, tokens: Tokens):
        self.encoder, self.tokens = encoder.eval().requires_grad_(False), tokens

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> RelevanceReader:
        """Read a folder of :meth:`save`; needs no other file."""
        from safetensors.torch import load_file

        encoder = DualEncoder(CLIPModel(CLIPConfig(**json.loads((folder / _CLIP).read_text()))))
        encoder.load_state_dict(load_file(folder / _WEIGHTS))
        tokenizer = clip_tokenizer(folder / _TOKENIZER) if (folder / _TOKENIZER).exists() else None
        vocabulary = Vocabulary.load(folder / _VOCABULARY)
        return cls(encoder.to(device), Tokens(vocabulary, encoder.max_tokens, tokenizer))

    def save(self, folder: Path) -> None:
        """Write weights, CLIP's config, the vocabulary, and CLIP's tokenizer if there is one."""
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: value.contiguous() for name, value in self.encoder.state_dict().items()}, folder / _WEIGHTS)
        write_text(folder / _CLIP, json.dumps(self.encoder.clip.config.to_dict(), indent=1) + "\n")
        self.tokens.vocabulary.save(folder / _VOCABULARY)
        if self.tokens.clip is not None:
            self.tokens.clip.save_pretrained(folder / _TOKENIZER)

    @torch.inference_mode()
    def __call__(self, images_NHWC: Tensor, captions: Sequence[str]) -> list[Relevance]:
        """Of each of B captions; the first B of the N = 2 * B uint8 images are those of before."""
        split = [words(caption) for caption in captions]
        texts = stack_texts([self.tokens(sentence) for sentence in (*split, *split)]).to(images_NHWC.device)
        of_patches, of_words = relevance(
            self.encoder.images(images_NHWC).tokens, self.encoder.texts(texts).tokens, texts
        )
        side = round(of_patches.shape[1] ** 0.5)
        patches = of_patches.float().cpu().unflatten(1, (side, side)).numpy()
        values = of_words.float().cpu().tolist()
        count = len(split)
        return [
            Relevance(
                tuple(zip(sentence, values[row], values[count + row], strict=False)), patches[row], patches[count + row]
            )
            for row, sentence in enumerate(split)
        ]


def write_relevance(pretrained: Artifact, folder: Path) -> None:
    """Write the dual encoder of a pre-trained artifact as a folder of :class:`RelevanceReader`.

    Raises:
        ValueError: it was trained without NIM.
    """
    job, vocabulary = PretrainJob.model_validate(pretrained.config["job"]), pretrained.vocabulary
    assert vocabulary is not None
    if not job.nim.enabled:
        raise ValueError(f"keep_relevance: {pretrained.path} was trained without NIM; set it to false")
    nim = NoiseIdentification(job.nim, job.model.image, len(vocabulary), job.model.decoder.max_length)
    state = pretrained.state_dict().items()
    nim.load_state_dict({name.removeprefix("nim."): value for name, value in state if name.startswith("nim.")})
    tokenizer = None if job.nim.clip is None else clip_tokenizer(job.nim.clip)
    RelevanceReader(nim.encoder, Tokens(vocabulary, nim.encoder.max_tokens, tokenizer)).save(folder)
