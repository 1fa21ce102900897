"""Converts the authors' checkpoints to artifacts, strictly: every tensor is used, or dropped with a reason.

    vqgan    <dataset>_epoch=*.ckpt   a folder that is an image tokenizer
    stage1   dalle.pt                 an artifact of stage 1: encoder, heads, and the tokenizer that is in the file too
    stage2   model.chkpt              a captioner; also needs the authors' vocabulary (cache/*_word2idx*.json)

Besides the names, these differ: an official special token is the sum of two embeddings, ours is one vector; the
attention mask and the table of label smoothing are stored there and computed here. In the converted models all quirks
of the official code are switched on; each is documented at its field in `config.py`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from idc.data.text import PROCAP_SPECIALS, Vocabulary
from idc.systems.procap.captioner import TOKENIZER, CaptioningModel
from idc.systems.procap.config import ConvertJob, DecoderConfig, EncoderConfig, FinetuneJob, PretrainJob
from idc.systems.procap.model import PretrainHeads, ProcedureEncoder, Shapes
from idc.systems.procap.task import STAGE_1_CARD
from idc.training.artifact import add_file, write_artifact
from idc.training.foreign import (
    CONVERSION,
    Dropped,
    Ledger,
    conversion_text,
    dropped_before,
    find_state,
    read_checkpoint,
)
from idc.training.hashing import file_hash
from idc.vision.pair_encoder.convert import convert_clip4idc
from idc.vision.tokenizer.convert import convert_vqgan
from idc.vision.tokenizer.model import ImageTokenizer, tokenizer_preprocess

_STATE_KEYS = {"vqgan": "state_dict", "stage1": "weights", "stage2": "model"}
_PARTS = ("weight", "bias")
_BLOCKS = "transformer.transformer.resblocks"
_BLOCK_NAMES = {
    "norm_attention": "ln_1.",
    "attention.qkv": "attn.in_proj_",
    "attention.out": "attn.out_proj.",
    "norm_mlp": "ln_2.",
    "widen": "mlp.c_fc.",
    "narrow": "mlp.c_proj.",
}
_DECODER_NAMES = {
    "self_attention.q.weight": "selfattn.layer.wq.weight",
    "self_attention.k.weight": "selfattn.layer.wk.weight",
    "self_attention.v.weight": "selfattn.layer.wv.weight",
    "self_attention.out.weight": "selfattn.layer.wo.weight",
    "cross_attention.q.weight": "attention.layer.wq.weight",
    "cross_attention.k.weight": "attention.layer.wk.weight",
    "cross_attention.v.weight": "attention.layer.wv.weight",
    "cross_attention.out.weight": "attention.layer.wo.weight",
    "norm_self.weight": "selfattn.layernorm.gamma",
    "norm_self.bias": "selfattn.layernorm.beta",
    "norm_cross.weight": "attention.layernorm.gamma",
    "norm_cross.bias": "attention.layernorm.beta",
    "norm_feedforward.weight": "feedforward.layernorm.gamma",
    "norm_feedforward.bias": "feedforward.layernorm.beta",
    "widen.weight": "feedforward.layer.linear1.weight",
    "widen.bias": "feedforward.layer.linear1.bias",
    "narrow.weight": "feedforward.layer.linear2.weight",
    "narrow.bias": "feedforward.layer.linear2.bias",
}
_HEADS = {"msm": "to_logits", "align": "to_logits_rel", "consistency": "to_logits_vid"}
_SPECIAL_TOKENS = {"align_token": 0, "separator_token": 1, "consistency_token": 2}  # [REL], [ST1], [VID]


class Official(NamedTuple):
    """An official checkpoint as parts of our model: sizes and quirks, what follows from the tensors, the tensors
    under the names of our encoder and of :class:`PretrainHeads`, and the VQGAN inside the checkpoint."""

    encoder: EncoderConfig
    shapes: Shapes
    state: dict[str, Tensor]
    heads: dict[str, Tensor]
    tokenizer: ImageTokenizer


def convert(job: ConvertJob, *, overwrite: bool = False) -> list[Dropped]:
    """Convert ``job.weights`` to ``job.out``, unless it is there already, of the same file and settings; returns the
    dropped tensors. ValueError: the file is of another kind or damaged, or ``job.out`` holds anything else."""
    out, source = Path(job.out), Path(job.weights)
    settings = job.model_dump(mode="json", exclude={"out", "weights"})
    note = {"weights": source.name, "sha256": file_hash(source), "settings": settings}
    if (done := dropped_before(out, note, overwrite)) is not None:
        return done
    checkpoint = read_checkpoint(source)
    ledger = Ledger(find_state(checkpoint, _STATE_KEYS.get(job.kind), source), source.name)
    if job.kind == "clip4idc":
        encoder = convert_clip4idc(ledger, tokenizer=job.clip_tokenizer, separate_layers=job.separate_layers)
        encoder.save(out, card=f"Converted from CLIP4IDC's {source.name}.")
        add_file(out, CONVERSION, conversion_text(note, ledger.dropped))
    elif job.kind == "vqgan":
        tokenizer = convert_vqgan(ledger, job.image_size)
        ledger.close()
        tokenizer.save(out)
        add_file(out, CONVERSION, conversion_text(note, ledger.dropped))
    elif job.kind == "stage1":
        _write_stage_1(job, ledger, note)
    else:
        _write_stage_2(job, ledger, note, checkpoint.get("model_cfg") or {})
    return ledger.dropped


def _write_stage_1(job: ConvertJob, ledger: Ledger, note: dict[str, Any]) -> None:
    official = convert_stage_1(ledger, job.heads)
    ledger.close()
    job_like = PretrainJob(procedures="official", encoder=official.encoder, clip_tokenizer=job.clip_tokenizer)
    config = {"stage": "pretrain", "shapes": asdict(official.shapes), "job": job_like.model_dump(mode="json")}
    state = {**_prefixed("encoder.", official.state), **_prefixed("heads.", official.heads)}
    card = "Converted from the authors' weights."
    _write(job, ledger, note, official.tokenizer, config=config, state_dict=state, card=card, **STAGE_1_CARD)


def _write_stage_2(job: ConvertJob, ledger: Ledger, note: dict[str, Any], saved: Mapping[str, Any]) -> None:
    assert job.vocabulary is not None
    vocabulary = Vocabulary.from_word_ids(job.vocabulary, PROCAP_SPECIALS, "procap")
    heads, max_length = saved.get("num_attention_heads", job.decoder_heads), saved.get("max_t_len", job.max_length)
    captioner, tokenizer = convert_stage_2(ledger, job.heads, int(heads), int(max_length))
    ledger.close()
    words = captioner.decoder.words.shape[0]
    if words != len(vocabulary):
        raise ValueError(f"vocabulary: {job.vocabulary} has {len(vocabulary)} words, {ledger.source} {words}")
    job_like = FinetuneJob(procedures="official", decoder=captioner.decoder.config, label_smoothing=0.1)
    config = {
        "stage": "finetune",
        "shapes": asdict(captioner.encoder.shapes),
        "encoder": captioner.encoder.config.model_dump(mode="json"),
        "job": job_like.model_dump(mode="json"),
    }
    card = "ProCap after stage 2, converted from the authors' weights."
    parts = {"vocabulary": vocabulary, "preprocess": tokenizer_preprocess(tokenizer.config), "card": card}
    _write(job, ledger, note, tokenizer, config=config, state_dict=captioner.state_dict(), **parts)


def _write(job: ConvertJob, ledger: Ledger, note: dict[str, Any], tokenizer: ImageTokenizer, **artifact: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        extras = {name: Path(folder) / name for name in (TOKENIZER, CONVERSION)}
        tokenizer.save(extras[TOKENIZER])
        extras[CONVERSION].write_text(conversion_text(note, ledger.dropped), encoding="utf-8")
        write_artifact(job.out, system="procap", extras=extras, **artifact)


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


# -- layouts ------------------------------------------------------------------------------------------------------


def convert_stage_1(ledger: Ledger, heads: int) -> Official:
    """Make our encoder, heads and tokenizer from ``weights`` of ``dalle.pt``; the caller closes the ledger. No
    tensor determines the number of attention heads. ValueError: a tensor is missing or of an unexpected shape."""
    width = ledger.shape("image_mask")[0]
    length = ledger.shape("text_pos_emb.weight")[0]
    rows = ledger.shape("text_emb.weight")[0]
    # axial_positional_embedding names its tables weights_0 .. up to version 0.2.1, and weights.0 .. from 0.3.0 on.
    axis = "target_pos_emb.weights_{}" if ledger.has("target_pos_emb.weights_0") else "target_pos_emb.weights.{}"
    frames, height, columns = (ledger.shape(axis.format(number))[1 + number] for number in range(3))
    if rows < length + 1:
        raise ValueError(f"{ledger.source}: text_emb.weight has {rows} rows, expected at least {length + 1}")
    if width % heads:
        raise ValueError(f"heads: {heads} does not divide the width of {ledger.source}, {width}")
    encoder = EncoderConfig(
        width=width,
        layers=ledger.count(_BLOCKS + ".{}.ln_1.weight"),
        heads=heads,
        init="normal",
        text_length=length,
        text_vocabulary=rows - length - 1,
        separator=True,
        consistency_sees_text=False,
        queries_only=False,
    )
    vae = ledger.inner("vae.model.")
    if height != columns:
        raise ValueError(f"{ledger.source}: {height} rows and {columns} columns of patches; images are square here")
    tokenizer = convert_vqgan(vae, height * 2 ** (vae.count("encoder.down.{}.block.0.conv1.weight") - 1))
    ledger.take_inner("vae.model.", vae)
    shapes = Shapes(
        num_keyframes=frames - 2,
        grid=(height, columns),
        feature_dim=tokenizer.config.latent_dim,
        codebook_size=tokenizer.config.codebook_size,
        vocabulary_size=rows - length - 1,
    )

    state = {
        "mask_embedding": ledger.take("image_mask"),
        "text_embedding.weight": ledger.take("text_emb.weight")[:-1],
        "text_positions": ledger.take("text_pos_emb.weight"),
        "frame_positions": ledger.take(axis.format(0), (1, frames, 1, 1, width))[0],
        "row_positions": ledger.take(axis.format(1), (1, 1, height, 1, width))[0],
        "column_positions": ledger.take(axis.format(2), (1, 1, 1, columns, width))[0],
    }
    ledger.note("text_emb.weight[-1]", (1, width), "its [MASK] row: no text is masked")
    for ours, theirs in (("feature_norm", "conv_to_embedding.0"), ("feature_in", "conv_to_embedding.1")):
        for part in _PARTS:
            state[f"{ours}.{part}"] = ledger.take(f"{theirs}.{part}")
    special = ledger.take("special_emb.weight") + ledger.take("special_pos_emb.weight")
    for ours, row in _SPECIAL_TOKENS.items():
        state[ours] = special[row]
    for table in ("special_emb", "special_pos_emb"):
        ledger.note(f"{table}.weight[3:]", (len(special) - 3, width), "[ST3] and [ST4]: reserved, in no sequence")
    for number in range(encoder.layers):
        for ours, theirs in _BLOCK_NAMES.items():
            for part in _PARTS:
                state[f"blocks.{number}.{ours}.{part}"] = ledger.take(f"{_BLOCKS}.{number}.{theirs}{part}")
    head_state = {
        f"{ours}.{layer}.{part}": ledger.take(f"{theirs}.{layer}.{part}")
        for ours, theirs in _HEADS.items()
        for layer in (0, 1)
        for part in _PARTS
    }
    with torch.device("meta"):
        model = ProcedureEncoder(encoder, shapes)
        pretrain_heads = PretrainHeads(width, shapes.codebook_size)
    _fits(model, state, ledger)
    _fits(pretrain_heads, head_state, ledger)
    _drop_masks(ledger, encoder, shapes)
    ledger.drop("image_emb.", "embedding of image tokens: features come from the VQGAN's encoder instead")
    return Official(encoder, shapes, state, head_state, tokenizer)


def _drop_masks(ledger: Ledger, encoder: EncoderConfig, shapes: Shapes) -> None:
    """Drop the attention masks in the file, after comparing them with those that the encoder computes."""
    first = 1 + encoder.text_length  # of [ST1], after [REL] and the text; then [VID]
    length = first + 2 + shapes.frames * shapes.patches
    mask = torch.zeros(length, length)
    for row in (first, first + 1):
        mask[row, :row] = float("-inf")
    for number in range(encoder.layers):
        name = f"{_BLOCKS}.{number}.attn_mask"
        if not ledger.has(name):
            continue
        if ledger.shape(name) == (length, length) and torch.equal(ledger.take(name), mask):
            reason = "attention mask, the same in all blocks: the encoder computes it"
        else:
            ledger.take(name)
            reason = (
                "attention mask, and NOT the one that the encoder computes: this file is not from the released code, "
                "and the results of the converted model may differ from the original's"
            )
        ledger.note(name, ledger.shape(name), reason)


def convert_stage_2(
    ledger: Ledger, heads: int, decoder_heads: int, max_length: int
) -> tuple[CaptioningModel, ImageTokenizer]:
    """Make our captioner and tokenizer from ``model`` of ``model.chkpt``; the caller closes the ledger.
    ``max_length``: begin and end included. ValueError: a tensor is missing or of an unexpected shape."""
    prefix = "intermediate_generator."
    inner = ledger.inner(prefix)
    official = convert_stage_1(inner, heads)
    ledger.take_inner(prefix, inner)
    for name in (f"{theirs}.{layer}.{part}" for theirs in _HEADS.values() for layer in (0, 1) for part in _PARTS):
        ledger.note(prefix + name, inner.shape(name), "head of stage 1; captions do not need it (stage1 keeps it)")

    root = "text_decoder.decoder"
    words, width = ledger.shape(f"{root}.out.weight")
    if width % decoder_heads:
        raise ValueError(f"decoder_heads: {decoder_heads} does not divide the width of {ledger.source}, {width}")
    decoder = DecoderConfig(
        width=width,
        layers=ledger.count(root + ".layers.{}.selfattn.layer.wq.weight"),
        heads=decoder_heads,
        feedforward=ledger.shape(f"{root}.layers.0.feedforward.layer.linear1.weight")[0],
        scale_by_width=True,
        official_norm=True,
        ban_unknown_only=True,
        max_length=max_length,
    )
    state = {
        "words": ledger.take(f"{root}.out.weight"),
        "word_bias": ledger.take(f"{root}.out.bias"),
        **{f"project.{n}.{part}": ledger.take(f"mlp.{n}.{part}") for n in (0, 2, 3) for part in _PARTS},
    }
    for number in range(decoder.layers):
        for ours, theirs in _DECODER_NAMES.items():
            state[f"layers.{number}.{ours}"] = ledger.take(f"{root}.layers.{number}.{theirs}")
    ledger.drop("text_decoder.loss_func.one_hot", "target of label smoothing, 0.1 / (V - 1); computed where it is used")

    shapes = Shapes(**{**asdict(official.shapes), "vocabulary_size": words})
    with torch.device("meta"):
        captioner = CaptioningModel(official.encoder, decoder, shapes)
    _fits(captioner, {**_prefixed("encoder.", official.state), **_prefixed("decoder.", state)}, ledger)
    return captioner.eval(), official.tokenizer


def _fits(module: nn.Module, state: Mapping[str, Tensor], ledger: Ledger) -> None:
    try:
        module.load_state_dict(state, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{ledger.source} does not fit the model that its own tensors describe: {error}") from None
