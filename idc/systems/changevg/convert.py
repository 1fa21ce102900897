"""Converts the weights of Change-Agent's MCI (`MCI_model.pth`) to an artifact of the guide, strictly: every tensor is
used, or dropped with a reason.

Besides the names, these differ: keys and values of SegFormer are two matrices in transformers; the first four ids of
the authors' word list are in another order; the table of sinusoids is computed here."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idc.data.text import Vocabulary
from idc.systems.changevg.config import (
    GUIDE,
    BackboneConfig,
    ConvertMciJob,
    GuideConfig,
    GuideDecoderConfig,
    GuideJob,
)
from idc.systems.changevg.guide import GuideNet
from idc.systems.changevg.task import PREPROCESS
from idc.training.artifact import write_artifact
from idc.training.foreign import (
    CONVERSION,
    Dropped,
    Ledger,
    conversion_text,
    dropped_before,
    find_state,
    layout_faults,
    read_checkpoint,
    refuse_faults,
)
from idc.training.hashing import file_hash

MCI_MARKS = ("<NULL>", "<UNK>", "<START>", "<END>")
"""The first four ids of the authors' word list: padding, unknown, begin, end."""
_OWN_ORDER = (0, 2, 3, 1)
"""Their ids in the order of ours: padding, begin, end, unknown."""

_PARTS = ("weight", "bias")
_NORM = (*_PARTS, "running_mean", "running_var", "num_batches_tracked")
"""Tensors of a batch norm."""

_STAGE = {
    "patch_embeddings.proj": "patch_embed{level}.proj",
    "patch_embeddings.layer_norm": "patch_embed{level}.norm",
    "layer_norm": "norm{level}",
}
_SEGFORMER_BLOCK = {
    "layernorm_before": "norm1",
    "attention.q_proj": "attn.q",
    "attention.o_proj": "attn.proj",
    "layernorm_after": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.dwconv.dwconv": "mlp.dwconv.dwconv",
    "mlp.fc2": "mlp.fc2",
}
_REDUCTION = {
    "attention.sequence_reduction.sequence_reduction": "attn.sr",
    "attention.sequence_reduction.layer_norm": "attn.norm",
}
_SHAPED = {"square": "d_conv_3x3", "row": "d_conv_1x5", "column": "d_conv_5x1", "norm": "BN", "mix": "conv_1"}
_BLOCK = {
    **{f"query_shapes.{ours}": f"Q_d_conv.{theirs}" for ours, theirs in _SHAPED.items()},
    **{f"key_shapes.{ours}": f"K_d_conv.{theirs}" for ours, theirs in _SHAPED.items()},
    "contrast.0": "att.fuse_conv.0",
    "contrast.1": "att.fuse_conv.1",
    "query": "att.to_q",
    "key": "att.to_k",
    "value": "att.to_v",
    "out": "att.to_out.0",
    "norm_attention": "norm1",
    "norm_feedforward": "norm2",
    "widen": "feedforward.net.0",
    "narrow": "feedforward.net.3",
}
_BATCH_NORMS = ("query_shapes.norm", "key_shapes.norm", "contrast.1")
_UNUSED_IN_BLOCK = {
    "att.Q_LN.": "norm of queries that the official forward pass does not use",
    "att.K_LN.": "norm of keys that the official forward pass does not use",
    "att.V_LN.": "norm of values that the official forward pass does not use",
    "att.fuse_conv2.": "second fusion that the official forward pass does not use",
    "PCM.": "convolutions that the official forward pass does not use",
}
_DECODER_LAYER = {
    "self_out": "self_attn.out_proj",
    "cross_out": "multihead_attn.out_proj",
    "widen": "linear1",
    "narrow": "linear2",
    "norm_self": "norm1",
    "norm_cross": "norm2",
    "norm_feedforward": "norm3",
}


