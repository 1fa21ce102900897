"""MCI's weights, random in the official layout: converted whole, and computing what the official modules do."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from idc.config import load
from idc.systems import load_captioner
from idc.systems.changevg.config import ConvertMciJob
from idc.systems.changevg.convert import CONVERSION, MCI_MARKS, convert_guide, convert_mci
from idc.systems.changevg.guide import GuideNet
from idc.training.foreign import Ledger
from jobs import convert as convert_job
from tests.systems.changevg.official import SMALL, Official, Sizes, State, checkpoint, layout, random_state

WORDS = [*MCI_MARKS, *(f"word{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(SMALL.words - 4))]
SETTINGS = {"image_size": SMALL.image, "heads": SMALL.trans_heads, "backbone_heads": list(SMALL.heads)}
_OURS = {0: 0, 2: 1, 3: 2, 1: 3}


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
    state = {
        name: torch.zeros(shape, dtype=torch.int64 if dtype.endswith("int64") else torch.float32)
        for name, (shape, dtype) in layout(Sizes()).items()
    }
    ledger = Ledger(state, "MCI_model.pth")
    model, _ = convert_guide(ledger, load(ConvertMciJob, None, PATHS))
    sizes = model.model_dump(exclude={"decoder": {"special_words"}})
    assert sizes == type(model)().model_dump(exclude={"decoder": {"special_words"}}), "the defaults are MCI's"
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    unused = [
        item for item in ledger.dropped if item.name.startswith("encoder_trans") and not item.name.endswith(buffers)
    ]
    assert (len(unused), sum(torch.Size(item.shape).numel() for item in unused)) == (198, 11_146_752)
    assert all(item.reason for item in ledger.dropped)


@torch.no_grad()
@pytest.mark.parametrize("shared", [False, True])
def test_the_guide_computes_what_the_official_modules_compute(shared: bool) -> None:
    """The second pair has equal images. If queries and keys share their convolution, the first block of each branch
    sees equal inputs there, and takes the branch for these."""
    state, pairs = random_state(SMALL), images(2)
    pairs[1, 1] = pairs[1, 0]
    for name in [name for name in state if shared and ".0.0.Q_d_conv." in name]:
        state[name.replace("Q_d_conv", "K_d_conv")] = state[name]
    net = converted(state)
    guided = net(pairs)
    for number in range(2):
        official = Official(state, SMALL)
        befores, afters = (official.image(pairs[number, side].float()) for side in range(2))
        pixels = (pairs[number, 0].permute(2, 0, 1).float() - net.mean) / net.deviation
        for level, theirs in enumerate(befores):
            assert close(net._levels(pixels.unsqueeze(0))[level][0], theirs, 2e-5), level
        assert close(guided.classes[number], official.classes(befores, afters), 5e-5)
        memory = official.memory(*official.summary_maps(befores[3], afters[3]))
        assert close(guided.memory[number], memory, 5e-5)
        assert official.branches.count(True) == (2 if shared and number == 1 else 0)
        ids = [2, 7, 1, 0, 5, 11]
        ours = net.decoder(torch.tensor([[_OURS.get(index, index) for index in ids]]), guided.memory[number, None])
        order = [_OURS.get(index, index) for index in range(SMALL.words)]
        assert close(ours[0][:, order], official.words(ids, memory), 5e-5)


@torch.no_grad()
def test_a_converted_file_captions_as_the_official_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = random_state(SMALL, 3)
    torch.save(checkpoint(state), tmp_path / "MCI_model.pth")
    (tmp_path / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(WORDS)}))
    command = [
        "convert.py", "kind=mci", f"weights={tmp_path}/MCI_model.pth", f"vocabulary={tmp_path}/vocab.json",
        f"out={tmp_path}/guide", *(f"{name}={value}" for name, value in SETTINGS.items()),
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", command)
    convert_job.main()
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
    monkeypatch.setattr("sys.argv", [*command[:-1], "backbone_heads=[1,1,1,1]"])
    with pytest.raises(SystemExit, match="exists and is not this conversion"):
        convert_job.main()


@pytest.mark.parametrize(
    ("weights", "words", "fault"),
    [
        ({"encoder_dict": {}}, WORDS, "holds no state dict"),
        (None, WORDS[:-1], "has 29 words, MCI_model.pth 30"),
        (None, ["a"], "is not the authors' word list"),
    ],
)
def test_wrong_files_are_refused_by_name(tmp_path: Path, weights: Any, words: list[str], fault: str) -> None:
    torch.save(weights or checkpoint(random_state(SMALL)), tmp_path / "MCI_model.pth")
    (tmp_path / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    paths = {"weights": tmp_path / "MCI_model.pth", "vocabulary": tmp_path / "vocab.json", "out": tmp_path / "out"}
    with pytest.raises(ValueError, match=fault):
        convert_mci(job(**{name: str(path) for name, path in paths.items()}))
    assert not (tmp_path / "out").exists()
