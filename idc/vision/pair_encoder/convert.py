"""CLIP4IDC's checkpoints (``pytorch_model.bin.*``) as our pair encoder: every tensor is used, or named as dropped.

Both official files hold the whole CLIP part, ``clip.*``; the captioner's holds its caption decoder too, ``decoder.*``.
We take the pair encoder out of either. The captioner's was trained on for captioning, not for likeness: its texts'
token embeddings are the decoder's, so take a retrieval checkpoint for retrieval and for frame sampling.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from idc.training.foreign import find_state, layout_faults, read_checkpoint, refuse_faults
from idc.vision.pair_encoder.config import PairEncoderConfig
from idc.vision.pair_encoder.model import BpeTokens, PairEncoder

HEAD_WIDTH = 64
"""Of every CLIP: heads are not in its state dict, and are width / 64."""
_TIED = {
    "decoder.embeddings.word_embeddings.weight": "clip.token_embedding.weight",
    "decoder.classifier.cls.predictions.decoder.weight": "clip.token_embedding.weight",
    "decoder.embeddings.position_embeddings.weight": "clip.positional_embedding",
}
_CAPTIONER = "part of CLIP4IDC's caption decoder, which this project does not have"


def convert_clip4idc(
    path: Path | str,
    out: Path | str,
    *,
    tokenizer: str | None = None,
    separate_layers: int = 9,
    max_words: int = 32,
) -> list[tuple[str, tuple[int, ...], str]]:
    """Write a CLIP4IDC checkpoint as a pair encoder's artifact.

    Args:
        path: the official file, of retrieval or of captioning; or the same tensors as
            safetensors.
        out: the artifact's folder.
        tokenizer: a local folder or hub id with CLIP's tokenizer, put into the artifact; without it the encoder takes
            pairs and ids, not texts.
        separate_layers: blocks that see one image (official intra_num_hidden_layers; not in the file).
        max_words: tokens of a text at most (official).

    Returns:
        (name, shape, reason) of every tensor that is not in the artifact.

    Raises:
        ValueError: the file cannot be read, or a tensor is missing, unknown or misshapen; all of them are named.
    """
    state = find_state(read_checkpoint(path), None, path)
    dropped = [(k, tuple(tensor.shape), _reason(k, state)) for k, tensor in state.items() if k.startswith("decoder.")]
    own = {name: tensor.float() for name, tensor in state.items() if not name.startswith("decoder.")}
    config = shape_of(own, separate_layers, path)
    tokens = None if tokenizer is None else BpeTokens(tokenizer, max_words)
    if "clip.token_embedding.weight" not in own:
        raise ValueError(f"{path} is not a checkpoint of CLIP4IDC: it has no clip.token_embedding.weight")
    size = len(own["clip.token_embedding.weight"])
    if tokens is not None and len(tokens) != size:
        raise ValueError(f"{path} has embeddings of {size} tokens, and the tokenizer {tokenizer!r} has {len(tokens)}")
    with torch.device("meta"):
        expected = PairEncoder(config, size).state_dict()
    refuse_faults(layout_faults(own, expected, "CLIP4IDC"), path, "CLIP4IDC")
    encoder = PairEncoder(config, size, tokens)
    encoder.load_state_dict(own)
    encoder.save(out, card=f"Converted from CLIP4IDC's {Path(path).name}.", source=Path(path).name)
    return dropped


def shape_of(state: dict[str, Tensor], separate_layers: int, path: Path | str = "") -> PairEncoderConfig:
    """The shape that a state dict's tensors tell.

    Raises:
        ValueError: one that tells it is missing.
    """
    try:
        width, _, patch, _ = state["clip.visual.conv1.weight"].shape
        tokens = len(state["clip.visual.positional_embedding"])
        positions, text_width = state["clip.positional_embedding"].shape
        embedding = state["clip.text_projection"].shape[1]
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a checkpoint of CLIP4IDC: {error} is missing or misshapen") from error
    layers, text_layers = (_layers(state, tower) for tower in ("clip.visual.transformer", "clip.transformer"))
    if not 0 < separate_layers < layers:
        raise ValueError(
            f"{path} has {layers} image blocks; {separate_layers} of them cannot be separate and some joint"
        )
    return PairEncoderConfig(
        image_size=round((tokens - 1) ** 0.5) * patch,
        patch_size=patch,
        width=width,
        heads=width // HEAD_WIDTH,
        separate_layers=separate_layers,
        joint_layers=layers - separate_layers,
        text_width=text_width,
        text_heads=text_width // HEAD_WIDTH,
        text_layers=text_layers,
        text_positions=positions,
        embedding=embedding,
    )


def _layers(state: dict[str, Tensor], tower: str) -> int:
    pattern = re.compile(re.escape(tower) + r"\.resblocks\.(\d+)\.")
    return 1 + max((int(match[1]) for name in state if (match := pattern.match(name))), default=-1)


def _reason(name: str, state: dict[str, Tensor]) -> str:
    twin = _TIED.get(name)
    if twin is not None and twin in state and torch.equal(state[name], state[twin].to(state[name].dtype)):
        return f"the same numbers as {twin}, which is used"
    return _CAPTIONER
