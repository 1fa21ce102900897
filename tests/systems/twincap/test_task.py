"""TwinCap as a run: it learns, its average of the weights, its masked losses, with parts off; and as a captioner."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from idc.captioning.calibration_job import CalibrateJob, calibrate
from idc.captioning.contract import SearchOptions
from idc.captioning.pair import PairJob, caption_pair
from idc.captioning.sources import is_captioner
from idc.config import load
from idc.data.images import encode_png
from idc.data.schema import CHANGE_TYPES
from idc.data.store import iter_rows
from idc.data.text import Vocabulary
from idc.evaluation.config import EvaluateJob
from idc.evaluation.job import _selection
from idc.rendered.captions import ATTRIBUTES
from idc.systems import load_captioner
from idc.systems.twincap.captioner import CHANGE_HEAT, CHANGE_ODDS, TwinCaptioner
from idc.systems.twincap.config import TwinCapJob
from idc.systems.twincap.data import PairSamples, collate
from idc.systems.twincap.task import CHANGED_OBJECT, OBJECTS, PEAK_REACH, TwinCapTask
from idc.systems.twincap.truth import PARTS, UNKNOWN
from idc.training.artifact import read_artifact
from tests.folders import read_log
from tests.systems.procap.world import Images, World, start
from tests.systems.twincap.tiny import tiny_job
from tests.vision.scenes import write_pairs

WITH_MAP = SearchOptions(change_map=True)


def task_and_batch(world: World, settings: dict[str, Any] | None = None) -> tuple[TwinCapTask, dict[str, Any]]:
    job = tiny_job(world.pairs, settings)
    vocabulary = Vocabulary.build(text for row in iter_rows(world.pairs, ["captions"]) for text in row["captions"])
    data = PairSamples(world.pairs, "train", job.model, vocabulary, 0, job.data)
    torch.manual_seed(0)
    batch = {**collate([data.get(index, 0) for index in range(6)])}
    return TwinCapTask(job, vocabulary), batch


def test_it_learns_with_all_parts(world: World, tmp_path: Path) -> None:
    start(tiny_job(world.pairs, {"train.steps": 60, "train.eval_every": 30}), tmp_path)
    log = read_log(tmp_path / "log.jsonl")
    for name in ("caption", "heads", "dense"):
        assert np.mean([line[name] for line in log[-5:]]) < 0.9 * np.mean([line[name] for line in log[:5]]), name
    assert {"validation/CIDEr", "validation/right_type", "validation/right_object"} <= log[-1].keys()
    artifact = read_artifact(tmp_path / "artifact", system="twincap")
    assert artifact.trained_on == "rendered scenes at 32x32 pixels (14 training pairs)"


@pytest.mark.parametrize("settings", [
    pytest.param({"train.engine": "deepspeed", "train.zero_stage": 1}, marks=pytest.mark.slow),
    {"model.stem": "early"},
    {"model.difference": False, "supervision.heads": 0.0},
    {"supervision.heads": 0.0, "supervision.dense": 0.0, "ema": 0.0, "data.mirror": False, "data.augment": False},
    {"model.peaks": 4, "model.peak_layers": 0, "data.captions": 2, "train.precision": "bf16"},
])  # fmt: skip
def test_every_part_can_be_switched_off(world: World, tmp_path: Path, settings: dict[str, Any]) -> None:
    start(tiny_job(world.pairs, {"train.steps": 2, **settings}), tmp_path)
    captioner = load_captioner(str(tmp_path / "artifact"))
    assert ("map" in captioner.capabilities) == bool(settings.get("supervision.dense", True))
    black = np.zeros((32, 32, 3), np.uint8)
    (one,) = captioner.describe([black], [black])
    assert (one.attributes is None) == (settings.get("supervision.heads") == 0.0)
    if not settings.get("supervision.dense", True):
        with pytest.raises(
            ValueError, match=r"model\.peaks=3: peaks are those of maps that the dense heads learn, and"
        ):
            tiny_job(world.pairs, {"model.peaks": 3, **settings})


def test_weights_of_layers_and_words_decay_and_nothing_else(world: World) -> None:
    task, _ = task_and_batch(world, {"model.peaks": 4})
    matrices, vectors = task.param_groups()
    layers = [layer for layer in task.net.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    expected = {id(layer.weight) for layer in layers} | {id(task.net.decoder.words)}
    assert {id(parameter) for parameter in matrices["params"]} == expected
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.05, 0.0)
    assert len(expected) + len(vectors["params"]) == len(list(task.net.parameters()))


def test_a_training_starts_from_the_weights_of_another(world: World, tmp_path: Path) -> None:
    start(tiny_job(world.pairs, {"train.steps": 2}), tmp_path / "first")
    first = read_artifact(tmp_path / "first" / "artifact")
    settings = {"train.steps": 1, "optim.lr": 0.0, "train.seed": 8, "start": str(first.path)}
    start(tiny_job(world.pairs, settings), tmp_path / "second")
    second = read_artifact(tmp_path / "second" / "artifact")
    state = second.state_dict()
    assert all(torch.allclose(value, state[name]) for name, value in first.state_dict().items())
    assert second.vocabulary == first.vocabulary
    with pytest.raises(ValueError, match=r"start: .*artifact has another model than this training"):
        start(tiny_job(world.pairs, {**settings, "model.blocks": 2}), tmp_path / "third")


@pytest.mark.parametrize("parts", [1, 2])
def test_the_stored_weights_are_the_moving_average_whatever_the_accumulation(world: World, parts: int) -> None:
    settings = {"ema": 0.75, "train.grad_accumulation": parts}
    task, batch = task_and_batch(world, settings)
    expected = task.average.attend.weight.clone()
    for step in range(12):
        with torch.no_grad():
            task.net.attend.weight.fill_(float(step))
        for _ in range(parts):
            task._update_average()
        decay = min(0.75, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        assert torch.allclose(task.average.attend.weight, expected, rtol=1e-4, atol=1e-5)
    task.eval().training_step(batch)
    assert torch.allclose(task.average.attend.weight, expected, rtol=1e-4), "validation does not count"
    assert {"updates", "average.attend.weight"} <= task.state_dict().keys(), "a resumed run goes on with it"
    assert task.used is task.average


def heat_at(circle: torch.Tensor, row: int, place: int, side: int) -> float:
    """A heat map's goal at a cell: 1 at the centre of an object, one half at its radius."""
    x, y, radius = map(float, circle)
    across, down = (place + 0.5) / side - x, (row + 0.5) / side - y
    return float(2.0 ** -((across**2 + down**2) / max(radius, 0.75 / side) ** 2))


