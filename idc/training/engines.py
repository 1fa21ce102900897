"""Two engines behind one interface: plain torch, and DeepSpeed. They hold the parameters and the optimizer.

The loop sets the learning rates itself before every step, so that no scheduler has state to save. Both engines write
and read the names of ``Task.checkpoint_keys()`` alone; the loop compares them with a checkpoint's before it loads it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from idc.training.config import GroupConfig, TrainConfig
from idc.training.context import Context
from idc.training.deepspeed import (
    TAG,
    clip_deepspeed_gradients,
    deepspeed_config,
    quiet_deepspeed,
    reading_universal,
    universal_checkpoint,
)
from idc.training.linears import onednn_pays, use_onednn
from idc.training.task import Batch, Task, recompute_activations
from idc.util.loopback import keep_gloo_on_loopback

CLIP_NORM = "clip_norm"
"""Key of a group's own limit, which no optimizer knows."""
Logs = dict[str, Tensor | float]


class ClippedPart(NamedTuple):
    """Parameters whose gradient is clipped to one norm.

    Attributes:
        name: of the group; empty for all groups without a limit of their own.
        limit: of the norm; 0 does not clip.
    """

    name: str
    parameters: Sequence[nn.Parameter]
    limit: float


class Engine:
    """A task in training mode with its optimizer: ``accumulate`` for every micro-batch of a step, then ``step``.

    Attributes:
        keys: the names of :func:`checkpoint_keys`.
        clipped: all groups without a limit of their own together, then each other group.
        group_norms: gradient norms of the last step, before clipping, of the groups that have a limit of their own.
    """

    def __init__(self, task: Task, groups: list[dict[str, Any]], context: Context, train: TrainConfig):
        self.task = task
        self.keys = checkpoint_keys(task)
        self.context = context
        self.train = train
        self.autocast = torch.autocast(
            context.device.type, torch.bfloat16, enabled=train.precision == "bf16", cache_enabled=train.zero_stage < 3
        )
        shared = [parameter for group in groups if group[CLIP_NORM] is None for parameter in group["params"]]
        self.clipped = [ClippedPart("", shared, train.clip_norm)] if shared else []
        self.clipped += [
            ClippedPart(group["name"], group["params"], limit)
            for group in groups
            if (limit := group[CLIP_NORM]) is not None
        ]
        self.group_norms: Mapping[str, Tensor] = {}

    def _total_norm(self, norms: list[Tensor]) -> Tensor:
        """The norm of all clipped parts together, from the norm of each."""
        self.group_norms = {part.name: norm for part, norm in zip(self.clipped, norms, strict=True) if part.name}
        return torch.stack(norms).norm() if len(norms) > 1 else norms[0]

    def accumulate(self, batch: Batch) -> tuple[Tensor, Logs]:
        """Forward and backward of one micro-batch. The detached loss and the logs."""
        raise NotImplementedError

    def step(self, learning_rates: list[float]) -> Tensor | float:
        """Average the gradients, clip, update with one rate per group. Returns the gradient's norm before clipping."""
        raise NotImplementedError

    @contextlib.contextmanager
    def gathered_for_eval(self) -> Iterator[Task]:
        """The task with all its parameters on every rank, in eval mode, for validation."""
        self.task.set_training(False)
        try:
            with self._gathered(), torch.no_grad(), self.autocast:
                yield self.task
        finally:
            self.task.set_training(True)

    def _gathered(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def full_state_dict(self) -> dict[str, Tensor]:
        """The stored parameters and buffers on the CPU of rank 0 (empty on the others). All ranks call it."""
        return self._state(self.keys)

    def _state(self, names: frozenset[str]) -> dict[str, Tensor]:
        return cpu_state(_only(self.task.state_dict(), names)) if self.context.rank == 0 else {}

    def save(self, folder: Path) -> None:
        """Write this rank's part of the state into the checkpoint ``folder``. All ranks call it."""
        raise NotImplementedError

    def load(self, folder: Path, saved_world_size: int) -> None:
        """Read what ``save`` wrote; weights that are not stored stay as the entry built them."""
        raise NotImplementedError


def param_groups(task: Task) -> tuple[list[dict[str, Any]], list[GroupConfig]]:
    """The task's groups for :func:`make_engine`, and their schedules.

    Raises:
        ValueError: if a trainable parameter is in no group or in two, or a group has an unknown setting.
    """
    groups, schedules = [], []
    names = {id(parameter): name for name, parameter in task.named_parameters()}
    seen: dict[int, str] = {}
    for group in task.param_groups():
        settings = {key: value for key, value in group.items() if key not in ("name", "params")}
        parameters = [parameter for parameter in group["params"] if parameter.requires_grad]
        for parameter in parameters:
            if id(parameter) in seen:
                raise ValueError(
                    f"parameter {names.get(id(parameter))} is in two groups: {seen[id(parameter)]} and {group['name']}"
                )
            seen[id(parameter)] = group["name"]
        if not parameters:
            continue
        schedule = GroupConfig(**settings)
        groups.append({"params": parameters, "lr": schedule.lr, "weight_decay": schedule.weight_decay})
        schedules.append(schedule)
        groups[-1] |= {"name": group["name"], CLIP_NORM: schedule.clip_norm}
    left_out = [name for name, p in task.named_parameters() if p.requires_grad and id(p) not in seen]
    if left_out:
        raise ValueError(f"param_groups() leaves out trainable parameters: {', '.join(left_out[:8])}")
    return groups, schedules


def _without(groups: list[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key not in keys} for group in groups]


def checkpoint_keys(task: Task) -> frozenset[str]:
    """The names that ``task.checkpoint_keys()`` returns.

    Raises:
        ValueError: if the task has no such tensor, or a trained parameter is not among them.
    """
    state = task.state_dict(keep_vars=True)
    names = frozenset(task.checkpoint_keys())
    if unknown := sorted(names - state.keys()):
        raise ValueError(
            f"checkpoint_keys() returns names that the task's state_dict() lacks: {', '.join(unknown[:8])}"
        )
    kept = {id(state[name]) for name in names}  # of two names of a tied weight, one is enough
    lost = [name for name, tensor in state.items() if tensor.requires_grad and id(tensor) not in kept]
    if lost:
        raise ValueError(f"checkpoint_keys() leaves out trained parameters: {', '.join(lost[:8])}")
    return names


class TorchEngine(Engine):
    """AdamW and one all-reduce of the whole gradient at the end of a step."""

    def __init__(self, task: Task, groups: list[dict[str, Any]], context: Context, train: TrainConfig):
        super().__init__(task.to(context.device), groups, context, train)
        kind = torch.optim.AdamW if train.optimizer == "adamw" else torch.optim.Adam
        fused = context.device.type == "cpu" or None  # one pass over parameter, gradient and averages
        self.optimizer = kind(_without(groups, CLIP_NORM), betas=train.betas, eps=train.eps, fused=fused)
        self.parameters = [parameter for group in groups for parameter in group["params"]]
        if context.world_size > 1:
            state = task.state_dict(keep_vars=True)
            elsewhere = {id(tensor) for name, tensor in state.items() if name not in self.keys}
            for tensor in [*task.parameters(), *task.buffers()]:
                if id(tensor) not in elsewhere:  # a base model has the same weights on every rank
                    dist.broadcast(tensor.data, 0)

    def accumulate(self, batch: Batch) -> tuple[Tensor, Logs]:
        with self.autocast:
            loss, logs = self.task.training_step(batch)
        (loss / self.train.grad_accumulation).backward()
        return loss.detach(), logs

    def step(self, learning_rates: list[float]) -> Tensor | float:
        for parameter in self.parameters:
            if parameter.grad is None:  # as DeepSpeed does: a parameter that was not used has a gradient of 0
                parameter.grad = torch.zeros_like(parameter)
        if self.context.world_size > 1:
            self._all_reduce()
        clip = torch.nn.utils.clip_grad_norm_
        norm = self._total_norm([clip(part.parameters, part.limit or float("inf")) for part in self.clipped])
        for group, rate in zip(self.optimizer.param_groups, learning_rates, strict=True):
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def _all_reduce(self) -> None:
        """The mean of the gradients over the ranks, in buckets of about 64 MB."""
        bucket: list[Tensor] = []
        size = 0
        for n, parameter in enumerate(self.parameters):
            assert parameter.grad is not None
            bucket.append(parameter.grad)
            size += parameter.grad.numel()
            if size < 1 << 24 and n + 1 < len(self.parameters):
                continue
            flat = torch.cat([grad.flatten() for grad in bucket])
            dist.all_reduce(flat)
            flat /= self.context.world_size
            for grad, part in zip(bucket, flat.split([grad.numel() for grad in bucket]), strict=True):
                grad.copy_(part.view_as(grad))
            bucket, size = [], 0

    def save(self, folder: Path) -> None:
        if self.context.rank == 0:
            state = _only(self.task.state_dict(), self.keys)
            torch.save({"task": state, "optimizer": self.optimizer.state_dict()}, folder / "torch.pt")

    def load(self, folder: Path, saved_world_size: int) -> None:
        try:
            state = torch.load(folder / "torch.pt", map_location=self.context.device, weights_only=True)
        except torch.OutOfMemoryError:
            raise
        except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
            raise unreadable(folder, error) from None
        self.task.load_state_dict(state["task"], strict=False)
        self.optimizer.load_state_dict(state["optimizer"])


class _Autocast(nn.Module):
    """The task's step under autocast, as the module that DeepSpeed calls."""

    def __init__(self, task: Task, autocast: torch.autocast):
        super().__init__()
        self.task, self.autocast = task, autocast

    def forward(self, batch: Batch) -> tuple[Tensor, Logs]:
        with self.autocast:
            loss, logs = self.task(batch)
            return loss, logs


class DeepSpeedEngine(Engine):
    """DeepSpeed's engine: ZeRO stages 0 to 3 by setting.

    If part of the task is not stored, DeepSpeed leaves all frozen parameters out of its checkpoint, and those that are
    stored nevertheless are in a file of ours.

    bf16 is the same autocast over fp32 parameters as in :class:`TorchEngine`, inside the module, so that both engines
    compute the same; DeepSpeed's own ``bf16`` and ``torch_autocast`` sections (16-bit communication) can be set in
    ``deepspeed_extra``.
    """

    FROZEN = "frozen.pt"

    def __init__(self, task: Task, groups: list[dict[str, Any]], context: Context, train: TrainConfig):
        quiet_deepspeed()
        os.environ.setdefault("DS_ACCELERATOR", context.device.type)
        import deepspeed

        # no compiler at run time: DeepSpeed would build an extension for sums over shared memory when CPU ranks start
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        super().__init__(task, groups, context, train)
        self.deepspeed = deepspeed
        self.elsewhere = frozenset(task.state_dict()) - self.keys
        frozen = (name for name, p in task.named_parameters(remove_duplicate=False) if not p.requires_grad)
        self.frozen = self.keys.intersection(frozen)
        self.module = _Autocast(task, self.autocast)

        def leave_out(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
            """Remove what is not stored from the state that DeepSpeed writes, buffers included."""
            for name in self.elsewhere:
                state.pop(f"{prefix}task.{name}", None)

        self.module.register_state_dict_post_hook(leave_out)
        if not dist.is_initialized():  # one process, without Ray or torchrun
            keep_gloo_on_loopback()
            backend = "nccl" if context.device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        os.environ.setdefault("LOCAL_RANK", str(context.device.index or 0))  # DeepSpeed refuses to start without it
        deepspeed.init_distributed(dist_init_required=False, verbose=False)
        for parameter in task.parameters():  # channels-last ones; DeepSpeed broadcasts the bytes of the last dimension
            if parameter.dim() and parameter.stride(-1) != 1:
                parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
        settings = deepspeed_config(train, context.world_size, fused=context.device.type == "cpu")
        self.clips = any(group[CLIP_NORM] is not None for group in groups)
        """Whether this engine clips, because DeepSpeed knows one norm."""
        if self.clips:
            settings["gradient_clipping"] = 0.0
        self.engine = deepspeed.initialize(
            model=self.module, model_parameters=_without(groups, "name", CLIP_NORM), config=settings,
            dist_init_required=False,
        )[0]  # fmt: skip

    def accumulate(self, batch: Batch) -> tuple[Tensor, Logs]:
        loss, logs = self.engine(batch)
        self.engine.backward(loss)
        if not self.engine.is_gradient_accumulation_boundary():
            self.engine.step()  # only counts the micro-batch
        return loss.detach(), logs

    def step(self, learning_rates: list[float]) -> Tensor | float:
        for group, rate in zip(self.engine.optimizer.param_groups, learning_rates, strict=True):
            group["lr"] = rate
        norm = None
        if self.clips:
            stage = self.train.zero_stage
            norm = self._total_norm(
                [clip_deepspeed_gradients(part.parameters, part.limit, stage) for part in self.clipped]
            )
        elif not self.train.zero_stage:  # DeepSpeed has the norm with ZeRO only
            grads = [parameter.grad for parameter in self.task.parameters() if parameter.grad is not None]
            norm = torch.nn.utils.get_total_norm(grads)
        self.engine.step()
        return norm if norm is not None else self.engine.get_global_grad_norm()

    def _gathered(self) -> contextlib.AbstractContextManager[Any]:
        if self.train.zero_stage < 3:
            return super()._gathered()
        from deepspeed.runtime.zero.stage3 import unwrap_model_for_generation

        return unwrap_model_for_generation(self.engine)  # type: ignore[no-any-return]

    def _state(self, names: frozenset[str]) -> dict[str, Tensor]:
        if self.train.zero_stage < 3:
            return super()._state(names)
        full: dict[str, Tensor] = {}
        for prefix, module in self.task.named_modules(remove_duplicate=False):
            dot = f"{prefix}." if prefix else ""
            parameters = module.named_parameters(recurse=False, remove_duplicate=False)
            tensors = {f"{dot}{name}": parameter for name, parameter in parameters if f"{dot}{name}" in names}
            with self.deepspeed.zero.GatheredParameters(list({id(p): p for p in tensors.values()}.values())):
                if self.context.rank == 0:
                    buffers = {f"{dot}{name}": buffer for name, buffer in module.named_buffers(recurse=False)}
                    full.update(cpu_state(tensors | _only(buffers, names)))
        return full

    def save(self, folder: Path) -> None:
        self.engine.save_checkpoint(str(folder), tag=TAG, exclude_frozen_parameters=bool(self.elsewhere))
        if self.elsewhere:
            frozen = self._state(self.frozen)
            if self.context.rank == 0:
                torch.save(frozen, folder / self.FROZEN)

    def load(self, folder: Path, saved_world_size: int) -> None:
        options = {"tag": TAG, "load_module_strict": not self.elsewhere}
        if saved_world_size != self.context.world_size and self.train.zero_stage:
            with universal_checkpoint(folder, self.context) as whole, reading_universal(self.engine):
                path, _ = self.engine.load_checkpoint(str(whole), **options)
        else:
            path, _ = self.engine.load_checkpoint(str(folder), **options)
        if path is None:
            raise ValueError(f"{folder} has no DeepSpeed checkpoint; remove this folder to resume from an older one")
        if self.elsewhere:
            frozen = torch.load(folder / self.FROZEN, weights_only=True)
            for name, tensor in frozen.items():
                parameter = self.task.get_parameter(name)
                sharded = self.train.zero_stage == 3
                with self.deepspeed.zero.GatheredParameters(parameter, modifier_rank=0, enabled=sharded):
                    if self.context.rank == 0 or not sharded:
                        parameter.data.copy_(tensor)


def unreadable(folder: Path, error: Exception) -> ValueError:
    """The error of a checkpoint that cannot be read."""
    reason = " ".join(str(error).split())[:200]
    return ValueError(
        f"the checkpoint {folder} cannot be read ({reason}); if it is damaged, remove this folder to resume from an "
        "older one"
    )


def _only(state: Mapping[str, Tensor], names: frozenset[str]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if name in names}


def cpu_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the CPU (tied weights are stored twice, so that loading is strict)."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}


def make_engine(
    task: Task, groups: list[dict[str, Any]], context: Context, train: TrainConfig, onednn: bool | None = None
) -> Engine:
    """The engine that ``train`` names, around ``task`` in training mode.

    Args:
        onednn: compute linear layers by oneDNN (on a CPU in fp32, not under ZeRO-3); default: where
            :func:`idc.training.linears.onednn_pays`.

    Raises:
        ValueError: if the task's weights do not fit ``train.precision`` or the engine, or it has no part that can be
            recomputed.
    """
    _check_parameters(task, train)
    task.set_training(True)
    suits = context.device.type == "cpu" and train.precision == "fp32" and train.zero_stage < 3
    if suits and (onednn_pays() if onednn is None else onednn):
        use_onednn(task)
    if train.activation_checkpointing:
        recompute_activations(task)
    if train.engine == "torch":
        return TorchEngine(task, groups, context, train)
    return DeepSpeedEngine(task, groups, context, train)


def _check_parameters(task: Task, train: TrainConfig) -> None:
    for name, parameter in task.named_parameters():
        if train.engine == "deepspeed" and not parameter.dim():
            raise ValueError(
                f"train.engine: DeepSpeed cannot take {name}, a parameter of no dimension; set it to torch"
            )
        if parameter.dtype not in (torch.bfloat16, torch.float16):
            continue
        if parameter.requires_grad:
            raise ValueError(
                f"trained parameter {name} is {parameter.dtype}, in which small updates are lost; cast what is trained "
                "to float32 (train.precision=bf16 still computes in bfloat16)"
            )
        if train.precision == "fp32":
            raise ValueError(
                f"frozen parameter {name} is {parameter.dtype}, and train.precision=fp32 does not cast between types; "
                "take train.precision=bf16, or load the base model in float32"
            )
