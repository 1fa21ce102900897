"""Linear layers by oneDNN where torch's own product, MKL, does not use the processor's instructions.

On processors of other makers than Intel, MKL falls back to AVX2 in float32. oneDNN does not, and torch calls it where
reduced precision of float32 products is allowed: that lets oneDNN use bfloat16, which it does on processors with matrix
units (AMX) alone. Elsewhere the products stay float32, forward and backward, and differ by rounding only.

The permission is given inside the linear layers alone. Torch's fused attention would take it too, for products so small
that each takes several times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@cache
def onednn_pays() -> bool:
    """Whether linear layers should be computed by oneDNN: the processor is of another maker than Intel, and oneDNN is
    exact. It depends on the machine alone, not on a measurement, so that a resumed run computes as before."""
    try:
        processor = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False
    return "vendor_id" in processor and "GenuineIntel" not in processor and onednn_is_exact()


def onednn_is_exact() -> bool:
    """Whether oneDNN computes products of float32 in float32 on this processor, tried on a product."""
    if not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(128, 128, generator=generator) for _ in range(2))
    with _onednn():
        product = left @ right
    return torch.allclose(product.double(), left.double() @ right.double(), rtol=0, atol=1e-4)


def use_onednn(module: nn.Module) -> None:
    """Have the linear layers inside ``module`` computed by oneDNN, forward and backward.

    Their ``forward`` is replaced in place, so that names of parameters stay.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.forward = partial(_by_onednn, layer.forward)  # type: ignore[method-assign]


def _by_onednn(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _Linears():
        return forward(*args, **kwargs)


class _Linears(TorchFunctionMode):
    """Replaces ``F.linear``, however a layer calls it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return _linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result: Tensor = _Linear.apply(x, weight, bias)
    return result


class _Linear(torch.autograd.Function):
    """``F.linear`` whose products, backward ones too, are oneDNN's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        with _onednn():
            return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        of_x = of_weight = of_bias = None
        with _onednn():
            if ctx.needs_input_grad[0]:
                of_x = (rows @ weight).view(x.shape)
            if ctx.needs_input_grad[1]:
                of_weight = rows.t() @ x.flatten(0, -2)
        if ctx.needs_input_grad[2]:
            of_bias = rows.sum(0)
        return of_x, of_weight, of_bias


class _Permission:
    """Reduced precision of float32 products, from when the first thread enters until the last one leaves; torch has one
    setting for all threads."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, ""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._inside == 0:
                self._before = torch.get_float32_matmul_precision()
                torch.set_float32_matmul_precision("medium")
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    torch.set_float32_matmul_precision(self._before)


_onednn = _Permission()
