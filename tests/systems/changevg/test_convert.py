"""MCI's weights, random ones in the official layout: converted whole, and computing what the official modules compute
(`official.py` says that in its own way)."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from idc.config import load
from idc.systems import load_captioner
from idc.systems.changevg.config import ConvertMciJob
from idc.systems.changevg.convert import CONVERSION, MCI_MARKS, convert_guide, convert_mci, mci_vocabulary
from idc.systems.changevg.guide import GuideNet
from idc.training.foreign import Ledger
from jobs import convert as convert_job
from tests.systems.changevg.official import SMALL, Official, Sizes, State, checkpoint, layout, random_state

WORDS = [*MCI_MARKS, *(f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(SMALL.words - 4))]
SETTINGS = {"image_size": SMALL.image, "heads": SMALL.trans_heads, "backbone_heads": list(SMALL.heads)}
_OURS = {0: 0, 2: 1, 3: 2, 1: 3}
"""Official id of a mark -> ours."""


PATHS = {"kind": "mci", "weights": "w", "vocabulary": "v", "out": "o"}


def job(**paths: str) -> ConvertMciJob:
    return load(ConvertMciJob, None, {**PATHS, **SETTINGS, **paths})


def converted(state: State) -> GuideNet:
    model, ours = convert_guide(Ledger(state, "MCI_model.pth"), job())
    net = GuideNet(model, SMALL.words)
    net.load_state_dict(ours)
    return net.eval()


def images(count: int, seed: int = 1) -> Tensor:
    """Pairs, uint8 (B, 2, H, W, 3)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (count, 2, SMALL.image, SMALL.image, 3)
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)


def close(ours: Tensor, theirs: Tensor, tolerance: float) -> bool:
    assert ours.shape == theirs.shape
    assert float(theirs.std()) > 0.05, "what is compared should vary"
    return float((ours - theirs).abs().max()) < tolerance * max(1.0, float(theirs.std()))


def test_the_layout_written_here_is_that_of_the_official_modules() -> None:
    """The digest is of a table (key, shape, dtype; sorted) made by running the official architectures."""
    official = layout(Sizes())
    text = "\n".join("\t".join((name, str(shape), dtype)) for name, (shape, dtype) in sorted(official.items()))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "0a368067b7fceb9c"
    buffers = ("running_mean", "running_var", "num_batches_tracked", ".pe")
    for part, rows, parameters in (
        ("encoder_dict", 176, 13_151_424), ("encoder_trans_dict", 966, 109_686_659), ("decoder_dict", 52, 7_664_596),
    ):  # fmt: skip
        names = [name for name in official if name.startswith(f"{part}.")]
        sizes = [torch.Size(official[name][0]).numel() for name in names if not name.endswith(buffers)]
        assert (len(names), sum(sizes)) == (rows, parameters)


def test_every_tensor_of_the_official_size_is_used_or_dropped_with_a_reason() -> None:
    official = layout(Sizes())
    state = {
        name: torch.zeros(shape, dtype=torch.int64 if dtype.endswith("int64") else torch.float32)
        for name, (shape, dtype) in official.items()
    }
    ledger = Ledger(state, "MCI_model.pth")
    model, ours = convert_guide(ledger, load(ConvertMciJob, None, PATHS))
    assert model.model_dump(exclude={"decoder": {"special_words"}}) == {
        **type(model)().model_dump(exclude={"decoder": {"special_words"}}),
    }, "the defaults are MCI's"
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    unused = [
        item for item in ledger.dropped if item.name.startswith("encoder_trans") and not item.name.endswith(buffers)
    ]
    assert (len(unused), sum(torch.Size(item.shape).numel() for item in unused)) == (198, 11_146_752)
    others = {item.name.rpartition(".")[0] for item in ledger.dropped if item.name.startswith("decoder_dict")}
    assert others == {
        "decoder_dict.position_encoding", "decoder_dict.position_encoding.embedding_1D",
        *(f"decoder_dict.transformer.layers.0.fc_alpha{n}" for n in (1, 2, 3)),
    }  # fmt: skip
    assert all(item.reason for item in ledger.dropped)
    assert len(ours) + len(ledger.dropped) > len(official)  # keys and values are two matrices


@pytest.mark.parametrize("name", ["encoder_trans_dict.to_seg.1.bias", "decoder_dict.wdc.weight"])
def test_a_missing_or_surplus_tensor_is_named(name: str) -> None:
    state = random_state(SMALL)
    lacking = {key: tensor for key, tensor in state.items() if key != name}
    with pytest.raises(ValueError, match=f"MCI_model.pth has no {name}"):
        converted(lacking)
    with pytest.raises(ValueError, match="1 tensors that this format does not have: encoder_trans_dict"):
        converted({**state, "encoder_trans_dict.more": torch.zeros(2)})
    with pytest.raises(ValueError, match="does not fit the model"):
        converted({**state, "encoder_trans_dict.to_seg.1.bias": torch.zeros(4)})


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1])
def test_the_guide_computes_what_the_official_modules_compute(seed: int) -> None:
    state, pairs = random_state(SMALL, seed), images(2, seed + 5)
    pairs[1, 1] = pairs[1, 0]  # the second one: no change at all
    net = converted(state)
    guided = net(pairs)
    for number in range(2):
        official = Official(state, SMALL)
        befores, afters = (official.image(pairs[number, side].float()) for side in range(2))
        for level, theirs in enumerate(befores):
            pixels = (pairs[number, 0].permute(2, 0, 1).float() - net.mean) / net.deviation
            assert close(net._levels(pixels.unsqueeze(0))[level][0], theirs, 2e-5), level
        assert close(guided.classes[number], official.classes(befores, afters), 5e-5)
        memory = official.memory(*official.summary_maps(befores[3], afters[3]))
        assert close(guided.memory[number], memory, 5e-5)
        assert not any(official.branches), "the convolutions of queries and keys differ, also for identical images"
        ids = [2, 7, 1, 0, 5, 11]
        ours = net.decoder(
            torch.tensor([[_OURS.get(index, index) for index in ids]]), guided.memory[number : number + 1]
        )
        theirs = official.words(ids, memory)
        order = [_OURS.get(index, index) for index in range(SMALL.words)]
        assert close(ours[0][:, order], theirs, 5e-5)


