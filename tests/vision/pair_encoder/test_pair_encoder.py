"""The pair encoder: CLIP4IDC's layout and forward pass, conversion, start from CLIP, texts, the artifact."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor

from idc.config import ConfigError, load
from idc.data.images import encode_png
from idc.data.store import MappedRows
from idc.data.text import Vocabulary
from idc.training.context import LocalContext
from idc.training.foreign import Ledger
from idc.vision.pair_encoder.config import PairEncoderConfig, TrainPairEncoderJob
from idc.vision.pair_encoder.convert import convert_clip4idc, load_clip
from idc.vision.pair_encoder.model import NEW, BpeTokens, PairEncoder, WordTokens, start_comparing
from idc.vision.pair_encoder.task import CollatePairs, PairCaptions, pair_contrastive_loss, train
from tests.vision.pair_encoder.clip4idc import (
    SMALL,
    caption_layout,
    official_pairs,
    official_texts,
    random_state,
    retrieval_layout,
)
from tests.vision.scenes import COLOURS, pair_row, scene, write_pairs
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


PLACES = {"left": 0, "middle": 10, "right": 20}


def change_row(index: int, split: str) -> dict[str, Any]:
    """A square of one of 4 colours at one of 3 places becomes another of 3 colours: 36 changes, each with its words."""
    names, places = list(COLOURS), list(PLACES)
    first, second = names[index % 4], names[(index + 1 + (index // 4) % 3) % 4]
    side = places[(index // 12) % 3]
    left = PLACES[side]
    text = f"the {first} square on the {side} became {second}"
    return pair_row(
        index, split, before=encode_png(scene(first, left)), after=encode_png(scene(second, left)),
        captions=[text, f"{first} to {second} on the {side}"], change_type="color",
    )  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """72 training and 36 validation pairs of all 36 changes, and some pairs without a change."""
    rows = [change_row(n, "train" if n < 72 else "val") for n in range(108)]
    rows += [pair_row(109 + 2 * n, ("train", "val")[n % 2]) for n in range(6)]
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs", rows, rows_per_part=32)


def settings(pairs: str, **overrides: Any) -> dict[str, Any]:
    return {
        "pairs": pairs,
        **{f"encoder.{name}": value for name, value in TINY.model_dump().items()},
        "max_words": 12,
        "optim.lr": 3e-3,
        "optim.weight_decay": 0.01,
        "train.epochs": None,
        "train.steps": 60,
        "train.batch_size": 24,
        "train.log_every": 20,
        "train.prefetch": 0,
        "train.tracking.enabled": False,
        **overrides,
    }


def run_job(name: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's own main, in this process and without Ray."""
    words = [f"{key}={json.dumps(value) if not isinstance(value, str) else value}" for key, value in arguments.items()]
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--local", *words])
    importlib.import_module(f"jobs.{name}").main()


def test_the_job_learns_to_tell_changes_apart(
    pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_job("train_pair_encoder", settings(pairs, runs=str(tmp_path / "runs"), name="pairs"), monkeypatch)
    assert "text_to_pair_R1" in capsys.readouterr().out
    artifact = tmp_path / "runs" / "pairs" / "artifact"
    metrics = json.loads((artifact / "metrics.json").read_text())
    assert metrics["chance_R1"] == pytest.approx(1 / 36)  # the pairs without a change are left out
    assert metrics["chance_R10"] == pytest.approx(10 / 36)
    for way in ("text_to_pair", "pair_to_text"):
        assert metrics[f"{way}_R1"] > 4 * metrics["chance_R1"], metrics
        assert metrics[f"{way}_R1"] <= metrics[f"{way}_R5"] <= metrics[f"{way}_R10"]

    encoder = PairEncoder.load(artifact)
    befores = [scene("red", 10), scene("red", 10)]
    vectors = encoder.encode_pairs(befores, [scene("blue", 10), scene("green", 10)])
    texts = encoder.encode_texts([f"the red square on the middle became {colour}" for colour in ("blue", "green")])
    assert np.trace(vectors @ texts.T) > np.trace(vectors @ texts[::-1].T)


def _weights(entry: Any, payload: dict[str, Any], folder: Path) -> dict[str, Tensor]:
    torch.manual_seed(0)
    entry(payload, LocalContext(folder))
    return PairEncoder.load(folder / "artifact").state_dict()


def test_clip_and_new_weights_have_their_own_rates(pairs: str, tmp_path: Path) -> None:
    save_tiny_clip(tmp_path / "clip", TINY)
    overrides = {"clip": str(tmp_path / "clip"), "train.steps": 2, "optim.lr": 0.1, "clip_lr_share": 0.0}
    job = load(TrainPairEncoderJob, None, settings(pairs, **overrides))
    state = _weights(train, job.model_dump(mode="json"), tmp_path / "run")
    torch.manual_seed(0)
    fresh = PairEncoder(TINY, state["clip.token_embedding.weight"].shape[0])
    load_clip(fresh, str(tmp_path / "clip"))
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, state[name]) != (name.removeprefix("clip.visual.") in NEW), name
    assert len(PairEncoder.load(tmp_path / "run" / "artifact").encode_texts(["a red cube"])) == 1