@torch.no_grad()
@pytest.mark.parametrize("several", [False, True])
def test_the_heads_learn_what_is_true_of_each_image(world: World, several: bool) -> None:
    task, batch = task_and_batch(world, {"model.peaks": 5} if several else {})
    task.eval()
    if several:
        draws = torch.Generator().manual_seed(0)
        batch["differs"] = torch.rand(batch["differs"].shape, generator=draws) < 0.5
        parts = torch.randint(len(PARTS), batch["parts"].shape, generator=draws)
        batch["parts"] = torch.where(batch["parts"] == UNKNOWN, UNKNOWN, parts)
        assert int((batch["differs"] & (batch["labels"][..., 0] != UNKNOWN)).sum(dim=2).max()) > 1
    net, count = task.net, len(batch["kind"])
    encoded = net(batch["images"])
    assert net.kind is not None
    assert net.changed is not None
    heads = dense = 0.0
    near = set[int]()

    def error(logits: torch.Tensor, label: torch.Tensor) -> float:
        return 0.0 if int(label) == UNKNOWN else float(-logits.log_softmax(-1)[int(label)])

    looks, maps = net.object_looks(encoded.features, batch["places"]), net.object_maps(encoded.features)
    side = maps.shape[-1]
    for pair in range(count):
        heads += error(net.kind(encoded.pooled)[pair], batch["kind"][pair])
        errors: list[list[float]] = [[], [], [], []]
        objects_seen: list[tuple[float, float, int]] = []
        for image in range(2):
            for column, logits in enumerate(net.changed[image](encoded.pooled)):
                heads += error(logits[pair], batch["changed"][pair, image, column]) / 2
            labels, circles = batch["labels"][pair, image], batch["places"][pair, image]
            number_of = range(len(labels))
            inside = [n for n in number_of if all(0 < float(circles[n, axis]) < 1 for axis in (0, 1))]
            shown = [n for n in inside if int(labels[n, 0]) != UNKNOWN]
            for column, of_column in enumerate(errors):
                of_column += [error(looks[column][pair, image, n], labels[n, column]) for n in shown]
            changed = [n for n in shown if bool(batch["differs"][pair, image, n])]
            for n in shown:
                objects_seen.append((*(side * circles[n, :2]).tolist(), int(batch["parts"][pair, image, n])))
            for weight, drawn, objects in ((OBJECTS, maps, shown), (CHANGED_OBJECT, encoded.change, changed)):
                for row in range(side):
                    for place in range(side):
                        goal = max((heat_at(circles[n], row, place, side) for n in objects), default=0.0)
                        p = float(drawn[pair, image, row, place].double().sigmoid())
                        dense -= weight * (goal * np.log(p) + (1 - goal) * np.log(1 - p)) / (2 * side * side)
        dense += sum(sum(of_column) / max(1, len(of_column)) for of_column in errors)
        if several:
            cells = [divmod(int(cell), side) for cell in encoded.cells[pair]]
            labels = [part_at(row + 0.5, column + 0.5, objects_seen) for row, column in cells]
            near.update(labels)
            dense += sum(
                error(logits, torch.tensor(label)) for logits, label in zip(encoded.parts[pair], labels, strict=True)
            ) / len(labels)
    logs = task.training_step(batch)[1]
    assert float(logs["heads"]) == pytest.approx(heads / count, rel=1e-4)
    assert float(logs["dense"]) == pytest.approx(dense / count, rel=1e-4)
    assert not several or len(near) > 2, "peaks at objects and at the ground"


