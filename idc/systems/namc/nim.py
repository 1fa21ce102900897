"""Noise Identification and Masking (section 3.2.1): which patches and words do not match, and the loss that learns it.

Unusual here: the dual encoder reads every image and text twice. The first pass, without gradient, reads them whole and
gives the relevance of each token (eq. 1); the second reads them with the drawn masks and is what the contrastive loss
aligns. The class embedding of CLIP is replaced by a subclass that takes a mask, because masked patches are replaced
before the positions are added; everything else is CLIP of transformers, untouched.

Shapes:
    B pairs   N = 2 * B images (before and after), texts likewise   P patches   T text tokens, begin and end included
    W words of a text   E shared space
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.modeling_clip import CLIPVisionEmbeddings

from idc.systems.namc.config import CNN_STRIDE, ImageConfig, NimConfig
from idc.training.task import mean_per_sample
from idc.vision.pair_encoder.model import MEAN, STD
from idc.vision.pair_encoder.task import gather_rows
from idc.vision.pretrained import load_pretrained

_IRRA_EPSILON = 1e-8
"""Added to the true distribution inside the logarithm of the KL divergence, as by the loss's authors."""


_THRESHOLD = 0.3
"""Similarity at which tokens neither match nor mismatch, before training."""


class MaskablePatches(CLIPVisionEmbeddings):
    """CLIP's patch embedding, with masked patches replaced by a learned vector ("denoised image")."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.mask = nn.Parameter(torch.randn(config.hidden_size) * config.hidden_size**-0.5)  # e^msk

    def forward(self, images: Tensor, masked_NP: Tensor | None = None) -> Tensor:  # type: ignore[override]
        patches = self.patch_embedding(images).flatten(2).transpose(1, 2)
        if masked_NP is not None:
            patches = torch.where(masked_NP.unsqueeze(-1), self.mask.to(patches.dtype), patches)
        first = self.class_embedding.to(patches.dtype).expand(len(patches), 1, -1)
        return torch.cat([first, patches], dim=1) + self.position_embedding(self.position_ids)


class Texts(NamedTuple):
    """Tokenised texts.

    Attributes:
        ids: (N, T), padded at the end.
        words: (N, T) number of the word that a token belongs to; -1 for begin, end and padding.
        end: (N,) position of the end token.
        num_words: W, most words of a text.
    """

    ids: Tensor
    words: Tensor
    end: Tensor
    num_words: int


class Encoded(NamedTuple):
    """Output of the dual encoder in the shared space: (N, P, E) of images or (N, T, E) of texts; and (N, E), the
    class token or the end token."""

    tokens: Tensor
    whole: Tensor


def build_clip(config: NimConfig, image: ImageConfig, text_ids: int, max_length: int) -> Any:
    """The CLIPModel that the dual encoder starts from; from scratch with so many text ids and tokens of a text.
    ValueError: `clip` cannot be loaded, or does not fit the grid."""
    if config.clip is None:
        sizes = {
            "hidden_size": config.encoder.width,
            "intermediate_size": 4 * config.encoder.width,
            "num_hidden_layers": config.encoder.layers,
            "num_attention_heads": config.encoder.heads,
        }
        return CLIPModel(
            CLIPConfig(
                text_config={
                    **sizes, "vocab_size": text_ids, "max_position_embeddings": max_length, "bos_token_id": 1,
                    "eos_token_id": 2, "pad_token_id": 0,
                },
                vision_config={**sizes, "image_size": image.size, "patch_size": CNN_STRIDE},
                projection_dim=config.encoder.width,
            )
        )  # fmt: skip
    clip: Any = load_pretrained(CLIPModel, config.clip, "nim.clip")
    vision = clip.config.vision_config
    if (vision.image_size, vision.patch_size) != (image.size, CNN_STRIDE):
        raise ValueError(
            f"nim.clip: {config.clip!r} has images of {vision.image_size} pixels with patches of {vision.patch_size}; "
            f"image.grid = {image.grid} needs {image.size} and {CNN_STRIDE}"
        )
    return clip


class DualEncoder(nn.Module):
    """CLIP whose image patches and words can be masked; changes the CLIPModel that it is given."""

    def __init__(self, clip: Any):
        super().__init__()
        vision = clip.vision_model
        patches = MaskablePatches(vision.config)
        patches.load_state_dict(vision.embeddings.state_dict(), strict=False)
        vision.embeddings = patches
        del clip.logit_scale  # the temperature of the loss is fixed
        self.clip = clip
        width = clip.config.text_config.hidden_size
        self.text_mask = nn.Parameter(torch.randn(width) * 0.02)
        """Embedding of the word [MASK], which CLIP's vocabulary lacks."""
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    @property
    def width(self) -> int:
        """E."""
        return int(self.clip.config.projection_dim)

    @property
    def max_tokens(self) -> int:
        """Most tokens of a text."""
        return int(self.clip.config.text_config.max_position_embeddings)

    def images(self, images_NHWC: Tensor, masked_NP: Tensor | None = None) -> Encoded:
        """Encode uint8 RGB images of the model's size."""
        vision = self.clip.vision_model
        scaled = (images_NHWC.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std  # type: ignore[operator]
        hidden = vision.pre_layrnorm(vision.embeddings(scaled, masked_NP))
        hidden = vision.encoder(inputs_embeds=hidden).last_hidden_state
        shared = self.clip.visual_projection(vision.post_layernorm(hidden))
        return Encoded(shared[:, 1:], shared[:, 0])

    def texts(self, texts: Texts, masked_NW: Tensor | None = None) -> Encoded:
        """Encode texts; every piece of a masked word becomes [MASK]."""
        # Its parts one by one: its forward takes ids alone, and masked words are embeddings.
        text = self.clip.text_model
        embedded = text.embeddings.token_embedding(texts.ids)
        if masked_NW is not None:
            masked = of_tokens(masked_NW, texts, False)
            embedded = torch.where(masked.unsqueeze(-1), self.text_mask.to(embedded.dtype), embedded)
        length = texts.ids.shape[1]
        hidden = text.embeddings(inputs_embeds=embedded)
        later = torch.full((length, length), float("-inf"), device=hidden.device).triu(1)[None, None]
        hidden = text.encoder(inputs_embeds=hidden, attention_mask=later.to(hidden.dtype)).last_hidden_state
        shared = self.clip.text_projection(text.final_layer_norm(hidden))
        return Encoded(shared, shared[torch.arange(len(shared), device=shared.device), texts.end])


def of_tokens(values_NW: Tensor, texts: Texts, outside: float | bool) -> Tensor:
    """Per-word values for each token, (N, T); ``outside`` for tokens of no word."""
    inside = texts.words >= 0
    values = values_NW.gather(1, texts.words.clamp(min=0))
    return torch.where(inside, values, torch.full_like(values, outside))


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """Cosine similarities (..., A, B) of the rows of (..., A, E) and (..., B, E), in float32."""
    with torch.autocast(a.device.type, enabled=False):
        return F.normalize(a.float(), dim=-1) @ F.normalize(b.float(), dim=-1).transpose(-1, -2)


def relevance(patches_NPE: Tensor, tokens_NTE: Tensor, texts: Texts) -> tuple[Tensor, Tensor]:
    """Relevance vectors of eq. 1: R_I (N, P) and R_T per word (N, W), cosine similarities; 0 everywhere for the image
    of a text without words, and for padding of words."""
    similar = cosines(patches_NPE, tokens_NTE)  # S, (N, P, T)
    inside = (texts.words >= 0).unsqueeze(1)
    # No cosine is below -1: tokens of no word are never the most similar.
    of_patches = similar.masked_fill(~inside, -1).amax(dim=-1)
    of_patches = torch.where(inside.any(dim=-1), of_patches, 0.0)
    best = similar.amax(dim=1) * inside[:, 0]
    # The last column takes the tokens of no word and is dropped.
    sums = best.new_zeros(len(best), texts.num_words + 1)
    where = torch.where(texts.words >= 0, texts.words, texts.num_words)
    sums = sums.scatter_add(1, where, best)
    pieces = torch.zeros_like(sums).scatter_add(1, where, inside[:, 0].float())
    return of_patches, (sums / pieces.clamp(min=1))[:, : texts.num_words]


def mask_probabilities(relevance_NX: Tensor, exists_NX: Tensor, ratio: float, masking: str) -> Tensor:
    """p + IR - mean(IR) (section 3.2.1) clipped to [0, 1], or, if random, ``ratio``; 0 where nothing exists."""
    if masking == "random":
        return ratio * exists_NX.float()
    irrelevance = 1 - relevance_NX
    count = exists_NX.sum(dim=1, keepdim=True).clamp(min=1)
    mean = (irrelevance * exists_NX).sum(dim=1, keepdim=True) / count
    return (ratio + irrelevance - mean).clamp(0, 1) * exists_NX


def words_exist(texts: Texts) -> Tensor:
    """(N, W): whether a text has a word of that number."""
    numbers = torch.arange(texts.num_words, device=texts.ids.device)
    return numbers <= texts.words.amax(dim=1, keepdim=True)


def draw_masks(patches_NP: Tensor, words_NW: Tensor, uniform_NP: Tensor, uniform_NW: Tensor) -> tuple[Tensor, Tensor]:
    """Binary masks M_I (N, P) and M_T (N, W) from probabilities and numbers drawn uniformly from [0, 1). An image whose
    patches would all be masked keeps the least probable one."""
    image, text = uniform_NP < patches_NP, uniform_NW < words_NW
    kept = F.one_hot(patches_NP.argmin(dim=1), patches_NP.shape[1]).bool()
    return image & ~(image.all(dim=1, keepdim=True) & kept), text


def contrastive_loss(image_BE: Tensor, text_BE: Tensor, temperature: float, kind: str, gather: bool = False) -> Tensor:
    """Loss of one subset (first or second images of the batch), mean over its pairs; with ``gather`` the
    distributions are over the texts and images of all workers.

    ``sdm``: KL(p || q) in both directions (eq. 13 to 15), q from the identity: each image has one text. ``infonce``:
    the cross-entropy of the same distributions, in both directions.
    """
    (images_AE, own_B), (texts_AE, _) = _all_rows(gather, image_BE), _all_rows(gather, text_BE)
    both = (cosines(image_BE, texts_AE) / temperature, cosines(text_BE, images_AE) / temperature)
    if kind == "infonce":
        return F.cross_entropy(both[0], own_B) + F.cross_entropy(both[1], own_B)
    true = F.one_hot(own_B, len(texts_AE)).float()
    total = true.new_zeros(())
    for logits in both:
        logs = logits.log_softmax(dim=1)
        total = total + (logs.exp() * (logs - (true + _IRRA_EPSILON).log())).sum(dim=1).mean()
    return total


def token_loss(
    patches_BPE: Tensor, tokens_BTE: Tensor, seen_BP: Tensor, words_BT: Tensor, threshold: Tensor, temperature: float,
    gather: bool = False,
) -> Tensor:  # fmt: skip
    """Loss of the similarities that relevance is made of (eq. 1), of one subset.

    The similarity of a word to an image, that of its most similar patch, less ``threshold`` and over ``temperature``,
    is the logit of the two belonging together: its image against all others, which weigh as much as the one. So a word
    that fits every image ends at the threshold, those that the image shows above it, and those that it does not show
    below. Of a patch and the texts likewise. The mean over the words of a text, and over the patches of an image; both
    summed, then the mean over the pairs. ``seen_BP`` and ``words_BT``: what counts; ``gather``: the others are those of
    all workers."""
    (patches_APE, own_B), (seen_AP, _) = _all_rows(gather, patches_BPE), _all_rows(gather, seen_BP)
    padding = (_longest(tokens_BTE) if gather else tokens_BTE.shape[1]) - tokens_BTE.shape[1]
    tokens_ATE, _ = _all_rows(gather, F.pad(tokens_BTE, (0, 0, 0, padding)))
    words_AT, _ = _all_rows(gather, F.pad(words_BT, (0, padding)))

    def similarities(patches_IPE: Tensor, tokens_DTE: Tensor) -> Tensor:
        sizes = (*patches_IPE.shape[:2], *tokens_DTE.shape[:2])
        return cosines(patches_IPE.flatten(0, 1), tokens_DTE.flatten(0, 1)).view(sizes)

    hidden = -2.0  # below every cosine
    similar_APBT = similarities(patches_APE, tokens_BTE)
    of_words_ABT = similar_APBT.masked_fill(~seen_AP[:, :, None, None], hidden).amax(dim=1)
    alone = len(patches_APE) == len(patches_BPE)
    similar_BPAT = similar_APBT if alone else similarities(patches_BPE, tokens_ATE)
    of_patches_ABP = similar_BPAT.masked_fill(~words_AT, hidden).amax(dim=3).permute(2, 0, 1)
    matching = F.one_hot(own_B, len(patches_APE)).float().T.unsqueeze(-1)

    def each(similar_ABX: Tensor) -> Tensor:
        logits = (similar_ABX - threshold) / temperature
        of_others = (1 - matching) * F.logsigmoid(-logits) / max(1, len(matching) - 1)
        return -(matching * F.logsigmoid(logits) + of_others).sum(dim=0)

    return mean_per_sample(each(of_words_ABT), words_BT) + mean_per_sample(each(of_patches_ABP), seen_BP)


def _all_rows(gather: bool, rows: Tensor) -> tuple[Tensor, Tensor]:
    if not gather:
        return rows, torch.arange(len(rows), device=rows.device)
    every, numbers = gather_rows(rows.float())  # floats, which every backend gathers
    return every.to(rows.dtype), numbers


def _longest(tokens_BTE: Tensor) -> int:
    length = torch.tensor(tokens_BTE.shape[1], device=tokens_BTE.device)
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(length, dist.ReduceOp.MAX)
    return int(length)


class Denoised(NamedTuple):
    """Output of NIM, and its losses.

    Attributes:
        images: masks M_I, (N, P).
        words: masks M_T, (N, W).
        text: encoded denoised descriptions, (N, T, E).
        loss: L_NIM, the sum over both subsets (eq. 16).
        token_loss: :func:`token_loss`, likewise; 0 without its weight.
    """

    images: Tensor
    words: Tensor
    text: Tensor
    loss: Tensor
    token_loss: Tensor


class NoiseIdentification(nn.Module):
    """The NIM module. Workers of a training share negatives, those of a validation, of other batch sizes, do not."""

    def __init__(self, config: NimConfig, image: ImageConfig, text_ids: int, max_length: int):
        super().__init__()
        self.config = config
        self.encoder = DualEncoder(build_clip(config, image, text_ids, max_length))
        # Only with its loss, so that other artifacts have no such parameter.
        self.threshold = nn.Parameter(torch.tensor([_THRESHOLD])) if config.token_weight else None
        if config.align_images == "raw":
            self.encoder.clip.vision_model.embeddings.mask.requires_grad_(False)  # no masked image is encoded

    @torch.no_grad()
    def relevance(self, images_NHWC: Tensor, texts: Texts) -> tuple[Tensor, Tensor]:
        """R_I (N, P) and R_T (N, W) of whole images and descriptions."""
        return relevance(self.encoder.images(images_NHWC).tokens, self.encoder.texts(texts).tokens, texts)

    @torch.no_grad()
    def masks(self, images_NHWC: Tensor, texts: Texts, uniform_NP: Tensor, uniform_NW: Tensor) -> tuple[Tensor, Tensor]:
        """M_I and M_T for numbers drawn uniformly from [0, 1)."""
        settings, exist = self.config, words_exist(texts)
        if settings.masking == "random":
            of_images, of_texts = uniform_NP.new_zeros(uniform_NP.shape), uniform_NW.new_zeros(uniform_NW.shape)
        else:
            of_images, of_texts = self.relevance(images_NHWC, texts)
        all_patches = torch.ones_like(of_images, dtype=torch.bool)
        return draw_masks(
            mask_probabilities(of_images, all_patches, settings.image_ratio, settings.masking),
            mask_probabilities(of_texts, exist, settings.text_ratio, settings.masking),
            uniform_NP,
            uniform_NW,
        )

    def forward(
        self, images_NHWC: Tensor, texts: Texts, uniform_NP: Tensor, uniform_NW: Tensor, masking: bool = True
    ) -> Denoised:
        """The first B of the N images and texts are those of before, the others those of after. Without ``masking`` no
        token is masked."""
        settings = self.config
        if masking:
            masked_images, masked_words = self.masks(images_NHWC, texts, uniform_NP, uniform_NW)
        else:
            masked_images, masked_words = (torch.zeros_like(u, dtype=torch.bool) for u in (uniform_NP, uniform_NW))
        denoised_text = self.encoder.texts(texts, masked_words)
        text = denoised_text if settings.align_texts == "denoised" else self.encoder.texts(texts)
        image = self.encoder.images(images_NHWC, masked_images if settings.align_images == "denoised" else None)
        pairs = len(images_NHWC) // 2
        subsets = (slice(None, pairs), slice(pairs, None))
        loss = sum(
            contrastive_loss(
                image.whole[subset], text.whole[subset], settings.temperature, settings.loss, self.training
            )
            for subset in subsets
        )
        of_tokens_loss = image.whole.new_zeros(())
        if self.threshold is not None:
            seen = torch.ones_like(masked_images) if settings.align_images == "raw" else ~masked_images
            words = texts.words >= 0
            if settings.align_texts == "denoised":
                words &= ~of_tokens(masked_words, texts, False)
            for subset in subsets:
                of_tokens_loss = of_tokens_loss + token_loss(
                    image.tokens[subset], text.tokens[subset], seen[subset], words[subset], self.threshold,
                    settings.token_temperature, self.training,
                )  # fmt: skip
        return Denoised(masked_images, masked_words, denoised_text.tokens, cast(Tensor, loss), of_tokens_loss)