@torch.no_grad()
def test_the_branch_for_identical_inputs_is_taken_where_queries_and_keys_are_equal() -> None:
    """With one convolution for queries and keys, the first block of each branch sees equal inputs for equal images."""
    state = random_state(SMALL)
    for name in list(state):
        if ".0.0.Q_d_conv." in name:
            state[name.replace("Q_d_conv", "K_d_conv")] = state[name]
    pairs = images(3)
    pairs[1, 1] = pairs[1, 0]
    net = converted(state)
    guided = net(pairs)
    for number, identical in enumerate((False, True, False)):
        official = Official(state, SMALL)
        befores, afters = (official.image(pairs[number, side].float()) for side in range(2))
        assert close(guided.classes[number], official.classes(befores, afters), 5e-5)
        memory = official.memory(*official.summary_maps(befores[3], afters[3]))
        assert close(guided.memory[number], memory, 5e-5)
        assert official.branches.count(True) == (2 if identical else 0)
    alone = net(pairs[1:2])
    assert torch.allclose(alone.classes, guided.classes[1:2], atol=1e-4), "the other pairs of a batch do not matter"


@torch.no_grad()
def test_a_converted_file_captions_as_the_official_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = random_state(SMALL, 3)
    torch.save(checkpoint(state), tmp_path / "MCI_model.pth")
    (tmp_path / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(WORDS)}))
    command = [
        "convert.py", "kind=mci", f"weights={tmp_path}/MCI_model.pth", f"vocabulary={tmp_path}/vocab.json",
        f"out={tmp_path}/guide", f"image_size={SMALL.image}", f"heads={SMALL.trans_heads}",
        f"backbone_heads={list(SMALL.heads)}",
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", command)
    convert_job.main()
    convert_job.main()  # nothing to do
    note = json.loads((tmp_path / "guide" / CONVERSION).read_text())
    assert {item["name"] for item in note["dropped"]} > {"decoder_dict.position_encoding.pe"}
    captioner = load_captioner(str(tmp_path / "guide"))
    pairs = images(3, seed=9).numpy()
    for number, caption in enumerate(captioner(list(pairs[:, 0]), list(pairs[:, 1]))):
        official = Official(state, SMALL)
        befores, afters = (official.image(torch.from_numpy(pairs[number, side]).float()) for side in range(2))
        ids = official.greedy(official.memory(*official.summary_maps(befores[3], afters[3])))
        words = [WORDS[index] for index in ids if index not in (0, 2, 3)]
        assert caption.split() == [{"<UNK>": "<unk>"}.get(word, word) for word in words]
    other = [*command[:5], "heads=2", *command[6:]]
    monkeypatch.setattr("sys.argv", other)
    with pytest.raises(SystemExit, match="exists and is not this conversion"):
        convert_job.main()


def test_wrong_files_are_refused_by_name(tmp_path: Path) -> None:
    state = random_state(SMALL)
    torch.save(checkpoint(state), tmp_path / "MCI_model.pth")
    torch.save({"encoder_dict": {}}, tmp_path / "other.pth")
    good = {word: index for index, word in enumerate(WORDS)}
    lists = {"good": good, "short": dict(list(good.items())[:-1]), "marks": {"a": 0}, "list": [1]}
    for name, content in lists.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    weights, out = str(tmp_path / "MCI_model.pth"), str(tmp_path / "out")
    with pytest.raises(ValueError, match="holds no state dict"):
        convert_mci(job(weights=str(tmp_path / "other.pth"), vocabulary=str(tmp_path / "good.json"), out=out))
    with pytest.raises(ValueError, match=r"has 29 words, MCI_model.pth 30"):
        convert_mci(job(weights=weights, vocabulary=str(tmp_path / "short.json"), out=out))
    for name in ("marks", "list"):
        with pytest.raises(ValueError, match="is not MCI's word list"):
            mci_vocabulary(str(tmp_path / f"{name}.json"))
    assert not (tmp_path / "out").exists()


def test_the_word_list_keeps_its_order(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(WORDS)}))
    vocabulary = mci_vocabulary(str(tmp_path / "vocab.json"))
    assert vocabulary.words == WORDS[4:]
    assert vocabulary.encode(f"{WORDS[4]} nowhere") == [1, 4, 3, 2]
    assert np.array_equal(sorted(_OURS.values()), range(4))
