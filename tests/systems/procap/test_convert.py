"""The authors' checkpoints, random in the official layouts: converted whole, computing what `official.py` does."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from idc.config import load
from idc.data.images import encode_png
from idc.data.text import PROCAP_SPECIALS, Vocabulary
from idc.systems.procap.config import ConvertJob
from idc.systems.procap.convert import CONVERSION, convert, convert_stage_1, convert_stage_2
from idc.systems.procap.model import PretrainHeads, ProcedureEncoder
from idc.training.artifact import read_artifact
from idc.training.foreign import Dropped, Ledger, read_checkpoint
from idc.vision.pair_encoder.model import PairEncoder
from idc.vision.pretrained import network_fingerprint
from idc.vision.tokenizer.convert import convert_vqgan
from jobs import caption as caption_job
from jobs import convert as convert_job
from tests.systems.procap import official
from tests.systems.procap.official import Layout, Sizes, State, random_state
from tests.vision.pair_encoder import clip4idc

CLEVR, SPOT, EDIT = Sizes(), Sizes(blocks=4, words=834, decoder_layers=3), Sizes(words=524)
SMALL = Sizes(
    channels=32, mult=(1, 2), res=1, z=8, codes=32, grid=4, width=24, heads=3, blocks=2, bpe=60, words=20,
    decoder=16, decoder_heads=2, decoder_layers=2, feedforward=32,
)  # fmt: skip
WORDS = [*PROCAP_SPECIALS, *(f"word{chr(97 + number)}" for number in range(SMALL.words - 8))]
SETTINGS = {"heads": SMALL.heads, "decoder_heads": SMALL.decoder_heads, "image_size": SMALL.image}


def images(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(*shape, 3, SMALL.image, SMALL.image, generator=torch.Generator().manual_seed(seed))


def close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether they differ by less than ``tolerance``, or that share of the deviation where it is above 1: 12 blocks of
    random weights end in values around 6, and there either path is 1.9e-5 from what float64 gives."""
    assert a.shape == b.shape
    assert float(b.std()) > 0.05, "what is compared should vary"
    return float((a - b).abs().max()) < tolerance * max(1.0, float(b.std()))


@pytest.mark.parametrize(
    ("layout", "rows", "parameters", "digest"),
    [
        (official.vqgan_layout(CLEVR), 348, 84_365_252, "dd5b9d26da3d848b"),
        (official.stage_1_layout(CLEVR), 529, 209_215_174, "431e923b362635a8"),
        (official.stage_1_layout(SPOT), 425, 152_512_198, "0695b18995bdf1b8"),
        (official.stage_2_layout(CLEVR), 574, 218_641_430, "656090d8762b6357"),
        (official.stage_2_layout(SPOT), 488, 166_525_192, "0d65f1a17bfd901f"),
        (official.stage_2_layout(EDIT), 574, 218_869_202, "d23dd44e4fb467d2"),
    ],
    ids=["vqgan", "stage 1 clevr", "stage 1 spot", "stage 2 clevr", "stage 2 spot", "stage 2 edit"],
)
def test_the_layouts_written_here_are_those_of_the_official_modules(
    layout: Layout, rows: int, parameters: int, digest: str
) -> None:
    """The digests are of tables (key, shape, dtype; sorted) made by running the official architectures."""
    buffers = (
        "attn_mask", "one_hot", "running_mean", "running_var", "num_batches_tracked", "layer.shift", "layer.scale",
    )  # fmt: skip
    counted = sum(torch.Size(shape).numel() for name, (shape, _) in layout.items() if not name.endswith(buffers))
    text = "\n".join("\t".join((name, str(shape), dtype)) for name, (shape, dtype) in sorted(layout.items()))
    assert (len(layout), counted) == (rows, parameters)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


@torch.no_grad()
@pytest.mark.parametrize("at_256", [False, True])
def test_the_vqgan_encodes_and_decodes_as_the_official_one(at_256: bool) -> None:
    state = random_state(official.vqgan_layout(SMALL, at_256=at_256), SMALL)
    ledger = Ledger(state, "vqgan.ckpt")
    tokenizer = convert_vqgan(ledger, SMALL.image)
    ledger.close()
    seen = images(4)
    assert close(tokenizer.features(seen), official.vqgan_features(state, seen, SMALL).flatten(2).mT, 2e-5)
    indices = official.vqgan_indices(state, seen, SMALL)
    assert len(indices.unique()) > 3
    assert torch.equal(tokenizer.encode(seen), indices)
    assert close(tokenizer.decode(indices), official.vqgan_decode(state, indices, SMALL), 2e-5)
    dropped = {item.name: item.reason for item in ledger.dropped}
    assert sum(name.startswith("loss.") for name in dropped) == 55
    assert sum("resolution 256" in reason for reason in dropped.values()) == (30 if at_256 else 0)