# -- the loss -----------------------------------------------------------------------------------------------------


def vectors(count: int, seed: int) -> Tensor:
    return F.normalize(torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.mark.parametrize("same", [False, True], ids=["different captions", "one caption of two pairs"])
def test_the_loss_is_the_symmetric_cross_entropy_and_a_caption_is_shared(same: bool) -> None:
    pairs, texts, share = vectors(5, 1), vectors(5, 2), torch.eye(5)
    if same:
        texts[3] = texts[1]
        share[1, 3] = share[3, 1] = share[1, 1] = share[3, 3] = 0.5
    logits = 7 * pairs @ texts.T
    expected = (F.cross_entropy(logits, share) + F.cross_entropy(logits.T, share)) / 2
    loss, right = pair_contrastive_loss(pairs, texts, torch.tensor(7.0))
    torch.testing.assert_close(loss, expected)
    assert same or float(right) == float((logits.argmax(0) == torch.arange(5)).float().mean())


def _worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.save(_step(rank, 2), f"{folder}/rank{rank}.pt")
    dist.destroy_process_group()


def _step(rank: int, world: int) -> dict[str, Tensor]:
    """Loss and gradients of this rank's slice of 8 rows under a linear model."""
    weight = torch.full((6, 6), 0.1).add(torch.eye(6)).requires_grad_()
    scale = torch.tensor(5.0, requires_grad=True)
    rows = slice(rank * 8 // world, (rank + 1) * 8 // world)
    pairs, texts = F.normalize(vectors(8, 1)[rows] @ weight, dim=1), F.normalize(vectors(8, 2)[rows] @ weight, dim=1)
    loss, _ = pair_contrastive_loss(pairs, texts, scale)
    loss.backward()
    assert weight.grad is not None
    assert scale.grad is not None
    return {"loss": loss.detach(), "weight": weight.grad, "scale": scale.grad}


@pytest.mark.slow
def test_two_workers_are_one(tmp_path: Path) -> None:
    mp.spawn(_worker, args=(str(tmp_path),), nprocs=2)
    parts = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    for name, expected in _step(0, 1).items():
        torch.testing.assert_close((parts[0][name] + parts[1][name]) / 2, expected, atol=1e-6, rtol=1e-5)


# -- data and settings --------------------------------------------------------------------------------------------


def test_samples(pairs: str) -> None:
    rows = MappedRows(pairs, split="train")
    everything = PairCaptions(rows, 16, changed_only=False, draw=False)
    changed = PairCaptions(rows, 16, changed_only=True, draw=True, seed=3)
    assert (len(everything), len(changed)) == (75, 72)
    assert len(PairCaptions(rows, 16, changed_only=True, draw=True, limit=10)) == 10
    assert everything.get(0, 0)[1].shape == (16, 16, 3)
    assert everything.get(0, 0)[3] == rows[0]["captions"]
    drawn = {tuple(changed.get(0, epoch)[3]) for epoch in range(20)}
    assert drawn == {(text,) for text in rows[0]["captions"]}
    assert changed.get(5, 7)[3] == changed.get(5, 7)[3]
    tokens = WordTokens(Vocabulary(["red"]), 32)
    batch = CollatePairs(tokens)([everything.get(0, 0), everything.get(36, 0)])
    assert batch["before"].shape == (2, 3, 16, 16)
    assert batch["owners"].tolist() == [0, 0, 1, 1]
    assert batch["numbers"].tolist() == [0, 36]
    assert (batch["ids"][0] == batch["ids"][2]).all()  # the same change, the same words


@pytest.mark.parametrize(("overrides", "fault"), [
    ({"encoder.image_size": 65}, "image_size: 65 is not divisible by patch_size = 32; take 64"),
    ({"encoder.heads": 7}, "encoder.width: 768 is not divisible by heads = 7"),
    ({"max_words": 80}, "max_words: 80 is more than encoder.text_positions = 77"),
    ({"train.grad_accumulation": 2}, "train.grad_accumulation: 2, but the loss compares all pairs of a step"),
    ({"clip": "c", "init": "comparing"}, "init: 'comparing' would be overwritten by the weights of clip = 'c'"),
])  # fmt: skip
def test_settings_that_do_not_fit_are_refused(overrides: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        load(TrainPairEncoderJob, None, {"pairs": "p", **overrides})


def test_pairs_without_a_change_alone_are_refused(tmp_path: Path) -> None:
    folder = write_pairs(tmp_path / "pairs", [pair_row(1, "train"), pair_row(3, "train")])
    job = load(TrainPairEncoderJob, None, settings(folder))
    with pytest.raises(ValueError, match=r"no pair of the split 'train' .*changed_only=true leaves others out"):
        train(job.model_dump(mode="json"), LocalContext(tmp_path / "run"))
