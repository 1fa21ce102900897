from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from idc.training.engines import checkpoint_keys, param_groups
from idc.training.task import Task, recompute_activations
from tests.training.toy import ToyTask


class Adapted(Task):
    """A base of two blocks, the second with a trained adapter; a norm whose statistics are frozen by override."""

    def __init__(self) -> None:
        super().__init__()
        block = {"linear": nn.Linear(4, 4), "norm": nn.BatchNorm1d(4), "dropout": nn.Dropout(0.5)}
        self.base = nn.ModuleList([nn.ModuleDict(block), nn.ModuleDict({"linear": nn.Linear(4, 4)})])
        self.base.requires_grad_(False)
        self.base[1]["adapter"] = nn.Linear(4, 4)
        self.base[1]["adapter_dropout"] = nn.Dropout(0.1)
        self.noise = nn.Dropout(0.3)
        self.own = nn.Linear(4, 4)
        self.kept = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("count", torch.zeros(()))

    def base_parts(self) -> list[nn.Module]:
        return [self.base, self.noise]


def test_what_is_not_trained_and_available_elsewhere_is_not_stored() -> None:
    weights = [f"{name}.{part}" for name in ("base.1.adapter", "own", "kept") for part in ("weight", "bias")]
    assert Adapted().checkpoint_keys() == {*weights, "count"}
    toy = ToyTask()
    assert checkpoint_keys(toy) == toy.state_dict().keys()  # frozen, but nowhere else


def test_a_trained_part_must_be_stored() -> None:
    task = Adapted()
    for names, message in (
        ({"own.weight"}, r"leaves out trained parameters: base.1.adapter.weight, base.1.adapter.bias, own.bias"),
        ({*task.checkpoint_keys(), "own.gain"}, r"returns names that the task's state_dict\(\) lacks: own.gain"),
    ):
        task.checkpoint_keys = lambda names=names: names  # type: ignore[method-assign]
        with pytest.raises(ValueError, match=message):
            checkpoint_keys(task)


@pytest.mark.parametrize("switch", [lambda task: task.set_training(True), lambda task: nn.Sequential(task).train()])
def test_what_is_frozen_stays_in_evaluation_mode(switch: Any) -> None:
    task = Adapted()
    task.set_training(False)
    assert not any(module.training for module in task.modules())
    switch(task)
    frozen = {name for name, module in task.named_modules() if not module.training}
    assert frozen == {
        *("base.0", "base.0.linear", "base.0.norm", "base.0.dropout", "base.1.linear", "kept"),
        "noise",  # without parameters, but a part of the base
    }


class Recomputing(Task):
    """Counts how often its part is called."""

    def __init__(self, part: nn.Module, counted: nn.Module) -> None:
        super().__init__()
        self.part = part
        self.calls = 0
        counted.register_forward_pre_hook(self._count)  # torch stops a second pass as soon as it has all it needs

    def _count(self, module: nn.Module, inputs: Any) -> None:
        self.calls += 1

    def checkpointed_parts(self) -> list[nn.Module]:
        return [self.part]


def test_activations_are_recomputed_in_the_backward_pass_alone() -> None:
    part = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    task = Recomputing(part, part[0])
    recompute_activations(task)
    assert task.state_dict().keys() == {"part.0.weight", "part.0.bias", "part.2.weight", "part.2.bias"}
    with torch.no_grad():
        task.part(torch.ones(2, 4))
    assert task.calls == 1
    task.part(torch.ones(2, 4)).sum().backward()
    assert task.calls == 3


@pytest.mark.parametrize("frozen", [False, True])
def test_a_transformers_model_recomputes_its_layers_also_if_they_are_frozen(frozen: bool) -> None:
    """With the cache of keys and values that transformers makes by default."""
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    model = LlamaModel(LlamaConfig(vocab_size=10, num_attention_heads=2, **sizes)).requires_grad_(not frozen)
    task = Recomputing(model, model.get_submodule("layers.0.mlp"))
    inputs = torch.randn(2, 5, 8, requires_grad=True)

    def gradient() -> Tensor:
        task.set_training(True)
        return torch.autograd.grad(model(inputs_embeds=inputs).last_hidden_state.square().sum(), inputs)[0]

    expected = gradient()
    assert task.calls == 1
    recompute_activations(task)
    assert torch.equal(gradient(), expected)
    assert task.calls == 3


def test_groups_must_hold_every_trained_parameter_once() -> None:
    task = ToyTask()
    first, second = task.param_groups()
    for groups, message in (
        ([first], "leaves out trainable parameters: shift, unused, head.weight, head.bias"),
        ([first, second, second], "parameter head.weight is in two groups: head and head"),
    ):
        task.param_groups = lambda groups=groups: groups  # type: ignore[method-assign]
        with pytest.raises(ValueError, match=message):
            param_groups(task)