def text_ids(batch: int, sizes: Sizes, seed: int = 2) -> Tensor:
    ids = torch.randint(1, sizes.bpe, (batch, sizes.text), generator=torch.Generator().manual_seed(seed))
    for row in range(batch):
        ids[row, 3 + 5 * row :] = 0
    return ids


def compare_stage_1(sizes: Sizes, tolerance: float, seed: int = 0) -> list[Dropped]:
    state = random_state(official.stage_1_layout(sizes), sizes, seed)
    ledger = Ledger(state, "dalle.pt")
    ours = convert_stage_1(ledger, sizes.heads)
    ledger.close()
    encoder, heads = ProcedureEncoder(ours.encoder, ours.shapes), PretrainHeads(sizes.width, sizes.codes)
    encoder.load_state_dict(ours.state)
    heads.load_state_dict(ours.heads)
    random = torch.Generator().manual_seed(3)
    frames = torch.rand(2, sizes.frames, 3, sizes.image, sizes.image, generator=random)
    masked = torch.rand(2, sizes.frames, sizes.grid**2, generator=random) < 0.5
    ids = text_ids(2, sizes)
    features = ours.tokenizer.features(frames.flatten(0, 1)).unflatten(0, (2, sizes.frames))
    align, consistency, hidden = encoder("modeling", features, masked, ids, 0)
    expected = official.stage_1(state, frames, masked, ids, sizes)
    assert close(heads.msm(hidden), expected[0], tolerance)
    scalars = torch.cat([heads.align(align)[:, 0], heads.consistency(consistency)[:, 0]])
    assert close(scalars, torch.cat(expected[1:]), tolerance)
    return ledger.dropped


@torch.no_grad()
@pytest.mark.parametrize("axial", ["target_pos_emb.weights.{}", "target_pos_emb.weights_{}"])
def test_stage_1_computes_the_official_logits(axial: str) -> None:
    sizes = replace(SMALL, axial=axial)
    dropped = compare_stage_1(sizes, 5e-5)
    reasons = {item.name: item.reason for item in dropped}
    assert {name for name in reasons if ".loss." not in name} == {
        *(f"transformer.transformer.resblocks.{number}.attn_mask" for number in range(2)),
        "image_emb.weight", "text_emb.weight[-1]", "special_emb.weight[3:]", "special_pos_emb.weight[3:]",
    }  # fmt: skip
    assert "NOT" not in "".join(reasons.values())


def test_an_attention_mask_that_is_not_the_encoders_is_pointed_out() -> None:
    state = random_state(official.stage_1_layout(SMALL), SMALL)
    state["transformer.transformer.resblocks.1.attn_mask"][0, 5] = float("-inf")
    ledger = Ledger(state, "dalle.pt")
    convert_stage_1(ledger, SMALL.heads)
    (strange,) = [item for item in ledger.dropped if "NOT the one that the encoder computes" in item.reason]
    assert strange.name == "transformer.transformer.resblocks.1.attn_mask"


def compare_stage_2(state: State, sizes: Sizes, batch: int = 3) -> list[Dropped]:
    ledger = Ledger(state, "model.chkpt")
    captioner, tokenizer = convert_stage_2(ledger, sizes.heads, sizes.decoder_heads, 24)
    ledger.close()
    random = torch.Generator().manual_seed(4)
    before, after = torch.rand(2, batch, 3, sizes.image, sizes.image, generator=random)
    ends = torch.stack([tokenizer.features(before), tokenizer.features(after)], dim=1)
    procedure = official.stage_2_procedure(state, before, after, sizes)
    assert close(captioner.procedure(ends), procedure, 2e-5)
    ids = torch.randint(0, sizes.words, (batch, 24), generator=random)
    ids[:, 0] = 4
    assert close(captioner(ends, ids), official.stage_2_logits(state, procedure, ids, sizes), 5e-5)
    special = Vocabulary(WORDS[8:], "procap").special
    expected = official.stage_2_greedy(state, procedure, sizes)[:, 1:]
    for cached in (True, False):
        found = captioner.search(ends, beams=1, length_penalty=1.0, special=special, cached=cached).ids
        for row, right in zip(found.tolist(), expected.tolist(), strict=True):
            end = right.index(5) if 5 in right else len(right)
            assert row[:end] == right[:end]
            assert set(row[end + 1 :]) <= {0}
    return ledger.dropped


