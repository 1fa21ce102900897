"""ProCap's two stages as tasks of the shared training loop, and their artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idc.data.text import PAD, Vocabulary
from idc.systems.procap.captioner import INTERPOLATOR, TOKENIZER, CaptioningModel, FrameReader, frame_reader, shapes_of
from idc.systems.procap.config import EncoderConfig, FinetuneJob, PretrainJob, Procedure
from idc.systems.procap.data import FinetuneDataset, PretrainDataset, ProcedureInfo, as_images, collate
from idc.systems.procap.model import ClipWords, PretrainHeads, ProcedureEncoder, Shapes, clip_blocks
from idc.systems.procap.procedures.config import ProceduresConfig
from idc.systems.procap.procedures.stages import KeyFrames
from idc.training.artifact import read_artifact
from idc.training.caption_validation import CaptioningTask
from idc.training.context import Context
from idc.training.system import Parts, System
from idc.training.task import Batch, Task, mean_per_sample
from idc.vision.pretrained import network_fingerprint
from idc.vision.tokenizer.model import ImageTokenizer, tokenizer_preprocess

STAGE_1_CARD: dict[str, Any] = {
    "purpose": "ProCap's procedure encoder after stage 1 (explicit procedure modeling). It writes no captions: stage 2 "
    "trains a captioner from it.",
    "use": "python jobs/finetune_procap.py pretrained=<this folder> procedures=<folder of procedures>",
}
"""First sentence and command of the model card of a stage 1 artifact."""


def frame_features(frames: Tensor, extract: FrameReader) -> Tensor:
    """The frames that the encoder reads (B, F, ...), of stored ones: these, or pixels (B, F, Y, X, 3) uint8."""
    if frames.dtype != torch.uint8:
        return frames.float()
    with torch.no_grad():
        return extract(as_images(frames.flatten(0, 1))).unflatten(0, frames.shape[:2]).float()


class PretrainTask(Task):
    """Stage 1: masked sequence modeling, alignment and consistency (eq. 5). ``extract`` reads frames warped in
    pixels, or all frames if no features are stored or the encoder has a stem."""

    def __init__(self, job: PretrainJob, shapes: Shapes, pad: int, extract: FrameReader):
        super().__init__()
        self.job, self.pad, self.extract = job, pad, extract
        self.encoder = ProcedureEncoder(job.encoder, shapes)
        self.heads = PretrainHeads(job.encoder.width, shapes.codebook_size)
        for unused in _unused_in_stage_1(job, self.encoder, self.heads):
            unused.requires_grad_(False)

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        loss, masked_BFP = self.job.loss, batch["masked"]
        count = masked_BFP.shape[0]
        frames = [frame_features(batch["frames"], self.extract)]
        texts = [batch["text"]]
        if self.job.aligns():
            frames.append(frames[0])
            swapped = loss.align_negative == "swap_halves"
            texts.append(batch["text"].roll(count // 2, dims=0) if swapped else batch["other_text"])
        if loss.consistency > 0:
            frames.append(self._warped_features(batch))
            texts.append(batch["text"])
        # One pass over the sample, the sample with the wrong caption, the sample with warped frames.
        masked = masked_BFP.repeat(len(frames), 1, 1)
        read = masked_BFP if loss.msm > 0 else torch.zeros_like(masked_BFP)
        h_align, h_csy, hidden = self.encoder("modeling", torch.cat(frames), masked, torch.cat(texts), self.pad, read)

        total, logs = hidden.new_zeros((), dtype=torch.float32), dict[str, Tensor | float]()
        if loss.msm > 0:
            chosen = masked_BFP.flatten(1)
            goal = batch["tokens"].flatten(1)[chosen]
            token_loss = F.cross_entropy(self.heads.msm(hidden).float(), goal, reduction="none")
            sample = torch.arange(count, device=goal.device).unsqueeze(1).expand_as(chosen)[chosen]
            per_sample = token_loss.new_zeros(count).index_add(0, sample, token_loss) / chosen.sum(1)
            msm = per_sample.mean()
            total = loss.msm * msm
            logs["msm"] = msm.detach()
        if self.job.aligns():
            logits = self.heads.align(h_align[: 2 * count]).float().view(2, count)
            counted = ~batch["entire"] if loss.align_skips_entire else torch.ones_like(batch["entire"])
            value, right = _true_or_false(logits[0], logits[1], counted)
            total = total + loss.align * value
            logs |= {"align": value.detach(), "align_accuracy": right}
        if loss.consistency > 0:
            value, right = _true_or_false(
                self.heads.consistency(h_csy[:count]).float().view(count),
                self.heads.consistency(h_csy[-count:]).float().view(count),
                torch.ones(count, dtype=torch.bool, device=h_csy.device),
            )
            total = total + loss.consistency * value
            logs |= {"consistency": value.detach(), "consistency_accuracy": right}
        return total, logs

    def param_groups(self) -> list[dict[str, Any]]:
        params = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return [{"name": "all", "params": params, **self.job.optim.model_dump()}]

    def checkpointed_parts(self) -> list[torch.nn.Module]:
        return list(self.encoder.blocks)

    def _warped_features(self, batch: Batch) -> Tensor:
        warped = frame_features(batch["warped"], self.extract)
        if len(batch["recomputed"]):
            with torch.no_grad():
                recomputed = self.extract(as_images(batch["recomputed"])).to(warped.dtype)
            warped = warped.index_put(tuple(batch["recompute_index"].unbind(1)), recomputed)
        return warped


def _unused_in_stage_1(job: PretrainJob, encoder: ProcedureEncoder, heads: PretrainHeads) -> list[torch.nn.Parameter]:
    """Parameters of the switched-off parts of stage 1; kept in the artifact, so that stage 2 always fits."""
    on = {heads.msm: job.loss.msm > 0, heads.align: job.aligns(), heads.consistency: job.loss.consistency > 0}
    unused = [parameter for head, used in on.items() if not used for parameter in head.parameters()]
    if not job.caption_condition:
        unused += [encoder.text_positions, *encoder.text_embedding.parameters()]
    return unused


def _true_or_false(true: Tensor, false: Tensor, counted: Tensor) -> tuple[Tensor, Tensor]:
    """-log p(1 | true) - log p(0 | false) (eq. 7, 8), mean over the counted samples, 0 without any; and the accuracy
    over all samples."""
    each = F.softplus(-true) + F.softplus(false)
    right = ((true > 0).float() + (false < 0).float()) / 2
    return (each * counted).sum() / counted.sum().clamp(min=1), right.mean()


class FinetuneTask(CaptioningTask):
    """Stage 2: captioning from before, queries and after (eq. 9, 10), or a variant of `procedure`."""

    def __init__(
        self, job: FinetuneJob, encoder: EncoderConfig, shapes: Shapes, vocabulary: Vocabulary, extract: FrameReader
    ):
        super().__init__()
        self.job, self.vocabulary, self.extract = job, vocabulary, extract
        self.captioner = CaptioningModel(encoder, job.decoder, shapes, job.procedure)
        for unused in _unused_in_stage_2(self.captioner, job.procedure):
            unused.requires_grad_(False)

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """Eq. 10: the sum over the words of a caption, with several captions the mean over those of the pair, mean over
        the samples. The official code sums over the batch; under Adam this makes a difference only to gradient
        clipping."""
        words_BCT = batch["targets"] != PAD
        logits_NV = self.captioner(self._features(batch), batch["ids"], words_BCT).float()
        right = batch["targets"][words_BCT]
        captions_B = words_BCT.any(2).sum(1)
        share_BCT = words_BCT / captions_B.view(-1, 1, 1)
        # PyTorch spreads the mass over all words, the right one too; our setting is the mass of the other words.
        count = logits_NV.shape[-1]
        smoothing = min(1.0, self.job.label_smoothing * count / (count - 1))
        each = F.cross_entropy(logits_NV, right, reduction="none", label_smoothing=smoothing)
        loss = (each * share_BCT[words_BCT]).sum() / len(captions_B)
        # Scattered back, so that the logs are means over the pairs.
        losses, hits = (
            torch.zeros_like(share_BCT).masked_scatter(words_BCT, values)
            for values in (each.detach(), (logits_NV.argmax(-1) == right).float())
        )
        return loss, {
            "loss_per_word": mean_per_sample(losses, words_BCT),
            "word_accuracy": mean_per_sample(hits, words_BCT),
        }

    def caption(self, batch: Batch) -> list[str]:
        decoded = self.captioner.search(
            self._features(batch), beams=self.job.beams, length_penalty=self.job.length_penalty
        )
        return [self.vocabulary.decode(ids) for ids in decoded.ids.tolist()]

    def _features(self, batch: Batch) -> Tensor:
        return frame_features(batch["procedure" if self.job.procedure == "frames" else "ends"], self.extract)

    def checkpointed_parts(self) -> list[torch.nn.Module]:
        return list(self.captioner.encoder.blocks)

    def param_groups(self) -> list[dict[str, Any]]:
        captioner, job = self.captioner, self.job
        encoder = [parameter for parameter in captioner.encoder.parameters() if parameter.requires_grad]
        decoder = list(captioner.decoder.parameters())
        return [
            {"name": "encoder", "params": encoder, **job.encoder_optim.model_dump()},
            {"name": "decoder", "params": decoder, **job.decoder_optim.model_dump()},
        ]


def _unused_in_stage_2(captioner: CaptioningModel, kind: Procedure) -> list[torch.nn.Parameter]:
    """Parameters that only stage 1 uses; kept in the artifact, not trained."""
    encoder = captioner.encoder
    unused = [encoder.align_token]
    if kind != "queries":
        unused.append(encoder.mask_embedding)
    if encoder.config.queries_only:
        unused += [encoder.text_positions, *encoder.text_embedding.parameters(), encoder.consistency_token]
        if encoder.separator_token is not None:
            unused.append(encoder.separator_token)
    return unused


def _stage_1(job: PretrainJob, context: Context) -> Parts:
    info = ProcedureInfo.of(job.procedures)
    tokenizer = _tokenizer(info).to(context.device)
    info = frames_for(job.encoder, info)
    task = PretrainTask(job, info.shapes, PAD, frame_reader(job.encoder, tokenizer))
    if job.clip is not None:
        blocks = clip_blocks(job.clip, job.encoder.layers, job.encoder.width, job.encoder.heads)
        assert not task.encoder.load_state_dict(blocks, strict=False).unexpected_keys
    task.to(context.device)
    words = None
    if job.clip_tokenizer is not None and job.encoder.text_vocabulary is not None:
        words = ClipWords(job.clip_tokenizer, job.encoder.text_vocabulary)
    train, validation = (PretrainDataset(job.procedures, info, split, job, words) for split in ("train", "val"))
    config = {"stage": "pretrain", "shapes": asdict(info.shapes), "job": job.model_dump(mode="json")}

    def artifact() -> dict[str, Any]:
        extras = {TOKENIZER: info.tokenizer}
        return {"config": config, "vocabulary": info.vocabulary, "extras": extras, **STAGE_1_CARD}

    return Parts(task, train, validation, collate, artifact)


def _stage_2(job: FinetuneJob, context: Context) -> Parts:
    info = ProcedureInfo.of(job.procedures)
    tokenizer = _tokenizer(info).to(context.device)
    encoder = job.encoder or EncoderConfig()
    learned: dict[str, Tensor] = {}
    if job.pretrained is not None:
        encoder, learned = _pretrained_encoder(job.pretrained, info)
    if encoder.stem and job.procedure == "frames":
        raise ValueError("procedure: frames are features of the tokenizer; take an encoder without a stem, or queries")
    info = frames_for(encoder, info)
    reader = frame_reader(encoder, tokenizer)
    task = FinetuneTask(job, encoder, info.shapes, info.vocabulary, reader)
    if learned:
        task.captioner.encoder.load_state_dict(learned)
    task.to(context.device)
    extras, explicit = {TOKENIZER: info.tokenizer}, job.procedure == "frames"
    if explicit:
        KeyFrames(ProceduresConfig.model_validate(info.build), tokenizer)  # to fail now, not after the training
        if (weights := info.build.get(INTERPOLATOR)) is not None:
            extras[INTERPOLATOR] = weights
    options: Any = {"max_length": job.decoder.max_length, "seed": job.train.seed, "explicit": explicit}
    train = FinetuneDataset(job.procedures, info, "train", captions=job.captions, **options)
    validation = FinetuneDataset(job.procedures, info, "val", captions="first", validation=True, **options)
    config = {
        "stage": "finetune",
        "shapes": asdict(info.shapes),
        "encoder": encoder.model_dump(mode="json"),
        "job": job.model_dump(mode="json"),
        "build": info.build if explicit else None,
    }

    def artifact() -> dict[str, Any]:
        return {
            "config": config,
            "vocabulary": info.vocabulary,
            "preprocess": tokenizer_preprocess(tokenizer.config),
            "card": "ProCap after stage 2 (implicit procedure captioning).",
            "extras": extras,
            "trained_on": job.trained_on or info.domain,
        }

    return Parts(task, train, validation, collate, artifact, weights="captioner.", limit=job.validation_pairs)


pretrain = System("procap", PretrainJob, _stage_1).train
finetune = System("procap", FinetuneJob, _stage_2).train


def frames_for(encoder: EncoderConfig, info: ProcedureInfo) -> ProcedureInfo:
    """The procedures as the encoder reads them: with a stem as pixels, even if features are stored. ValueError: the
    patches of the stem are not those of the procedures."""
    if not encoder.stem:
        return info
    side = tuple(pixels / patches for pixels, patches in zip(info.image_size, info.shapes.grid, strict=True))
    if side != (2 ** len(encoder.stem),) * 2:
        raise ValueError(
            f"encoder.stem: {len(encoder.stem)} levels make patches of {2 ** len(encoder.stem)} pixels, and those of "
            f"the procedures' tokenizer have {side[0]:g}; the number of widths must be its binary logarithm"
        )
    return replace(info, stores_features=False)


def _tokenizer(info: ProcedureInfo) -> ImageTokenizer:
    tokenizer = ImageTokenizer.load(info.tokenizer)
    if network_fingerprint(info.tokenizer) != info.tokenizer_fingerprint:
        raise ValueError(
            f"{info.tokenizer} holds another tokenizer than the one the procedures were built with; build them again"
        )
    return tokenizer


def _pretrained_encoder(path: str, info: ProcedureInfo) -> tuple[EncoderConfig, dict[str, Tensor]]:
    artifact = read_artifact(path, system="procap")
    if artifact.config["stage"] != "pretrain":
        raise ValueError(f"pretrained: {path} is an artifact of stage 2; give the artifact of pretrain_procap.py")
    config = EncoderConfig.model_validate(artifact.config["job"]["encoder"])
    saved = shapes_of(artifact.config["shapes"])
    if config.text_vocabulary is not None:  # the encoder has its own words, independent of the decoder's
        saved = replace(saved, vocabulary_size=info.shapes.vocabulary_size)
    elif artifact.vocabulary != info.vocabulary:
        raise ValueError(
            f"pretrained: {path} was trained with another vocabulary than that of the procedures; take that of its "
            "procedures by build.vocabulary"
        )
    if saved != info.shapes:
        raise ValueError(f"pretrained: {path} was trained on {saved}, the procedures have {info.shapes}")
    if network_fingerprint(artifact.extra(TOKENIZER)) != info.tokenizer_fingerprint:
        raise ValueError(
            f"pretrained: {path} was trained with another tokenizer than that of the procedures; build them with it"
        )
    return config, part_of(artifact.state_dict(), "encoder.")


def part_of(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names have a prefix, without the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
