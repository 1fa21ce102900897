"""The contract between a system and the training loop: model and losses as one module, and what of it is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from idc.training.context import Context

Batch = Mapping[str, Any]
"""Output of a dataset's collate (tensors, lists, plain values), with its number of samples (:data:`SAMPLES`)."""

SAMPLES = "num_samples"
"""Key of a batch's number of samples; the loaders of :mod:`idc.training.data` add it to what collate returns."""


class Task(nn.Module):
    """Model plus losses. The loop calls ``training_step`` and ``validate``; evaluation calls ``caption``.

    The loop averages over micro-batches of equal size and over workers. So that the gradient is the mean over all
    samples of the batch, however it is cut, ``training_step`` returns a mean over *samples*: a loss over masked tokens
    is first divided by the number of masked tokens of its own sample (:func:`mean_per_sample`), never by the
    number in the micro-batch.

    Under ZeRO-3 a parameter is whole only while the module that owns it is called: use submodules that have parameters
    of their own by calling them (``forward``), and take parameters by attribute, not from a list kept elsewhere.

    A task on top of another model freezes it (``requires_grad_(False)``) and returns it from ``base_parts``: then it
    is neither stored nor switched to training mode, while adapters inside it are trained and stored.
    """

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        return self.training_step(batch)

    def training_step(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """The scalar loss (mean over the samples) and further scalars to log (means over the samples).

        Random choices that must not depend on how the batch is cut belong in the dataset's ``get``; the loop seeds
        torch's generator (dropout) for every (seed, step, micro-batch, rank).
        """
        raise NotImplementedError

    def caption(self, batch: Batch) -> list[str]:
        """One caption per sample. Tasks without a decoder do not implement it."""
        raise NotImplementedError

    def param_groups(self) -> list[dict[str, Any]]:
        """Groups with ``name``, ``params`` and the settings of :class:`idc.training.config.GroupConfig`. Every
        trainable parameter must be in exactly one group."""
        raise NotImplementedError

    def base_parts(self) -> list[nn.Module]:
        """Submodules whose frozen weights are available elsewhere, e.g. a base model that the artifact names.

        The entry must build them with the same weights at every start of the run, on every rank.
        """
        return []

    def checkpoint_keys(self) -> set[str]:
        """Names in ``state_dict()`` that checkpoints, the best weights and the artifact hold: by default all but the
        frozen parameters, and the buffers of frozen modules, in :meth:`base_parts`."""
        frozen = self._frozen_modules()
        modules = [module for part in self.base_parts() for module in part.modules()]
        elsewhere = {id(p) for module in modules for p in module.parameters(recurse=False) if not p.requires_grad}
        elsewhere |= {id(b) for module in modules if module in frozen for b in module.buffers(recurse=False)}
        return {name for name, tensor in self.state_dict(keep_vars=True).items() if id(tensor) not in elsewhere}

    def set_training(self, mode: bool) -> None:
        """Training or evaluation mode, but what is frozen stays in evaluation mode, without dropout: a module with
        parameters of which none is trained, and a part of :meth:`base_parts` with nothing to train."""
        super().train(mode)
        if mode:
            for module in self._frozen_modules():
                module.training = False

    def train(self, mode: bool = True) -> Self:
        """:meth:`set_training`, also when torch or DeepSpeed switches the mode of a module that contains the task."""
        self.set_training(mode)
        return self

    def _frozen_modules(self) -> set[nn.Module]:
        parts = [module for module in self.modules() if any(True for _ in module.parameters())] + self.base_parts()
        frozen = [part for part in parts if not any(parameter.requires_grad for parameter in part.parameters())]
        return {module for part in frozen for module in part.modules()}

    def checkpointed_parts(self) -> list[nn.Module]:
        """Submodules for ``train.activation_checkpointing``: the blocks of a stack, or a whole transformers model,
        which recomputes each of its own layers. None of them may have batch normalisation: it would count twice."""
        return []

    def metric_names(self, validation: Any) -> set[str] | None:
        """Names of the metrics that :meth:`validate` can return for this dataset, known before the first step; None if
        only a validation can show them."""
        return None

    @torch.no_grad()
    def validate(self, loader: Iterable[Batch], context: Context) -> dict[str, float]:
        """Metrics on the validation split, by default the means of the training loss and logs. Called on all ranks,
        each with its share of the samples; the loop uses what rank 0 returns."""
        sums: dict[str, float] = {}
        count = 0
        for batch in loader:
            loss, logs = self.training_step(batch)
            size = batch[SAMPLES]
            count += size
            for name, value in {"loss": loss, **logs}.items():
                sums[name] = sums.get(name, 0.0) + float(value) * size
        parts = context.all_gather_object((count, sums))
        total = sum(count for count, _ in parts)
        names = dict.fromkeys(name for _, sums in parts for name in sums)
        return {name: sum(sums.get(name, 0.0) for _, sums in parts) / total for name in names}


def mean_per_sample(loss: Tensor, weight: Tensor) -> Tensor:
    """Mean over samples of each sample's weighted mean; ``loss`` and ``weight`` are (B, ...).

    A sample whose weights are all 0 counts as a loss of 0.
    """
    weight = weight.to(loss.dtype)
    per_sample = (loss * weight).flatten(1).sum(1) / weight.flatten(1).sum(1).clamp(min=torch.finfo(loss.dtype).tiny)
    return per_sample.mean()


def recompute_activations(task: Task) -> None:
    """Have :meth:`Task.checkpointed_parts` recompute their activations in the backward pass instead of keeping them.

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