@torch.no_grad()
@pytest.mark.parametrize("bpe", [SMALL.bpe, 0], ids=["after stage 1", "alone"])
def test_stage_2_computes_the_official_procedure_logits_and_captions(bpe: int) -> None:
    state = random_state(official.stage_2_layout(replace(SMALL, bpe=bpe)), SMALL)
    dropped = {item.name for item in compare_stage_2(state, SMALL)}
    prefix = "intermediate_generator."
    assert {name for name in dropped if not name.startswith(prefix)} == {"text_decoder.loss_func.one_hot"}
    heads = {name for name in dropped if name.startswith(f"{prefix}to_logits")}
    assert len(heads) == 12


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("sizes", [CLEVR, SPOT], ids=["clevr", "spot"])
def test_both_stages_at_the_true_size(sizes: Sizes) -> None:
    compare_stage_1(sizes, 5e-5)
    compare_stage_2(random_state(official.stage_2_layout(sizes), sizes), sizes, batch=1)


FOREIGN: dict[str, type] = {
    "easydict.EasyDict": dict,
    "ruamel.yaml.scalarfloat.ScalarFloat": float,
    "ruamel.yaml.comments.CommentedSeq": list,
    "src.rtransformer.optimization.WarmupLinearSchedule": object,
    "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint": object,
}


def foreign_class(name: str, installed: pytest.MonkeyPatch) -> Any:
    module, _, short = name.rpartition(".")
    parts = module.split(".")
    for part in (".".join(parts[: depth + 1]) for depth in range(len(parts))):
        installed.setitem(sys.modules, part, sys.modules.get(part, types.ModuleType(part)))
    kind = type(short, (FOREIGN[name],), {"__module__": module})
    setattr(sys.modules[module], short, kind)
    return kind


@pytest.fixture
def official_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The four files as the authors' programs write them, with what else is in them; small and random."""
    random = random_state(official.stage_2_layout(SMALL), SMALL, seed=7)
    # Weights by which what the pictures show decides what is said, and by which something is said.
    random["intermediate_generator.conv_to_embedding.1.weight"] *= 10
    for layer in range(SMALL.decoder_layers):
        random[f"text_decoder.decoder.layers.{layer}.attention.layer.wk.weight"] *= 8
    random["text_decoder.decoder.out.bias"][[0, 5]] -= 3
    stage_1 = official.inner(random, "intermediate_generator.")
    with monkeypatch.context() as installed:  # what made the files is not there when they are read
        easy, number, sequence, schedule, callback = (foreign_class(name, installed) for name in FOREIGN)
        rate = number(0.1)
        rate._width = 3
        config = easy(num_attention_heads=SMALL.decoder_heads, max_t_len=24, hidden_dropout_prob=rate, vocab_size=20)
        config.__dict__.update(config)
        more = {"opt": argparse.Namespace(lr=rate, skip_params=sequence(["to_logits.1.bias"])), "model_cfg": config}
        optimizer = {"state": {0: {"next_m": torch.ones(3)}}, "param_groups": [{"schedule": schedule()}]}
        files = {
            "vqgan": {"state_dict": official.inner(stage_1, "vae.model."), "callbacks": {callback: {"epoch": 35}}},
            "stage1": {"iter": 9, "hparams": {"dim": 24}, "weights": stage_1, "optimizer": {"state": {}}},
            "stage2": {"model": random, "epoch": 3, "optimizer": optimizer, **more},
        }
        for kind, content in files.items():
            torch.save(content, tmp_path / f"{kind}.pt")
    (tmp_path / "words.json").write_text(json.dumps({word: index for index, word in enumerate(WORDS)}))
    return {**{kind: tmp_path / f"{kind}.pt" for kind in files}, "words": tmp_path / "words.json"}


def job(kind: str, files: dict[str, Path], **settings: Any) -> ConvertJob:
    values = {"kind": kind, "weights": str(files[kind]), "out": str(files[kind].parent / f"{kind}-out"), **SETTINGS}
    if kind == "stage2":
        values |= {"vocabulary": str(files["words"])}
    return load(ConvertJob, None, {**values, **settings})


