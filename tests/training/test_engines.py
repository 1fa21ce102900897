from __future__ import annotations

import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from idc.training.config import TrainConfig
from idc.training.context import LocalContext
from idc.training.deepspeed import deepspeed_config
from idc.training.engines import make_engine, param_groups
from idc.training.run_storage import checkpoint_name
from tests.invariants.harness import ZERO2, ZERO3, largest_difference, run_cases
from tests.training import toy
from tests.training.test_loop import TRAIN


def test_the_deepspeed_config_is_ours_with_the_extra_merged_last() -> None:
    extra = {
        "zero_optimization": {"offload_optimizer": {"device": "cpu"}}, "optimizer": {"params": {"eps": 1e-6}},
        "steps_per_print": 5,
    }  # fmt: skip
    train = TrainConfig(
        steps=1, batch_size=24, grad_accumulation=3, num_workers=4, engine="deepspeed", zero_stage=2, optimizer="adam",
        betas=(0.8, 0.9), deepspeed_extra=extra,
    )  # fmt: skip
    config = deepspeed_config(train, 4)
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "steps_per_print")
    assert [config[name] for name in sizes] == [24, 2, 3, 5]
    assert config["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert config["optimizer"]["type"] == "Adam"
    assert config["optimizer"]["params"] == {"betas": [0.8, 0.9], "eps": 1e-6, "torch_adam": True, "adam_w_mode": False}
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


def deepspeed(stage: int) -> dict[str, Any]:
    sharded = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}  # else the toy's parameters stay whole
    return {**TRAIN, "engine": "deepspeed", "zero_stage": stage, "deepspeed_extra": sharded}


def saved_and_loaded(folder: Path, settings: dict[str, Any]) -> None:
    """A task that has loaded the checkpoint of another one has its weights, also those of the projection, which is
    frozen and cannot be had elsewhere. The 3 MB of the base are not in it."""
    train, context = TrainConfig.model_validate(settings), LocalContext(folder)
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        task = toy.ToyTask(base={"width": 40_000})
        engine = make_engine(task, param_groups(task)[0], context, train)
        if seed:
            engine.load(folder, 1)
        else:
            engine.save(folder)
        states.append(engine.full_state_dict())
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 1e6
    for name in toy.ToyTask().state_dict():
        assert torch.equal(states[0][name], states[1][name]), name


def test_torch_loads_all_that_is_stored(tmp_path: Path) -> None:
    saved_and_loaded(tmp_path, TRAIN)


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_loads_all_that_is_stored(tmp_path: Path, stage: int) -> None:
    """In a process of its own: DeepSpeed leaves one changed."""
    arguments = (tmp_path, deepspeed(stage))
    process = multiprocessing.get_context("spawn").Process(target=saved_and_loaded, args=arguments)
    process.start()
    process.join(300)
    assert process.exitcode == 0


@pytest.mark.slow
def test_deepspeed_trains_in_fp32_on_a_base_in_bfloat16(tmp_path: Path) -> None:
    payload = {"train": {**TRAIN, "precision": "bf16"}, "base": {"width": 20, "dtype": "bfloat16"}}
    runs = run_cases("tests.training.toy:entry", payload, {"torch": {}, "zero 2": ZERO2, "zero 3": ZERO3}, tmp_path)
    expected = runs["torch"].losses
    assert expected[-1] < 0.8 * expected[0]
    for name in ("zero 2", "zero 3"):
        assert runs[name].losses == pytest.approx(expected, rel=1e-2)
        assert all(tensor.dtype == torch.float32 for tensor in runs[name].state.values())


def test_a_parameter_of_no_dimension_is_refused_by_deepspeed_and_trained_by_torch(tmp_path: Path) -> None:
    """Which fails when it broadcasts or clips one."""
    task = toy.ToyTask()
    task.shift = torch.nn.Parameter(torch.tensor(0.0))
    context = LocalContext(tmp_path)
    make_engine(task, param_groups(task)[0], context, TrainConfig(steps=1))
    with pytest.raises(ValueError, match="cannot take shift, a parameter of no dimension"):
        make_engine(task, param_groups(task)[0], context, TrainConfig(steps=1, engine="deepspeed"))


ENTRY = "tests.training.toy:entry"
RESHARDED = {"steps": 24, "batch_size": 12, "checkpoint_every": 14, "eval_every": 8, "log_every": 1, "seed": 3}
ENGINES: dict[str, dict[str, Any]] = {
    "torch": {}, "zero 0": {"engine": "deepspeed"}, "zero 1": {"engine": "deepspeed", "zero_stage": 1},
    "zero 2": ZERO2, "zero 3": ZERO3, "base, zero 2": ZERO2, "base, zero 3": ZERO3,
}  # fmt: skip
"""By name; those with a base have frozen weights that are not stored."""


@pytest.mark.slow
def test_two_workers_checkpoint_goes_on_with_one_and_with_three(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    two = {name: {**engine, "num_workers": 2} for name, engine in ENGINES.items()}
    for kind in ("", "base"):
        payload = {"train": RESHARDED, **({"base": {"width": 20}} if kind else {})}
        names = [name for name in ENGINES if name.startswith("base") == bool(kind)]
        runs = run_cases(ENTRY, payload, {name: two[name] for name in names}, tmp_path / "two")
        others = {}
        for name in names:
            for workers in (1, 3):
                case = f"{name} {workers}"
                shutil.copytree(runs[name].path, tmp_path / "on" / case)
                shutil.rmtree(tmp_path / "on" / case / "checkpoints" / checkpoint_name(24))
                shutil.rmtree(tmp_path / "on" / case / "artifact")
                others[case] = {**ENGINES[name], "num_workers": workers}
        again = run_cases(ENTRY, payload, others, tmp_path / "on")
        for case, run in again.items():
            undisturbed = runs[case[:-2]]
            assert [line["step"] for line in run.log] == list(range(1, 25)), case
            assert run.losses[:14] == undisturbed.losses[:14], case
            assert run.losses == pytest.approx(undisturbed.losses, rel=2e-6), case
            assert run.losses[14:] != undisturbed.losses[14:], f"{case}: it went on, with other sums"
            validation = pytest.approx(undisturbed.log[-1]["validation/loss"], rel=2e-6)
            assert run.log[-1]["validation/loss"] == validation, case
            assert largest_difference(undisturbed.state, run.state) < 2e-6, case
