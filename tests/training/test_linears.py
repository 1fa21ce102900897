"""Linear layers by oneDNN compute what torch's compute, forward and backward, and nothing else is changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idc.training import engines
from idc.training.config import TrainConfig
from idc.training.context import LocalContext
from idc.training.engines import make_engine, param_groups
from idc.training.linears import _onednn, onednn_is_exact, onednn_pays, use_onednn
from tests.training import toy


class Halves(nn.Linear):
    """Calls the product twice, with parts of its weight, as ProCap's attention does."""

    def forward(self, x: Tensor) -> Tensor:
        half = self.out_features // 2
        return F.linear(x, self.weight[:half]) - F.linear(x, self.weight[half:], self.bias[half:])


def make(onednn: bool) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.GELU(), Halves(16, 20), nn.Linear(10, 3, bias=False))
    if onednn:
        use_onednn(model)
    return model


def gradients(model: nn.Module) -> dict[str, Tensor]:
    x = torch.randn(4, 5, 12, generator=torch.Generator().manual_seed(1), requires_grad=True)
    y = model(x)
    y.square().sum().backward()
    assert x.grad is not None
    found = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return {"x": x.grad, "y": y.detach(), **found}


def tolerance() -> float:
    return 1e-5 if onednn_is_exact() else 0.1  # where oneDNN takes bfloat16


def test_results_and_gradients_are_those_of_torch() -> None:
    plain, onednn = gradients(make(False)), gradients(make(True))
    assert plain.keys() == onednn.keys()
    for name, expected in plain.items():
        torch.testing.assert_close(
            onednn[name], expected, rtol=tolerance(), atol=tolerance() * float(expected.abs().max())
        )


def test_names_and_frozen_weights_and_the_permission_outside_of_layers_stay() -> None:
    model = make(True)
    assert model.state_dict().keys() == make(False).state_dict().keys()
    model[0].requires_grad_(False)
    seen: list[str] = []
    model[1].register_forward_hook(lambda *_: seen.append(torch.get_float32_matmul_precision()))
    model(torch.zeros(2, 12)).sum().backward()
    assert [*seen, torch.get_float32_matmul_precision()] == ["highest", "highest"]
    trained = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert trained == {"2.weight", "2.bias", "3.weight"}


def test_threads_that_overlap_leave_the_precision_as_it_was() -> None:
    """The thread that came first leaves first."""
    first, second = _onednn(), _onednn()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    between = torch.get_float32_matmul_precision()
    second.__exit__(None, None, None)
    assert (between, torch.get_float32_matmul_precision()) == ("medium", "highest")


def test_only_processors_on_which_mkl_is_slow_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(cpuinfo: str) -> bool:
        onednn_pays.cache_clear()
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: cpuinfo)
        return onednn_pays()

    try:
        assert not chosen("vendor_id\t: GenuineIntel\n")
        assert not chosen("CPU implementer\t: 0x41\n")
        assert chosen("vendor_id\t: AuthenticAMD\n") == onednn_is_exact()
    finally:
        monkeypatch.undo()
        onednn_pays.cache_clear()


@pytest.mark.parametrize(("changes", "used"), [({}, True), ({"precision": "bf16"}, False)])
def test_the_engine_uses_it_for_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], used: bool
) -> None:
    monkeypatch.setattr(engines, "onednn_pays", lambda: True)
    task = toy.ToyTask()
    make_engine(task, param_groups(task)[0], LocalContext(tmp_path), TrainConfig(steps=1, **changes))  # type: ignore[arg-type]
    assert ("forward" in vars(task.head)) == used