def convert_mci(job: ConvertMciJob, *, overwrite: bool = False) -> list[Dropped]:
    """Convert ``job.weights`` to ``job.out``, unless it is there already, of the same files and settings; returns
    the dropped tensors. ValueError: a file is of another kind or damaged, or ``job.out`` holds anything else."""
    out, source = Path(job.out), Path(job.weights)
    settings = job.model_dump(mode="json", exclude={"out", "weights", "vocabulary"})
    note: dict[str, Any] = {
        "weights": source.name,
        "sha256": file_hash(source),
        "vocabulary_sha256": file_hash(Path(job.vocabulary)),
        "settings": settings,
    }
    if (done := dropped_before(out, note, overwrite)) is not None:
        return done
    vocabulary = Vocabulary.from_word_ids(job.vocabulary, MCI_MARKS, "own")
    checkpoint = read_checkpoint(source)
    ledger = Ledger(
        {
            f"{part}.{name}": tensor
            for part in ("encoder_dict", "encoder_trans_dict", "decoder_dict")
            for name, tensor in find_state(_part(checkpoint, part, source), None, source).items()
        },
        source.name,
    )
    model, state = convert_guide(ledger, job)
    if (words := len(state["decoder.words"])) != len(vocabulary):
        raise ValueError(f"vocabulary: {job.vocabulary} has {len(vocabulary)} words, {ledger.source} {words}")
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.absolute().parent) as folder:
        path = Path(folder) / CONVERSION
        path.write_text(conversion_text(note, ledger.dropped), encoding="utf-8")
        job_like = GuideJob(pairs="official", model=model)
        write_artifact(
            out,
            system="changevg",
            config={"part": GUIDE, "job": job_like.model_dump(mode="json")},
            state_dict=state,
            vocabulary=vocabulary,
            preprocess={"height": job.image_size, "width": job.image_size, "resize": PREPROCESS},
            card="Change-Agent's MCI, the guide of ChangeVG, converted from the authors' weights.",
            trained_on=f"LEVIR-MCI's satellite images at {job.image_size}x{job.image_size} pixels",
            extras={CONVERSION: path},
        )
    return ledger.dropped


def _part(checkpoint: Any, name: str, source: Path) -> Any:
    if not isinstance(checkpoint, Mapping) or name not in checkpoint:
        raise ValueError(f"{source} has no {name}; MCI's checkpoint has encoder_dict, encoder_trans_dict, decoder_dict")
    return checkpoint[name]


def convert_guide(ledger: Ledger, job: ConvertMciJob) -> tuple[GuideConfig, dict[str, Tensor]]:
    """Our configuration and our weights of the official tensors, named ``encoder_dict.``...,
    ``encoder_trans_dict.``... and ``decoder_dict.``...; closes the ledger. ValueError: a tensor is missing, surplus
    or of an unexpected shape."""
    state: dict[str, Tensor] = {}

    def move(ours: str, theirs: str, parts: tuple[str, ...] = _PARTS) -> None:
        for part in parts:
            state[f"{ours}.{part}"] = ledger.take(f"{theirs}.{part}")

    widths, depths, reductions = _move_encoder(ledger, state, move)
    trans = "encoder_trans_dict"
    layers = {
        "map.exchange": ledger.count(trans + ".Transformer_aug_CD.{}.0.att.to_q.weight"),
        "exchange": ledger.count(trans + ".Dynamic_DIF_aware_TR.{}.0.att.to_q.weight"),
    }
    for ours, theirs, suffix in (
        ("map.exchange", "Transformer_aug_CD", "_CD"),
        ("exchange", "Dynamic_DIF_aware_TR", ""),
    ):
        for number in range(layers[ours]):
            for half in range(2):
                _move_block(ledger, move, f"{ours}.layers.{number}.{half}", f"{trans}.{theirs}.{number}.{half}")
        # The official code reads columns from the table named after the height, and rows from the other.
        state[f"{ours}.positions.columns"] = ledger.take(f"{trans}.h_embedding{suffix}.weight")
        state[f"{ours}.positions.rows"] = ledger.take(f"{trans}.w_embedding{suffix}.weight")
    for number in range(layers["exchange"]):
        ledger.drop(
            f"{trans}.Dynamic_DIF_aware_TR.{number}.2.", "linear layer that the official forward pass does not use"
        )
    for level in range(4):
        for ours, theirs in (("difference", "conv_dif"), ("fuse", "conv_fuse")):
            move(f"map.fusions.{level}.{ours}.0", f"{trans}.{theirs}.{level}.0")
            move(f"map.fusions.{level}.{ours}.1", f"{trans}.{theirs}.{level}.1", _NORM)
        move(f"map.fusions.{level}.fuse.3", f"{trans}.conv_fuse.{level}.3")
        move(f"map.finer.{level}.0", f"{trans}.to_fused.{level}.0")
        move(f"map.finer.{level}.1", f"{trans}.to_fused.{level}.1", _NORM)
        move(f"map.finer.{level}.3", f"{trans}.to_fused.{level}.3")
    for number in range(2):
        move(f"map.head.{number}", f"{trans}.to_seg.{number}")
    decoder = _move_decoder(ledger, state, move, job.heads)
    ledger.close()
    positions = len(state["exchange.positions.rows"])
    model = GuideConfig(
        image_size=job.image_size,
        backbone=BackboneConfig(widths=widths, depths=depths, heads=job.backbone_heads, reductions=reductions),
        heads=job.heads,
        map_layers=layers["map.exchange"],
        summary_layers=layers["exchange"],
        positions=positions,
        decoder=decoder,
    )
    with torch.device("meta"):
        expected = GuideNet(model, len(state["decoder.words"])).state_dict()
    refuse_faults(layout_faults(state, expected, "the model"), ledger.source, "the model that its own tensors describe")
    return model, state


