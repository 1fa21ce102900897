"""``train.activation_checkpointing``: less memory for activations, at the price of a second forward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from idc.training.task import Task


def recompute_activations(task: Task) -> None:
    """Have :meth:`Task.checkpointed_parts` recompute their activations in the backward pass.

    Their ``forward`` is replaced in place, so that names of parameters stay. Call it with the task in training mode.

    Raises:
        ValueError: if the task has no such part.
    """
    parts = task.checkpointed_parts()
    if not parts:
        raise ValueError(
            "train.activation_checkpointing=true, but this system has no part for it; set it to false, and raise "
            "train.grad_accumulation for less memory"
        )
    for part in parts:
        enable: Any = getattr(part, "activation_checkpointing_enable", None)
        if enable is None:
            _recompute(part)
            continue
        from transformers.modeling_layers import GradientCheckpointingLayer

        enable(activation_checkpointing_kwargs={"use_reentrant": False})
        # Its hooks, by which embedded inputs want gradients, serve reentrant checkpoints. Here they would only make
        # frozen layers, a whole vision tower, keep a graph, recompute and go backward for nothing.
        part.disable_input_require_grads()  # type: ignore[operator]
        for layer in part.modules():  # transformers recomputes in training mode alone, which frozen layers never enter
            if isinstance(layer, GradientCheckpointingLayer) and not layer.training:
                _recompute(layer)


def _recompute(module: nn.Module) -> None:
    module.forward = partial(_recomputed, module.forward)  # type: ignore[method-assign]


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    # the second pass would append to a decoder's cache of keys and values again; transformers does the same
    kwargs |= {name: None for name in ("past_key_values", "layer_past") if name in kwargs}
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
