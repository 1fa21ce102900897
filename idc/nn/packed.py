"""Linear layers whose weights are kept in oneDNN's own layout, for inference on a CPU in float32.

Torch's ``linear`` uses MKL in float32, which on processors of other makers falls back to older instructions. The
operators here are those that torch's compiler generates for frozen models: this module alone uses the private
``torch.ops.mkldnn``. Where a torch has them no longer, or changed, :func:`packing_works` returns False, nobody uses
:class:`PackedLinear`, captioning is slower, and ``tests/nn/test_packed.py`` fails on an x86 processor.

Only what pays is packed: on an AMD EPYC, captioning with packed linear layers takes 0.73 of the time at the paper's
size and 0.84 at the demo's; packed convolutions would save 2 to 4 % more, and packing in bfloat16 1 to 5 %.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """A linear layer whose weight is in oneDNN's layout, with what follows it computed before its result leaves the
    cache. Only this copy of the weight is in memory.

    The names of the weights in a state dict do not change, nor do their values. It can be neither loaded, copied nor
    pickled, and stays on the CPU.

    Args:
        layer: the layer to replace.
        rows: number of rows of a usual input; others give the same, perhaps slower.
    """

    def __init__(self, layer: nn.Linear, rows: int) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
        bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone(), requires_grad=False)
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor, activation: str = "none") -> Tensor:
        """``activation`` of the product: "none", or "swish" for x * sigmoid(x)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, activation, [], "")
        return out

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        """The sum of the product and ``to``."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, to, self._packed, self.bias, "add")
        return out

    def weight(self) -> Tensor:
        """A plain copy of the weight."""
        return self._packed.to_dense()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.weight()
        super()._save_to_state_dict(destination, prefix, keep_vars)


@functools.cache
def packing_works() -> bool:
    """Whether this build of torch has the operators, for this processor, and they compute what a plain layer does."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        # The layer of the trial is drawn at random: the caller's generator must not move.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            layer, x, to = nn.Linear(32, 48), torch.randn(40, 32), torch.randn(40, 48)
            packed, plain = PackedLinear(layer, 40), layer(x)
            pairs = [
                (packed(x), plain),
                (packed(x, "swish"), F.silu(plain)),
                (packed.added(x, to), plain + to),
                (packed.weight(), layer.weight),
            ]
            return all(torch.allclose(actual, expected, atol=1e-4, rtol=1e-4) for actual, expected in pairs)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):  # private operators: gone, or changed
        return False
