"""Linear layers and convolutions whose weights are kept in oneDNN's own layout, for inference on a CPU.

Torch's ``linear`` uses MKL in float32, which on processors of other makers falls back to older instructions, and its
``conv2d`` copies the weight into oneDNN's layout at every call. The operators here are those that torch's compiler
generates for frozen models. They are private: :func:`packing_works` tries them, and where it returns False nobody may
use these classes.

The names of the weights in a state dict do not change, nor do their values, but for the rounding to ``dtype``. A packed
layer can be neither loaded, copied nor pickled, and stays on the CPU.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Packed(nn.Module):
    """A layer whose weight is in oneDNN's layout: only this copy of it is in memory.

    Args:
        layer: the layer to replace.
        packed: its weight.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, packed: Tensor) -> None:
        super().__init__()
        self.dtype = packed.dtype
        self._packed = packed
        bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().to(packed.dtype), requires_grad=False)
        self.register_parameter("bias", bias)

    def weight(self) -> Tensor:
        """A plain copy of the weight."""
        return self._packed.to_dense()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + "weight"] = self.weight()
        super()._save_to_state_dict(destination, prefix, keep_vars)


class PackedLinear(_Packed):
    """A linear layer, with what follows it computed before its result leaves the cache.

    Args:
        rows: number of rows of a usual input; others give the same, perhaps slower.
        dtype: number format of the product.
    """

    def __init__(self, layer: nn.Linear, rows: int, dtype: torch.dtype = torch.float32) -> None:
        weight = layer.weight.detach().to(dtype)
        super().__init__(layer, torch.ops.mkldnn._reorder_linear_weight(weight, rows))

    def forward(self, x: Tensor, activation: str = "none") -> Tensor:
        """``activation`` of the product: "none", "relu", or "swish" for x * sigmoid(x)."""
        x = x.to(self.dtype)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, activation, [], "")
        return out

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        """The sum of the product and ``to``, in the number format of ``to``."""
        if to.dtype != self.dtype:
            return to + self(x)
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, to, self._packed, self.bias, "add")
        return out


class PackedConv2d(_Packed):
    """A convolution without groups or dilation, in channels-last layout.

    Args:
        size: batch size, height and width of a usual input; others give the same, perhaps slower.
        dtype: number format of the convolution and its result.
    """

    def __init__(self, layer: nn.Conv2d, size: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> None:
        assert layer.groups == 1
        assert layer.padding_mode == "zeros"
        assert isinstance(layer.padding, tuple)
        self._where = (list(layer.padding), list(layer.stride), list(layer.dilation), 1)
        shape = [size[0], layer.in_channels, *size[1:]]
        weight = layer.weight.detach().to(dtype)
        super().__init__(layer, torch.ops.mkldnn._reorder_convolution_weight(weight, *self._where, shape))

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype, memory_format=torch.channels_last)
        out: Tensor = torch.ops.mkldnn._convolution_pointwise(x, self._packed, self.bias, *self._where, "none", [], "")
        return out

    def added(self, x: Tensor, to: Tensor) -> Tensor:
        """The sum of the convolution and ``to``."""
        x, to = (part.to(self.dtype, memory_format=torch.channels_last) for part in (x, to))
        out: Tensor = torch.ops.mkldnn._convolution_pointwise.binary(
            x, to, self._packed, self.bias, *self._where, "add", 1.0, None, [], None
        )
        return out


@functools.cache
def packing_works(dtype: torch.dtype = torch.float32) -> bool:
    """Whether this build of torch has the operators, for this number format and processor, and they compute what the
    ordinary ones compute."""
    if not torch.backends.mkldnn.is_available() or (dtype == torch.bfloat16 and not bfloat16_is_native()):
        return False
    try:
        # The layers of the trial are drawn at random: the caller's generator must not move.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return _linear_agrees(dtype) and _convolution_agrees(dtype)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):  # private operators: gone, or changed
        return False


def bfloat16_is_native() -> bool:
    """Whether this processor has instructions for products in bfloat16; others emulate them, slower than float32."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()) and bool(torch.cpu._is_avx512_bf16_supported())
    except AttributeError:
        return False


def _linear_agrees(dtype: torch.dtype) -> bool:
    layer = nn.Linear(32, 48)
    x, to = torch.randn(40, 32), torch.randn(40, 48, dtype=dtype)
    packed = PackedLinear(layer, 40, dtype)
    plain = layer(x)
    return (
        _close(packed(x), plain)
        and _close(packed(x, "swish"), F.silu(plain))
        and _close(packed.added(x.to(dtype), to), plain + to.float())
        and _close(packed.weight(), layer.weight)
    )


def _convolution_agrees(dtype: torch.dtype) -> bool:
    layer = nn.Conv2d(16, 24, 3, stride=2, padding=1)
    x, to = torch.randn(2, 16, 9, 9), torch.randn(2, 24, 5, 5)
    packed = PackedConv2d(layer, (2, 9, 9), dtype)
    plain = layer(x)
    return (
        _close(packed(x), plain) and _close(packed.added(x, to), plain + to) and _close(packed.weight(), layer.weight)
    )


def _close(actual: Tensor, expected: Tensor) -> bool:
    tolerance = 0.1 if actual.dtype == torch.bfloat16 else 1e-4
    return actual.shape == expected.shape and torch.allclose(actual.float(), expected, atol=tolerance, rtol=tolerance)