def part_at(y: float, x: float, objects: list[tuple[float, float, int]]) -> int:
    away, part = min((float(np.hypot(x - across, y - down)), part) for across, down, part in objects)
    return part if away <= PEAK_REACH else PARTS.index("none")


@torch.no_grad()
def test_unknown_truths_have_no_part_in_the_loss(world: World) -> None:
    """The losses are means over samples: a sample without truth counts as 0, and its heads' logits do not matter."""
    task, batch = task_and_batch(world, {"model.peaks": 5})
    task.eval()
    known = task.training_step(batch)[1]
    unknowns = {"has_scene": False, **dict.fromkeys(("kind", "changed", "labels", "parts"), UNKNOWN)}
    half = {**batch, **{name: batch[name].clone() for name in unknowns}}
    for name, unknown in unknowns.items():
        half[name][3:] = unknown
    alone = task.training_step({name: part[:3] for name, part in batch.items()})[1]
    mixed = task.training_step(half)[1]
    for name in ("heads", "dense"):
        assert float(mixed[name]) == pytest.approx(float(alone[name]) / 2, rel=1e-5), name
        assert float(mixed[name]) < float(known[name])
    for name, unknown in unknowns.items():
        half[name][:] = unknown
    nothing = task.training_step(half)[1]
    assert (float(nothing["heads"]), float(nothing["dense"])) == (0.0, 0.0)
    assert nothing["caption"] == known["caption"]


def without_scenes(world: World, own: Path, *splits: str) -> str:
    rows = [
        {**row, "meta": "{}", "change_type": None, "mask": None}
        for split in splits for row in iter_rows(world.pairs, split=split)
    ]  # fmt: skip
    return write_pairs(own, rows)


