"""The guide: the paper's equations against a second implementation, the image encoder; as a run: its samples, its
losses, what each goal trains; killed and resumed; captions, maps, metrics."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import SegformerConfig, SegformerModel

from idc.captioning.contract import SearchOptions
from idc.captioning.sources import supervision_of
from idc.config import load
from idc.data.change_masks import class_map
from idc.data.images import decode_image, encode_png
from idc.data.schema import NO_CHANGE
from idc.data.store import iter_rows
from idc.data.text import PAD, Vocabulary
from idc.metrics.coco import score
from idc.systems import load_captioner
from idc.systems.changevg.config import GuideConfig
from idc.systems.changevg.guide import GuideNet
from idc.systems.changevg.guide_captioner import CHANGE_ODDS, GuideCaptioner
from idc.systems.changevg.task import SUM, GuideSamples, GuideTask, collate, row_classes
from idc.training.artifact import read_artifact
from tests.folders import write_rows
from tests.systems.changevg import naive
from tests.systems.changevg.tiny import MODEL, SAME, SIDE, changed_pair, class_maps_of, tiny_job, write_scenes
from tests.systems.procap.world import start
from tests.training.toy import check_resume


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_scenes(tmp_path_factory.mktemp("scenes") / "pairs")


def task_and_batch(pairs: str, settings: dict[str, Any] | None = None) -> tuple[GuideTask, dict[str, Any]]:
    job = tiny_job(pairs, settings)
    vocabulary = Vocabulary.build(text for row in iter_rows(pairs, ["captions"]) for text in row["captions"])
    data = GuideSamples(pairs, "train", job.model, vocabulary, 0)
    torch.manual_seed(0)
    task = GuideTask(job, vocabulary)
    task.eval()
    return task, {**collate([data.get(index, 0) for index in range(3)])}


def naive_losses(task: GuideTask, batch: dict[str, Any]) -> tuple[float, float]:
    with torch.no_grad():
        guided = task.net(batch["images"])
        logits = task.net.decoder(batch["ids"], guided.memory).double()
    pixels, sentences = [], []
    for classes, kinds, words, targets in zip(guided.classes.double(), batch["classes"], logits, batch["targets"],
                                              strict=True):  # fmt: skip
        for row, column in product(range(SIDE), range(SIDE)):
            values, kind = classes[:, row, column], int(kinds[row, column])
            if task.job.model.map == "mci":
                pixels.append(-values.softmax(0)[kind].log())
            else:
                rates = values[1:].sigmoid()
                pixels += [-(rates[n] if kind == n + 1 else 1 - rates[n]).log() for n in range(2)]
        shares = [-said.softmax(0)[word].log() for said, word in zip(words, targets, strict=True) if word != PAD]
        sentences.append(sum(shares) / len(shares))
    return float(np.mean(pixels)), float(np.mean(sentences))


@pytest.mark.parametrize("way", ["mci", "paper"])
def test_the_losses_and_that_each_is_divided_by_its_own_value(pairs: str, way: str) -> None:
    task, batch = task_and_batch(pairs, {"model.map": way})
    expected = naive_losses(task, batch)
    loss, logs = task.training_step(batch)
    assert [float(logs[name]) for name in ("map", "summary")] == pytest.approx(expected, rel=1e-4)
    assert float(loss.detach()) == pytest.approx(2.0)
    plain, _ = task_and_batch(pairs, {"model.map": way, "balance": False})
    assert float(plain.training_step(batch)[0].detach()) == pytest.approx(sum(expected), rel=1e-4)
    # The gradient of L / |L| is that of L, divided by L.
    shared: list[Any] = []
    for goal, value in (("both", 1.0), ("map", expected[0]), ("summary", expected[1])):
        alone, _ = task_and_batch(pairs, {"model.map": way, "goal": goal})
        alone.requires_grad_(True)
        alone.training_step(batch)[0].backward()
        gradient = alone.net.encoder.stages[0].patch_embeddings.proj.weight.grad
        assert gradient is not None
        shared.append(gradient / value)
    assert torch.allclose(shared[0], shared[1] + shared[2], rtol=1e-3, atol=1e-5)


def test_a_loss_of_0_is_no_nan(pairs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, batch = task_and_batch(pairs)
    monkeypatch.setattr(task, "_map_loss", lambda logits, _: 0 * logits.sum())
    loss, logs = task.training_step(batch)
    assert (float(logs["map"]), float(loss.detach())) == (0.0, pytest.approx(1.0))


@pytest.mark.parametrize("goal", ["map", "summary"])
def test_a_goal_trains_its_own_modules_alone(pairs: str, tmp_path: Path, goal: str) -> None:
    start(tiny_job(pairs, {"train.steps": 1}), tmp_path / "both")
    settings = {"train.steps": 2, "goal": goal, "start": str(tmp_path / "both" / "artifact")}
    start(tiny_job(pairs, settings), tmp_path / "more")
    before, after = (read_artifact(tmp_path / name / "artifact").state_dict() for name in ("both", "more"))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    own_parts = {"map": {"map"}, "summary": {"exchange", "memory", "decoder"}}[goal]
    assert {name.partition(".")[0] for name in moved} == own_parts, "statistics of frozen batch norms stay too"
    with pytest.raises(ValueError, match="has another model than this training"):
        start(tiny_job(pairs, {**settings, "model.map_layers": 2}), tmp_path / "other")


def test_a_killed_run_resumes_as_if_undisturbed(pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tiny_job(pairs, {"train.checkpoint_every": 2, "train.eval_every": 3})
    check_resume(GuideTask, partial(start, job), tmp_path, monkeypatch)


@pytest.mark.parametrize("settings", [
    {"model.map": "paper", "model.summary": "paper", "train.precision": "bf16"},
    {"train.engine": "deepspeed", "train.zero_stage": 1, "train.grad_accumulation": 2},
])  # fmt: skip
def test_other_ways_to_train_leave_a_captioner_whose_map_is_of_either_class(
    pairs: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    more = write_scenes(tmp_path / "more", train=4, val=1)
    start(tiny_job(pairs, {"train.steps": 2, "more_pairs": [more], **settings}), tmp_path / "run")
    captioner = load_captioner(str(tmp_path / "run/artifact"))
    assert isinstance(captioner, GuideCaptioner)
    black = np.zeros((40, 50, 3), np.uint8)
    (description,) = captioner.describe([black], [black], SearchOptions(change_map=True))
    with torch.no_grad():
        logits = captioner.net(torch.zeros((1, 2, SIDE, SIDE, 3), dtype=torch.uint8)).classes[0].double()
    changed = logits[1:].sigmoid().amax(0) if "model.map" in settings else logits.softmax(0)[1:].sum(0)
    assert np.allclose(description.change_map, changed.numpy(), atol=1e-4)
    peak = 1 / (1 + math.exp(-description.evidence[CHANGE_ODDS]))
    assert peak == pytest.approx(float(description.change_map.max()), abs=1e-5)
    assert "10 training pairs" in str(read_artifact(tmp_path / "run/artifact").trained_on)


def test_validation_counts_all_pixels_and_all_captions(pairs: str, tmp_path: Path) -> None:
    result = start(tiny_job(pairs, {"train.steps": 3}), tmp_path)
    captioner = load_captioner(str(tmp_path / "artifact"))
    assert isinstance(captioner, GuideCaptioner)
    rows = list(iter_rows(pairs, ["pair_id", "before", "after", "captions", "mask"], "val"))
    images = [[decode_image(row[name]) for row in rows] for name in ("before", "after")]
    truths = np.stack([np.zeros((SIDE, SIDE)) if row["mask"] is None else class_map(row["mask"]) for row in rows])
    maps = class_maps_of(captioner, *images)
    shares = [
        ((maps == kind) & (truths == kind)).sum() / union
        for kind in range(3)
        if (union := ((maps == kind) | (truths == kind)).sum())
    ]
    assert result["metrics"]["mIoU"] == pytest.approx(np.mean(shares), abs=2e-3)
    captions = dict(zip((row["pair_id"] for row in rows), captioner(*images), strict=True))
    bleu = score({row["pair_id"]: row["captions"] for row in rows}, captions, ("BLEU",), allow_empty=True)
    assert result["metrics"]["BLEU-4"] == pytest.approx(bleu.overall["BLEU-4"], abs=1e-9)
    assert result["metrics"][SUM] == pytest.approx(result["metrics"]["mIoU"] + result["metrics"]["BLEU-4"])
    config = read_artifact(tmp_path / "artifact").config
    assert supervision_of("changevg", config) == "captions and masks of roads and buildings"


VOCABULARY = Vocabulary.build([SAME, "there is no difference", "a new road building appears is built"])


def samples(pairs: str, split: str = "train", **settings: Any) -> GuideSamples:
    return GuideSamples(pairs, split, load(GuideConfig, None, MODEL), VOCABULARY, 7, **settings)


def row(kind: str = "road", **cells: Any) -> dict[str, Any]:
    return {**changed_pair(0, "train", kind).to_row(), **cells}


def test_a_batch_has_images_classes_and_shifted_words(pairs: str) -> None:
    data = samples(pairs)
    batch = collate([data.get(index, 0) for index in range(3)])
    assert batch["images"].shape == (3, 2, SIDE, SIDE, 3)
    assert [np.unique(classes).tolist() for classes in batch["classes"]] == [[0, 1], [0, 2], [0]]
    assert (batch["classes"][0][:, 4:9] == 1).all()
    for ids, targets in zip(batch["ids"], batch["targets"], strict=True):
        length = int((targets != PAD).sum())
        assert ids[1:length].tolist() == targets[: length - 1].tolist()
        assert int(targets[length - 1]) == VOCABULARY.special.eos


def test_a_smaller_model_sees_classes_and_no_mixtures_of_them() -> None:
    classes = row_classes(row("building"), (SIDE, SIDE), 8)
    assert classes.shape == (8, 8)
    assert set(np.unique(classes)) == {0, 2}, "resized by averaging there would be roads around a building"


def test_captions_are_drawn_by_epoch_but_for_the_unchanged(pairs: str, tmp_path: Path) -> None:
    data = samples(pairs, no_change_caption=SAME)
    drawn = [{VOCABULARY.decode(data.get(index, epoch)["ids"]) for epoch in range(12)} for index in range(3)]
    assert drawn[0] == {"a road appears", "a new road is built"}
    assert drawn[2] == {SAME}
    assert len({VOCABULARY.decode(samples(pairs).get(2, epoch)["ids"]) for epoch in range(12)}) == 2
    stopped = replace(changed_pair(2, "train", "same"), captions=("there is no difference", f"{SAME} ."))
    written = samples(write_rows(tmp_path / "stopped", [stopped]), no_change_caption=SAME)
    assert {VOCABULARY.decode(written.get(0, epoch)["ids"]) for epoch in range(6)} == {SAME}


def test_pairs_without_captions_are_no_samples(tmp_path: Path) -> None:
    silent, other = replace(changed_pair(0, "train", "road"), captions=()), changed_pair(1, "train", "building")
    data = samples(write_rows(tmp_path / "pairs", [silent, other]))
    assert [data.rows[row]["pair_id"] for row in data.order] == ["train-1"]


@pytest.mark.parametrize(("mask", "message"), [
    (None, "has no mask"),
    (encode_png(np.zeros((8, 9), np.uint8)), ": the mask has 9x8 pixels, its image after 32x32"),
    (encode_png(np.full((SIDE, SIDE), 77, np.uint8)), r": .*1024 pixels .* first RGB \(77, 77, 77\)"),
])  # fmt: skip
def test_a_mask_that_does_not_fit_is_named_with_its_pair(mask: bytes | None, message: str) -> None:
    with pytest.raises(ValueError, match=f"pair 'train-0' ?{message}"):
        row_classes(row(mask=mask), (SIDE, SIDE), SIDE)
    assert not row_classes(row("same", mask=None, change_type=NO_CHANGE), (SIDE, SIDE), SIDE).any()


WORDS = 12


def net_of(**settings: Any) -> GuideNet:
    """A guide of random weights and statistics."""
    torch.manual_seed(0)
    net = GuideNet(load(GuideConfig, None, {**MODEL, **settings}), WORDS)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point():
                tensor.add_(0.1 * torch.randn(tensor.shape))
    return net.eval()


def images(count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(0, 256, (count, 2, SIDE, SIDE, 3), dtype=torch.uint8, generator=generator)


def both(net: GuideNet, pairs: Tensor) -> list[list[Tensor]]:
    """The levels of the images before, and of those after."""
    pixels = (pairs.permute(0, 1, 4, 2, 3).float() - net.mean) / net.deviation
    levels = net._levels(pixels.flatten(0, 1))
    return [[level[side::2] for level in levels] for side in range(2)]


@torch.no_grad()
def test_the_papers_equations() -> None:
    net, pairs = net_of(map="paper", summary="paper"), images()
    guided, state = net(pairs), net.state_dict()
    befores, afters = both(net, pairs)
    for pair in range(2):
        levels = [
            naive.fused(state, f"map.fusions.{level}", befores[level][pair], afters[level][pair]) for level in range(4)
        ]
        refined = levels[3].unsqueeze(0)
        for layer in net.map.refine:  # type: ignore[union-attr]
            refined = layer(refined, refined)
        kinds = naive.mask_logits(state, levels, refined[0])
        assert kinds.shape == (2, SIDE, SIDE)
        assert torch.allclose(guided.classes[pair, 1:], kinds, atol=1e-4)
        assert not guided.classes[pair, 0].any()
        chosen = guided.classes[pair].argmax(dim=0)
        assert torch.equal(chosen == 0, (kinds.sigmoid() <= 0.5).all(dim=0)), "background where no sigmoid is above 1/2"
        last = [maps[3][pair : pair + 1] for maps in (befores, afters)]
        first, second = (part[0] for part in net.exchange(*last))
        assert torch.allclose(guided.memory[pair], naive.transformed(state, first, second), atol=1e-4)


@torch.no_grad()
def test_a_refining_block_is_self_attention() -> None:
    """With an input alone there is no difference to attend to: keys and values are of the map itself."""
    block = net_of(map="paper").map.refine[0]  # type: ignore[union-attr,index]
    x = torch.randn(1, 24, 2, 2)
    queries, keys = (part(x).flatten(2)[0].T for part in (block.query_shapes, block.key_shapes))
    query, key, value = block.query(queries), block.key(keys), block.value(keys)
    width = 24 // block.heads
    attended = torch.cat(
        [
            (query[:, part] @ key[:, part].T / width**0.5).softmax(1) @ value[:, part]
            for part in (slice(head * width, (head + 1) * width) for head in range(block.heads))
        ],
        dim=1,
    )
    normed = block.norm_attention(block.out(attended) + queries)
    expected = block.norm_feedforward(block.narrow(block.widen(normed).relu()) + normed)
    assert torch.allclose(block(x, x)[0].flatten(1).T, expected, atol=1e-5)


def test_the_encoder_starts_from_a_folder_of_weights(tmp_path: Path) -> None:
    sizes = MODEL["backbone"]
    config = SegformerConfig(
        hidden_sizes=sizes["widths"], depths=sizes["depths"], num_attention_heads=sizes["heads"],
        sr_ratios=sizes["reductions"], strides=[2, 2, 2, 2],
    )  # fmt: skip
    theirs = SegformerModel(config)
    theirs.save_pretrained(tmp_path / "mit")
    backbone = {**sizes, "weights": str(tmp_path / "mit"), "drop_path": 0.3}
    model = load(GuideConfig, None, {**MODEL, "backbone": backbone})
    net = GuideNet(model, WORDS, pretrained=True)
    state = net.encoder.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in theirs.state_dict().items())
    eps = [stage.layer_norm.eps for stage in net.encoder.stages]
    assert eps == [block.layernorm_before.eps for stage in net.encoder.stages for block in stage.blocks] == [1e-6] * 4
    assert net.encoder.stages[0].patch_embeddings.layer_norm.eps == 1e-5
    rates = [block.drop_path.drop_prob for stage in net.encoder.stages[1:] for block in stage.blocks]
    assert rates == pytest.approx([0.1, 0.2, 0.3])
    other = load(GuideConfig, None, {**MODEL, "backbone": {**backbone, "depths": [2, 1, 1, 1]}})
    with pytest.raises(ValueError, match=r"backbone.weights=.*depths are \(1, 1, 1, 1\); give its sizes"):
        GuideNet(other, WORDS, pretrained=True)


def test_keys_and_values_update_the_running_statistics_twice() -> None:
    """As the official code does, which calls one module for each on the same map."""
    net = net_of()
    block = net.exchange.layers[0][0]  # type: ignore[index]
    convolutions = block.key_shapes
    x = torch.randn(3, 24, 4, 4)
    shapes = torch.cat([part(x) for part in (convolutions.square, convolutions.row, convolutions.column)], dim=1)
    expected = convolutions.norm.running_mean.clone()
    for _ in range(2):
        expected = 0.9 * expected + 0.1 * shapes.mean(dim=(0, 2, 3))
    convolutions.train()
    convolutions(x)
    assert torch.allclose(convolutions.norm.running_mean, expected.detach(), atol=1e-6)
