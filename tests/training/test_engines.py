from __future__ import annotations

import json
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from idc.training.config import TrainConfig
from idc.training.context import Context, LocalContext, checkpoint_name
from idc.training.deepspeed_settings import deepspeed_config
from idc.training.engines import make_engine, param_groups
from idc.training.loop import read_log, save_safetensors
from tests.invariants.harness import Run, largest_difference, run_cases
from tests.training import sizes, toy
from tests.training.test_loop import TRAIN, curve, run, weights


def test_the_deepspeed_config_is_ours_with_the_extra_merged_last() -> None:
    train = TrainConfig(
        steps=1,
        batch_size=24,
        grad_accumulation=3,
        num_workers=4,
        engine="deepspeed",
        zero_stage=2,
        optimizer="adam",
        betas=(0.8, 0.9),
        deepspeed_extra={
            "zero_optimization": {"offload_optimizer": {"device": "cpu"}},
            "optimizer": {"params": {"eps": 1e-6}},
            "steps_per_print": 5,
        },
    )
    config = deepspeed_config(train, 4)
    assert config["train_batch_size"] == 24
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert config["gradient_accumulation_steps"] == 3
    assert config["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert config["optimizer"]["type"] == "Adam"
    assert config["optimizer"]["params"] == {"betas": [0.8, 0.9], "eps": 1e-6, "torch_adam": True, "adam_w_mode": False}
    assert config["steps_per_print"] == 5
    assert train.deepspeed_extra["optimizer"] == {"params": {"eps": 1e-6}}


@pytest.mark.parametrize("limit", [0.01, 0.0, 1e3])
def test_a_group_is_clipped_by_its_own_norm_and_the_others_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    train = TrainConfig.model_validate({**TRAIN, "clip_norm": 0.02, "grad_accumulation": 1})
    context = LocalContext(tmp_path)
    batch = next(toy.loaders(train, context).train.batches())
    torch.manual_seed(0)
    task = toy.ToyTask()
    task.clips = {"encoder": limit}
    task(batch)[0].backward()
    raw = {name: p.grad.clone() for name, p in task.named_parameters() if p.grad is not None}
    task.zero_grad(set_to_none=True)
    engine = make_engine(task, param_groups(task)[0], context, train)
    engine.accumulate(batch)
    clipped: dict[str, Tensor] = {}

    def keep(*_: Any) -> None:
        clipped.update({name: p.grad.clone() for name, p in task.named_parameters() if p.grad is not None})

    monkeypatch.setattr(engine.optimizer, "step", keep)  # type: ignore[attr-defined]
    norm = engine.step([0.1, 0.1])

    def squares(names: list[str]) -> float:
        return sum(float(raw[name].square().sum()) for name in names)

    encoder = [name for name in raw if name.startswith("encoder.")]
    head = [name for name in raw if not name.startswith("encoder.")]
    assert float(norm) == pytest.approx(squares(list(raw)) ** 0.5, rel=1e-5)
    for names, bound in ((encoder, limit), (head, 0.02)):
        scale = min(1.0, bound / squares(names) ** 0.5) if bound else 1.0
        for name in names:
            assert torch.allclose(clipped[name], raw[name] * scale, rtol=1e-3, atol=1e-9), name
    assert "clip_norm" not in engine.optimizer.state_dict()["param_groups"][0]  # type: ignore[attr-defined]


STAGES = (0, 2, 3)
BASE_STAGES = (2, 3)


def deepspeed(stage: int) -> dict[str, Any]:
    sharded = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}  # else the toy's parameters stay whole
    return {**TRAIN, "engine": "deepspeed", "zero_stage": stage, "deepspeed_extra": sharded}


def _saved_and_loaded(folder: Path, settings: dict[str, Any]) -> dict[str, Tensor]:
    """Weights of a fresh task as "0.name", and of another one that has loaded its checkpoint as "1.name"."""
    train, context = TrainConfig.model_validate(settings), LocalContext(folder)
    states: dict[str, Tensor] = {}
    for seed in (0, 1):
        torch.manual_seed(seed)
        task = toy.ToyTask(base={"width": 20})
        engine = make_engine(task, param_groups(task)[0], context, train)
        if seed:
            engine.load(folder, 1)
        else:
            engine.save(folder)
        states |= {f"{seed}.{name}": tensor for name, tensor in engine.full_state_dict().items()}
    return states


