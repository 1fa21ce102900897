"""The pair encoder: CLIP4IDC's layout and forward pass, conversion, start from CLIP, texts, the artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from idc.data.text import Vocabulary
from idc.training.foreign import Ledger
from idc.vision.pair_encoder.config import PairEncoderConfig
from idc.vision.pair_encoder.convert import convert_clip4idc, load_clip
from idc.vision.pair_encoder.model import NEW, PairEncoder, start_comparing
from idc.vision.pair_encoder.text_tokens import BpeTokens, WordTokens
from tests.vision.pair_encoder.clip4idc import (
    SMALL,
    caption_layout,
    official_pairs,
    official_texts,
    random_state,
    retrieval_layout,
)
from tests.vision.scenes import scene
from tests.vision.tiny_models import save_tiny_clip

TINY = PairEncoderConfig(
    image_size=32, patch_size=8, width=32, heads=2, separate_layers=1, joint_layers=1, text_width=32, text_heads=2,
    text_layers=1, text_positions=16, embedding=16,
)  # fmt: skip


def tiny(seed: int = 0) -> PairEncoder:
    torch.manual_seed(seed)
    tokens = WordTokens(Vocabulary(["the", "red", "blue", "square", "became"]), max_words=8)
    return PairEncoder(TINY, len(tokens), tokens).eval()


def images(count: int, size: int = 32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)


# -- the official layout ------------------------------------------------------------------------------------------


def test_the_official_layout_and_size() -> None:
    with torch.device("meta"):
        made = PairEncoder(PairEncoderConfig(), 49408)
    state = made.state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == retrieval_layout()
    assert list(state) == list(retrieval_layout())
    assert len(state) == 307
    assert sum(tensor.numel() for tensor in state.values()) == 151_357_185
    assert len(caption_layout()) == 443


def test_a_checkpoint_in_the_official_layout_gives_the_official_features() -> None:
    state = random_state(retrieval_layout(SMALL))
    encoder = convert_clip4idc(ledger := Ledger(state, "pytorch_model.bin.7"), separate_layers=2)
    assert ledger.dropped == []
    assert (encoder.config.image_size, encoder.config.heads, encoder.config.text_heads) == (32, 2, 1)
    before, after = images(3, seed=1), images(3, seed=2)
    ids = torch.randint(1, 48, (4, 7))
    ids[torch.arange(4), torch.tensor([6, 3, 5, 4])] = 49  # the end token; what comes after it has no influence
    with torch.no_grad():
        pairs, texts, scale = encoder(before, after, ids, ids.argmax(1))
    mean, std = torch.tensor([[0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]])[
        ..., None, None
    ]
    official = official_pairs(state, (before / 255 - mean) / std, (after / 255 - mean) / std, separate=2, layers=3)
    torch.testing.assert_close(pairs, F.normalize(official, dim=-1), atol=2e-5, rtol=0)
    expected = F.normalize(official_texts(state, ids, layers=2), dim=-1)
    torch.testing.assert_close(texts, expected, atol=2e-5, rtol=0)
    assert float(scale) == pytest.approx(float(state["clip.logit_scale"].exp()))
    with pytest.raises(ValueError, match="no tokenizer, as official checkpoints hold none"):
        encoder.encode_texts(["a cube"])


def test_of_the_captioner_the_pair_encoder_is_kept_and_the_rest_is_named() -> None:
    state = random_state(caption_layout(SMALL))
    encoder = convert_clip4idc(ledger := Ledger(state, "pytorch_model.bin.clevr"), separate_layers=2)
    assert {item.name for item in ledger.dropped} == state.keys() - retrieval_layout(SMALL).keys()
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(tensor, state[name].float()), name


@pytest.mark.parametrize(("change", "layers", "reason"), [
    ({"clip.visual.ln_mid.bias": None}, 2, "has no clip.visual.ln_mid.bias"),
    ({"clip.visual.conv2.weight": torch.zeros(1)}, 2, "tensors that this format does not have: clip.visual.conv2.weig"),
    ({"clip.visual.bef_embedding": torch.zeros(5)}, 2, r"bef_embedding is \(5,\), expected \(128,\)"),
    ({}, 9, "3 image blocks; 9 of them cannot be separate"),
])  # fmt: skip
def test_what_is_not_clip4idc_is_refused_by_name(change: dict[str, Any], layers: int, reason: str) -> None:
    state = {**random_state(retrieval_layout(SMALL)), **change}
    with pytest.raises(ValueError, match=rf"^a\.bin.*{reason}"):
        convert_clip4idc(Ledger({k: v for k, v in state.items() if v is not None}, "a.bin"), separate_layers=layers)


# -- use ----------------------------------------------------------------------------------------------------------


def test_vectors_do_not_depend_on_the_batch_and_have_unit_length() -> None:
    encoder = tiny()
    befores, afters = [scene("red", n) for n in range(5)], [scene("blue", n, (48, 40)) for n in range(5)]
    pairs = encoder.encode_pairs(befores, afters)
    np.testing.assert_allclose(pairs, encoder.encode_pairs(befores, afters, batch_size=2), atol=1e-5)
    texts = ["the red square became blue", "the square", "unseen words here that go on and on for long"]
    vectors = encoder.encode_texts(texts)
    np.testing.assert_allclose(vectors, encoder.encode_texts(texts, batch_size=1), atol=1e-5)  # padding counts not
    for made in (pairs, vectors):
        np.testing.assert_allclose(np.linalg.norm(made, axis=1), 1, atol=1e-5)
    assert encoder.encode_texts([]).shape == encoder.encode_pairs([], []).shape == (0, 16)
    with pytest.raises(ValueError, match="got 1 before and 0 after images"):
        encoder.encode_pairs(befores[:1], [])


def test_the_artifact_keeps_everything(tmp_path: Path) -> None:
    encoder = tiny()
    encoder.save(tmp_path / "out", metrics={"text_to_pair_R1": 0.5}, card="Of a test.")
    again = PairEncoder.load(tmp_path / "out")
    befores, afters = [scene("red")], [scene("blue")]
    assert (again.encode_pairs(befores, afters) == encoder.encode_pairs(befores, afters)).all()
    assert (again.encode_texts(["the red square"]) == encoder.encode_texts(["the red square"])).all()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| text_to_pair_R1 | 0.5 |" in card
    assert "jobs/caption.py" not in card


def test_a_comparing_start_takes_from_a_token_what_stands_at_its_place_in_the_other_image() -> None:
    torch.manual_seed(0)
    made = PairEncoder(TINY.model_copy(update={"width": 64}), 10).eval()
    start_comparing(made)
    vision = made.clip.visual
    positions = vision.joint_positional_embedding
    assert torch.equal(positions[:17], positions[17:])
    first = vision.transformer.resblocks[1]
    with torch.no_grad():
        inner = first.ln_1(vision.ln_mid(positions))[None]
        taken = first.attn(inner, causal=False)[0]
    like = torch.cosine_similarity(taken[:, None], inner[0][None], dim=-1)
    assert like.argmin(1).remainder(17).tolist() == list(range(17)) * 2  # its own place, in this or the other image
    assert float(like.diagonal().max()) < -0.5


# -- CLIP ---------------------------------------------------------------------------------------------------------


def test_start_from_clip(tmp_path: Path) -> None:
    model = save_tiny_clip(tmp_path / "clip", TINY)
    tokens = BpeTokens(tmp_path / "clip", max_words=6)
    encoder = PairEncoder(TINY, len(tokens), tokens).eval()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    load_clip(encoder, str(tmp_path / "clip"))
    for name, tensor in encoder.state_dict().items():
        is_new = name.removeprefix("clip.visual.") in NEW
        assert torch.equal(tensor, before[name]) == is_new, name
    pixels = encoder.normalise(images(2))
    with torch.no_grad():
        vision = model.vision_model(pixels, output_hidden_states=True)
        torch.testing.assert_close(encoder.clip.visual.separate(pixels), vision.hidden_states[1], atol=1e-5, rtol=0)
        ids, ends = tokens(["a red cube", "the cube is blue and large"])
        assert ends.tolist() == [4, 5]  # begin, 3 words, end; cut to 6
        text = model.text_model(input_ids=ids).last_hidden_state[torch.arange(2), ends]
        torch.testing.assert_close(encoder.clip.texts(ids, ends), model.text_projection(text), atol=1e-5, rtol=0)
    encoder.save(tmp_path / "out")
    again = PairEncoder.load(tmp_path / "out")
    assert (again.encode_texts(["a red cube"]) == encoder.encode_texts(["a red cube"])).all()


def test_a_clip_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    save_tiny_clip(tmp_path / "clip", TINY)
    save_tiny_clip(tmp_path / "gelu", TINY, hidden_act="gelu")
    size = len(BpeTokens(tmp_path / "clip", max_words=6))
    for folder, changes, message in (
        ("clip", {"joint_layers": 2}, "another shape than `encoder`"),
        ("clip", {"heads": 4}, r"2 and 2 heads; set encoder\.heads"),
        ("gelu", {}, "activation gelu"),
        ("nowhere", {}, r"clip=.* cannot be loaded as CLIPModel"),
    ):
        with pytest.raises(ValueError, match=message):
            load_clip(PairEncoder(TINY.model_copy(update=changes), size), str(tmp_path / folder))
