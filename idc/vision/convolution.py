"""Faster convolutions for inference, in float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SMALLEST_SIDE = 28
"""Maps of fewer pixels a side are convolved directly: transforming the kernels costs more than it saves there."""


class WinogradConv2d(nn.Conv2d):
    """A 3x3 convolution of stride 1 by minimal filtering (Lavin and Gray, 2016), where that pays: float32 on a CPU, no
    gradients, large maps. Elsewhere the ordinary convolution.

    NNPACK, which torch brings along, computes tiles of 6x6 outputs with a fifth of the multiplications. It rounds
    differently: by up to 6e-5 of the output's deviation on maps of 128 channels, where direct convolution has 1e-5.
    """

    def forward(self, x_BCHW: Tensor) -> Tensor:
        if (
            x_BCHW.device.type == "cpu"
            and x_BCHW.dtype == torch.float32
            and min(x_BCHW.shape[-2:]) >= SMALLEST_SIDE
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
        ):
            return torch._nnpack_spatial_convolution(x_BCHW, self.weight, self.bias, padding=(1, 1), stride=(1, 1))
        return super().forward(x_BCHW)


def use_winograd(model: nn.Module) -> int:
    """Let the 3x3 convolutions in ``model`` be :class:`WinogradConv2d`, weights and their names unchanged.

    Returns:
        How many they are; 0 on processors that NNPACK does not know.
    """
    count = 0
    if torch.backends.nnpack.is_available():
        for module in model.modules():
            if type(module) is nn.Conv2d and _is_plain_3x3(module):
                module.__class__ = WinogradConv2d
                count += 1
    return count


def _is_plain_3x3(conv: nn.Conv2d) -> bool:
    shape = conv.kernel_size, conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode
    return shape == ((3, 3), (1, 1), (1, 1), (1, 1), 1, "zeros")