def check_loaded(states: dict[str, Tensor]) -> None:
    """Also the projection, which is frozen and cannot be had elsewhere."""
    for name in toy.ToyTask().state_dict():
        assert torch.equal(states[f"0.{name}"], states[f"1.{name}"]), name


def _interrupted_and_undisturbed(folder: Path, stages: tuple[int, ...], payload: dict[str, Any], bf16: bool) -> None:
    for stage in stages:
        run(folder / f"undisturbed{stage}", deepspeed(stage), **payload)
        kill = {"kill_step": 36, "kill_marker": str(folder / f"raise{stage}")}
        with pytest.raises(RuntimeError, match="killed by the test"):
            run(folder / f"interrupted{stage}", deepspeed(stage), **payload, **kill)
        run(folder / f"interrupted{stage}", deepspeed(stage), **payload, **kill)
        if bf16:
            train = {**deepspeed(stage), "precision": "bf16"}
            run(folder / f"bf16 {stage}", train, base={"width": 20, "dtype": "bfloat16"})
            save_safetensors(_saved_and_loaded(folder / f"saved {stage}", train), folder / f"states {stage}")


def _in_a_process(*args: Any) -> None:
    """DeepSpeed leaves a process changed."""
    process = multiprocessing.get_context("spawn").Process(target=_interrupted_and_undisturbed, args=args)
    process.start()
    process.join(300)
    assert process.exitcode == 0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    _in_a_process(folder, STAGES, {"dropout": 0.2}, False)
    return folder


@pytest.fixture(scope="module")
def base_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base_runs")
    _in_a_process(folder, BASE_STAGES, sizes.PAYLOAD, True)
    return folder


def check_resume(runs: Path, stage: int) -> None:
    interrupted, undisturbed = runs / f"interrupted{stage}", runs / f"undisturbed{stage}"
    assert curve(interrupted) == curve(undisturbed)
    a, b = weights(interrupted), weights(undisturbed)
    assert a.keys() == b.keys() == toy.ToyTask().state_dict().keys()
    assert all(a[name].equal(b[name]) for name in b)


@pytest.mark.parametrize("stage", STAGES)
def test_deepspeed_goes_on_from_its_checkpoint(runs: Path, stage: int) -> None:
    check_resume(runs, stage)


@pytest.mark.slow
@pytest.mark.parametrize("stage", BASE_STAGES)
def test_deepspeed_resumes_on_a_frozen_base_and_writes_the_trained_part(base_runs: Path, stage: int) -> None:
    check_resume(base_runs, stage)
    sizes.check_sizes(base_runs / f"interrupted{stage}")


def test_torch_loads_all_that_is_stored(tmp_path: Path) -> None:
    check_loaded(_saved_and_loaded(tmp_path, TRAIN))


@pytest.mark.slow
@pytest.mark.parametrize("stage", BASE_STAGES)
def test_deepspeed_loads_all_that_is_stored(base_runs: Path, stage: int) -> None:
    check_loaded(load_file(base_runs / f"states {stage}"))


@pytest.mark.slow
def test_deepspeed_trains_on_a_frozen_base_as_torch_does(base_runs: Path, tmp_path: Path) -> None:
    """Above all, its dropout stays switched off under DeepSpeed too."""
    payload = {**sizes.PAYLOAD, "base": {**sizes.PAYLOAD["base"], "dropout": 0.0}}
    run(tmp_path, **payload)
    for stage in BASE_STAGES:
        losses = [line["loss"] for line in curve(base_runs / f"undisturbed{stage}")]
        assert losses == pytest.approx([line["loss"] for line in curve(tmp_path)], rel=2e-6)