def test_every_file_converts_whole_and_once_and_loads(official_files: dict[str, Path]) -> None:
    folder = official_files["vqgan"].parent
    for kind in ("vqgan", "stage1", "stage2"):
        dropped = convert(done := job(kind, official_files))
        note = json.loads((Path(done.out) / CONVERSION).read_text())
        assert [item["name"] for item in note["dropped"]] == [item.name for item in dropped]
        before = {path: path.stat().st_mtime_ns for path in Path(done.out).rglob("*")}
        assert convert(done) == dropped
        assert before == {path: path.stat().st_mtime_ns for path in Path(done.out).rglob("*")}
    tokenizers = ("vqgan-out", "stage1-out/tokenizer", "stage2-out/tokenizer")
    assert len({network_fingerprint(folder / name) for name in tokenizers}) == 1
    stage_1 = read_artifact(folder / "stage1-out", system="procap")
    assert stage_1.config["job"]["encoder"]["text_vocabulary"] == SMALL.bpe


@torch.no_grad()
def test_the_jobs_convert_and_caption_two_pictures(
    official_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = official_files["stage2"].parent
    monkeypatch.chdir(folder)
    settings = [f"{key}={value}" for key, value in SETTINGS.items()]
    command = ["convert.py", "kind=stage2", "weights=stage2.pt", "vocabulary=words.json", "out=made", *settings]
    monkeypatch.setattr(sys, "argv", command)
    convert_job.main()
    assert "text_decoder.loss_func.one_hot (1, 20)" in capsys.readouterr().out
    state = read_checkpoint("stage2.pt")["model"]
    said = set()
    for seed in range(4):
        colours = np.random.default_rng(seed).integers(0, 256, (2, 1, 1, 3))
        pictures = (colours * np.linspace(0.3, 1, 17)[:, None] * np.ones((13, 1, 1))).astype(np.uint8)
        for name, picture in zip(("before.png", "after.png"), pictures, strict=True):
            Path(name).write_bytes(encode_png(picture))
        monkeypatch.setattr(sys, "argv", ["caption.py", "--artifact", "made", "before.png", "after.png"])
        caption_job.main()
        whole = torch.from_numpy(pictures).movedim(-1, 1).float() / 255
        small = F.interpolate(whole, (SMALL.image, SMALL.image), mode="bilinear", antialias=True)
        procedure = official.stage_2_procedure(state, small[:1], small[1:], SMALL)
        ids = official.stage_2_greedy(state, procedure, SMALL)[0].tolist()
        text = capsys.readouterr().out.partition("  [confidence ")[0]
        assert text == official.official_text(ids, WORDS)
        said.add(text)
    assert len(said) > 1


def test_what_does_not_fit_is_refused_and_named(official_files: dict[str, Path], tmp_path: Path) -> None:
    state, model = (read_checkpoint(official_files[f"stage{n}"])[name] for n, name in ((1, "weights"), (2, "model")))
    less = {name: tensor for name, tensor in state.items() if name != "to_logits.0.bias"}
    more = {**state, "to_logits_text.0.weight": torch.ones(3)}
    wide = {**state, "conv_to_embedding.1.weight": torch.ones(24, 9)}
    short = tmp_path / "short.json"
    short.write_text(json.dumps({word: index for index, word in enumerate(WORDS[:-1])}))
    cases: list[tuple[str, Any, dict[str, Any], str]] = [
        ("stage1", {"weights": more}, {}, "has 1 tensors that this format does not have: to_logits_text.0.weight"),
        ("stage1", {"weights": less}, {}, "has no to_logits.0.bias"),
        ("stage1", {"weights": wide}, {}, "does not fit the model that its own tensors describe"),
        ("stage1", {"weights": state}, {"heads": 7}, "does not divide"),
        ("stage2", {"epoch": 3}, {}, "holds no state dict"),
        ("stage2", model, {"vocabulary": str(short)}, "has 19 words"),
    ]
    for kind, content, settings, message in cases:
        torch.save(content, tmp_path / "wrong.pt")
        wrong = job(kind, {**official_files, kind: tmp_path / "wrong.pt"}, **settings)
        with pytest.raises(ValueError, match=message):
            convert(wrong)
        assert not Path(wrong.out).exists()


def test_the_job_converts_clip4idc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(clip4idc.random_state(clip4idc.caption_layout(clip4idc.SMALL)), tmp_path / "pytorch_model.bin.clevr")
    command = ["kind=clip4idc", f"weights={tmp_path / 'pytorch_model.bin.clevr'}", f"out={tmp_path / 'out'}"]
    monkeypatch.setattr(sys, "argv", ["convert.py", *command, "separate_layers=2", "clip_tokenizer="])
    convert_job.main()
    assert "dropped, part of CLIP4IDC's caption decoder" in capsys.readouterr().out
    assert PairEncoder.load(tmp_path / "out").config.joint_layers == 1