def _move_encoder(ledger: Ledger, state: dict[str, Tensor], move: Any) -> tuple[Any, Any, Any]:
    root = "encoder_dict.cnn.segformer"
    widths, depths, reductions = [], [], []
    for level in range(1, 5):
        stage = f"encoder.stages.{level - 1}"
        for ours, theirs in _STAGE.items():
            move(f"{stage}.{ours}", f"{root}.{theirs.format(level=level)}")
        widths.append(ledger.shape(f"{root}.norm{level}.weight")[0])
        depths.append(ledger.count(f"{root}.block{level}" + ".{}.norm1.weight"))
        reduction = f"{root}.block{level}.0.attn.sr.weight"
        reductions.append(ledger.shape(reduction)[2] if ledger.has(reduction) else 1)
        names = {**_SEGFORMER_BLOCK, **(_REDUCTION if reductions[-1] > 1 else {})}
        for number in range(depths[-1]):
            block, official = f"{stage}.blocks.{number}", f"{root}.block{level}.{number}"
            for ours, theirs in names.items():
                move(f"{block}.{ours}", f"{official}.{theirs}")
            for part in _PARTS:
                both = ledger.take(f"{official}.attn.kv.{part}").chunk(2)
                for ours, tensor in zip(("k_proj", "v_proj"), both, strict=True):
                    state[f"{block}.attention.{ours}.{part}"] = tensor.clone()
    return tuple(widths), tuple(depths), tuple(reductions)


def _move_block(ledger: Ledger, move: Any, ours: str, theirs: str) -> None:
    for name, official in _BLOCK.items():
        move(f"{ours}.{name}", f"{theirs}.{official}", _NORM if name in _BATCH_NORMS else _PARTS)
    for prefix, reason in _UNUSED_IN_BLOCK.items():
        ledger.drop(f"{theirs}.{prefix}", reason)


def _move_decoder(ledger: Ledger, state: dict[str, Tensor], move: Any, heads: int) -> GuideDecoderConfig:
    root = "decoder_dict"
    move("memory.join", f"{root}.Conv1")
    for number, parts in ((0, _PARTS), (1, _NORM), (3, _PARTS), (4, _NORM), (6, _PARTS), (7, _NORM)):
        move(f"memory.residual.{number}", f"{root}.LN.left.{number}", parts)
    state["decoder.words"] = _reordered(ledger.take(f"{root}.vocab_embedding.weight"))
    for part in _PARTS:
        state[f"decoder.out.{part}"] = _reordered(ledger.take(f"{root}.wdc.{part}"))
    layers = ledger.count(root + ".transformer.layers.{}.linear1.weight")
    for number in range(layers):
        ours, theirs = f"decoder.layers.{number}", f"{root}.transformer.layers.{number}"
        for name, official in _DECODER_LAYER.items():
            move(f"{ours}.{name}", f"{theirs}.{official}")
        for part in _PARTS:
            state[f"{ours}.self_qkv.{part}"] = ledger.take(f"{theirs}.self_attn.in_proj_{part}")
            joint = ledger.take(f"{theirs}.multihead_attn.in_proj_{part}")
            third = len(joint) // 3
            state[f"{ours}.cross_q.{part}"] = joint[:third].clone()
            state[f"{ours}.cross_kv.{part}"] = joint[third:].clone()
        ledger.drop(f"{theirs}.fc_alpha", "linear layer that the official forward pass does not use")
    length = ledger.shape(f"{root}.position_encoding.pe")[0]
    ledger.drop(f"{root}.position_encoding.pe", "table of sinusoids, computed where it is used")
    ledger.drop(
        f"{root}.position_encoding.embedding_1D.", "learned positions that the official forward pass does not use"
    )
    return GuideDecoderConfig(
        width=state["decoder.words"].shape[1],
        layers=layers,
        heads=heads,
        feedforward=len(state["decoder.layers.0.widen.weight"]),
        max_length=length + 1,
        special_words=True,
    )


def _reordered(rows: Tensor) -> Tensor:
    """Rows per word, with the four marks in our order."""
    return torch.cat([rows[list(_OWN_ORDER)], rows[len(_OWN_ORDER) :]])