def test_own_pairs_train_and_choose_the_weights_by_what_they_can_measure(world: World, tmp_path: Path) -> None:
    own = without_scenes(world, tmp_path / "own", "train", "val")
    preset = load(TwinCapJob, "jobs/configs/twincap/demo.yaml", {"pairs": own}).train.keep_best
    settings = {"train.steps": 2, "train.keep_best.metric": preset.metric, "model.width": 40}
    for name, pairs, more, chosen in (("own", own, [], "CIDEr"), ("rendered", world.pairs, [own], "right_object")):
        start(tiny_job(pairs, {**settings, "more_pairs": more}), tmp_path / "runs" / name)
        artifact = read_artifact(tmp_path / "runs" / name / "artifact")
        assert f"({14 * (1 + len(more))} training pairs)" in (artifact.trained_on or "")
        job = EvaluateJob(pairs=pairs, artifact=str(artifact.path), out=str(tmp_path / "out"))
        assert _selection(job) == f"best {chosen} on val"
    with pytest.raises(ValueError, match="'right_object' is not measured; the validation returns CIDEr, distinct_"):
        start(tiny_job(own, {**settings, "train.keep_best.metric": "right_object"}), tmp_path / "refused")
    assert not (tmp_path / "refused" / "log.jsonl").exists()


@pytest.fixture(scope="module")
def artifact(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("twincap")
    start(tiny_job(world.pairs, {"train.steps": 40, "beams": 3}), folder)
    return folder / "artifact"


@pytest.fixture(scope="module")
def captioner(artifact: Path) -> TwinCaptioner:
    return TwinCaptioner(artifact)


def test_the_artifact_is_a_captioner(artifact: Path, captioner: TwinCaptioner, images: Images) -> None:
    assert is_captioner(str(artifact))
    described = captioner.describe(*images)
    assert load_captioner(str(artifact))(*images) == [description.best.caption for description in described]
    assert captioner.capabilities == {"map", "score", "sample"}
    assert all(description.change_map is None for description in described)
    maps = np.stack([description.change_map for description in captioner.describe(*images, WITH_MAP)])  # type: ignore[misc]
    assert (maps.shape, maps.dtype) == ((6, 8, 8), np.float32)
    assert 0 <= maps.min() < maps.max() <= 1


def test_attributes_are_those_of_the_heads_and_fit_the_type(captioner: TwinCaptioner, images: Images) -> None:
    with torch.no_grad():
        encoded = captioner._encode(*images)
        assert captioner.net.kind is not None
        kinds = captioner.net.kind(encoded.pooled).softmax(dim=1)
    for row, description in zip(kinds, captioner.describe(*images), strict=True):
        attributes = description.attributes
        assert attributes["type"]["value"] == CHANGE_TYPES[int(row.argmax())]
        assert attributes["type"]["probability"] == pytest.approx(float(row.max()), abs=1e-5)
        assert (attributes["before"] is None) == (attributes["type"]["value"] in ("add", "none"))
        assert (attributes["after"] is None) == (attributes["type"]["value"] in ("drop", "none"))
        for side in (attributes["before"], attributes["after"]):
            assert side is None or side.keys() == set(ATTRIBUTES)
        none = CHANGE_TYPES.index("none")
        assert description.evidence[CHANGE_ODDS] == pytest.approx(float(((1 - row[none]) / row[none]).log()), abs=1e-3)
        assert description.evidence.keys() == {CHANGE_ODDS, CHANGE_HEAT}


def test_a_pairs_attributes_are_in_its_json(artifact: Path, images: Images, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.png" for name in ("before", "after")]
    for file, image in zip(files, (images[0][0], images[1][0]), strict=True):
        file.write_bytes(encode_png(image))
    job = PairJob(artifact=str(artifact), before=str(files[0]), after=str(files[1]))
    described = json.loads(json.dumps(caption_pair(job)))
    assert described["attributes"]["type"]["value"] in CHANGE_TYPES


def test_it_is_calibrated_by_its_evidence_at_any_speed(
    artifact: Path, world: World, images: Images, tmp_path: Path
) -> None:
    copy = str(shutil.copytree(artifact, tmp_path / "artifact"))
    job = load(CalibrateJob, None, {"artifact": copy, "pairs": world.pairs, "familiarity": False})
    assert {CHANGE_ODDS, CHANGE_HEAT} <= set(calibrate(job).inputs)
    for description in TwinCaptioner(copy, speed="bf16").describe(*images):
        assert description.changed is not None
        assert 0 < description.changed < 1