@pytest.mark.slow
def test_deepspeed_trains_in_fp32_on_a_base_in_bfloat16(base_runs: Path, tmp_path: Path) -> None:
    run(tmp_path, {**TRAIN, "precision": "bf16"}, base={"width": 20, "dtype": "bfloat16"})
    expected = [line["loss"] for line in curve(tmp_path)]
    assert expected[-1] < 0.8 * expected[0]
    for stage in BASE_STAGES:
        assert [line["loss"] for line in curve(base_runs / f"bf16 {stage}")] == pytest.approx(expected, rel=1e-2)
        assert all(tensor.dtype == torch.float32 for tensor in weights(base_runs / f"bf16 {stage}").values())


def resumed(payload: dict[str, Any], context: LocalContext) -> dict[str, Any]:
    """An entry: the toy's, then once more from the checkpoint before the last."""
    toy.entry(payload, context)
    if context.rank == 0:
        log = context.run_dir / "log.jsonl"
        log.rename(context.run_dir / "undisturbed.jsonl")
        shutil.copy(context.run_dir / "undisturbed.jsonl", log)
        shutil.rmtree(context.checkpoints / checkpoint_name(24))
        (context.run_dir / "undisturbed").mkdir()
        shutil.move(context.run_dir / "artifact", context.run_dir / "undisturbed" / "artifact")
    context.barrier()
    return toy.entry(payload, context)


@pytest.mark.slow
def test_two_workers_resume_on_a_frozen_base(tmp_path: Path) -> None:
    two = {"num_workers": 2}
    cases = {"torch": two, "zero 2": {**deepspeed(2), **two}, "zero 3": {**deepspeed(3), **two}}
    runs = run_cases("tests.training.test_engines:resumed", {**sizes.PAYLOAD, "train": TRAIN}, cases, tmp_path)
    for name, again in runs.items():
        first = read_log(again.path / "undisturbed.jsonl")
        assert again.losses == [line["loss"] for line in first], name
        assert again.log[-1]["validation/loss"] == first[-1]["validation/loss"], name
        assert largest_difference(again.state, Run(again.path / "undisturbed").state) == 0, name
        assert again.losses == pytest.approx(runs["torch"].losses, rel=2e-6), name
        sizes.check_sizes(again.path)


def test_a_parameter_of_no_dimension_is_refused_by_deepspeed_and_trained_by_torch(tmp_path: Path) -> None:
    """Which fails when it broadcasts or clips one."""
    task = toy.ToyTask()
    task.shift = torch.nn.Parameter(torch.tensor(0.0))
    context = LocalContext(tmp_path)
    make_engine(task, param_groups(task)[0], context, TrainConfig(steps=1))
    with pytest.raises(ValueError, match="cannot take shift, a parameter of no dimension"):
        make_engine(task, param_groups(task)[0], context, TrainConfig(steps=1, engine="deepspeed"))


def not_broadcast(payload: dict[str, Any], context: Context) -> dict[str, Any]:
    """An entry: every rank fills its weights with its own number, makes an engine and writes down what it has then."""
    train = TrainConfig.model_validate(payload["train"])
    task = toy.ToyTask(base={"width": 20})
    assert task.base is not None
    for parameter in task.parameters():
        parameter.data.fill_(context.rank)
    make_engine(task, param_groups(task)[0], context, train)
    owners = {name: float(parameter.detach().mean()) for name, parameter in task.named_parameters()}
    (context.run_dir / f"{context.rank}.json").write_text(json.dumps(owners))
    dist.barrier()
    return {}


@pytest.mark.slow
def test_a_base_is_not_broadcast(tmp_path: Path) -> None:
    """It may have many GB, and every rank has read it."""
    run_cases("tests.training.test_engines:not_broadcast", {"train": TRAIN}, {"two": {"num_workers": 2}}, tmp_path)
    owners = json.loads((tmp_path / "two" / "1.json").read_text())
    assert {name for name, owner in owners.items() if owner == 1} == {n for n in owners if n.startswith("base.")}
    assert {name for name, owner in owners.items() if owner == 0} == {n for n in owners if not n.startswith("base.")}
