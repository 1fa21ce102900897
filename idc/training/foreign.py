"""Checkpoints of other programs: read without executing code in them, and converted without losing a tensor.

Unpickling may call any function. :func:`read_checkpoint` reads with ``weights_only=True``. Some official files hold
objects that this mode refuses: settings as ``argparse.Namespace`` and ``EasyDict``, numbers and lists of
``ruamel.yaml`` (lists even as safe globals), a learning-rate schedule of the authors' own, callbacks of Lightning.
Those files are read again by an unpickler that creates an inert placeholder for each of these classes, imports none of
them, and refuses every other name.
"""

from __future__ import annotations

import json
import pickle
import types
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_TORCH_NAMES = frozenset(
    {
        "collections.OrderedDict",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_tensor",
        "torch._utils._rebuild_tensor_v2",
        "torch.nn.parameter.Parameter",
        "torch.Size",
        "torch.device",
        "_codecs.encode",
        *(f"torch.{kind}" for kind in ("float16", "bfloat16", "float32", "float64", "int32", "int64", "bool", "uint8")),
    }
)
"""Names in the pickle of a tensor; calling them only creates tensors."""


class _Placeholder:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


_PLACEHOLDERS: dict[str, type] = {
    "argparse.Namespace": _Placeholder,
    "easydict.EasyDict": dict,
    "ruamel.yaml.comments.CommentedMap": dict,
    "ruamel.yaml.comments.CommentedSeq": list,
    "ruamel.yaml.scalarfloat.ScalarFloat": float,
    "ruamel.yaml.scalarint.ScalarInt": int,
    "src.rtransformer.optimization.WarmupLinearSchedule": _Placeholder,
    "numpy.core.multiarray.scalar": _Placeholder,
    "numpy._core.multiarray.scalar": _Placeholder,
    "numpy.dtype": _Placeholder,
}
CONVERSION = "conversion.json"
"""File next to converted weights: their origin, and the dropped tensors."""
_SHOWN = 10
"""Faults or names listed in an error message; the others are counted."""
_PLACEHOLDER_PACKAGES = ("ruamel.yaml.", "pytorch_lightning.", "lightning.")


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full in _TORCH_NAMES:
            return super().find_class(module, name)
        if full in _PLACEHOLDERS or full.startswith(_PLACEHOLDER_PACKAGES):
            return type(name, (_PLACEHOLDERS.get(full, _Placeholder),), {})
        raise pickle.UnpicklingError(f"it refers to {full}, which no file of weights needs")


def _restricted_load(file: Any, **kwargs: Any) -> Any:
    return _RestrictedUnpickler(file, **kwargs).load()


def read_checkpoint(path: Path | str) -> Any:
    """The object that ``torch.save`` wrote, with all tensors on the CPU (memory-mapped where the format allows), or the
    tensors of a ``.safetensors`` file.

    Raises:
        ValueError: the file is of another format, damaged, or refers to something that weights do not need.
    """
    if Path(path).suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
    reader: Any = types.ModuleType("restricted_pickle")
    reader.Unpickler, reader.load = _RestrictedUnpickler, _restricted_load
    try:
        options: dict[str, Any] = {"map_location": "cpu", "mmap": zipfile.is_zipfile(path)}
        try:
            return torch.load(path, weights_only=True, **options)
        except pickle.UnpicklingError:  # classes of other programs, of which the restricted reader makes placeholders
            return torch.load(path, weights_only=False, pickle_module=reader, **options)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not a checkpoint that can be read safely: {error}") from None


def find_state(checkpoint: Any, key: str | None, path: Path | str) -> dict[str, Tensor]:
    """The state dict under ``key`` of a checkpoint, or the checkpoint itself if it is a bare state dict (required if
    ``key`` is None), without the prefix of DistributedDataParallel.

    Raises:
        ValueError: there is none.
    """
    inner = checkpoint.get(key, checkpoint) if isinstance(checkpoint, Mapping) and key is not None else checkpoint
    if not isinstance(inner, Mapping) or not inner or not all(isinstance(value, Tensor) for value in inner.values()):
        content = ", ".join(map(str, checkpoint)) if isinstance(checkpoint, Mapping) else type(checkpoint).__name__
        where = "" if key is None else f" under {key!r}"
        raise ValueError(f"{path} holds no state dict{where}; it holds {content[:200]}")
    return {name.removeprefix("module."): tensor for name, tensor in inner.items()}


def layout_faults(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], owner: str) -> list[str]:
    """The reasons why ``state`` does not load strictly into ``owner``, whose state dict (e.g. on the meta device) is
    ``expected``: missing, surplus and misshapen tensors."""
    faults = [f"lacks {name}" for name in expected if name not in state]
    faults += [f"has {name}, which {owner} does not" for name in state if name not in expected]
    faults += [
        f"has {name} as {tuple(state[name].shape)}, {owner} as {tuple(value.shape)}"
        for name, value in expected.items()
        if name in state and state[name].shape != value.shape
    ]
    return faults


def refuse_faults(faults: Sequence[str], path: Path | str, owner: str) -> None:
    """Raise the faults of :func:`layout_faults`, if there are any.

    Raises:
        ValueError: naming the first ones.
    """
    if faults:
        shown = "\n  ".join([*faults[:_SHOWN], *([f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else [])])
        raise ValueError(f"{path} does not fit {owner}:\n  {shown}")


@dataclass(frozen=True)
class Dropped:
    """A tensor, or rows of one, that the conversion leaves out on purpose."""

    name: str
    shape: tuple[int, ...]
    reason: str


class Ledger:
    """A foreign state dict of which every tensor must be used or dropped with a reason; :meth:`close` checks it.

    Args:
        state: the foreign tensors.
        source: their name in errors.
    """

    def __init__(self, state: Mapping[str, Tensor], source: str) -> None:
        self.state, self.source = state, source
        self.dropped: list[Dropped] = []
        self._open = dict.fromkeys(state)

    def has(self, name: str) -> bool:
        return name in self.state

    def count(self, pattern: str) -> int:
        """Number of tensors named like ``pattern`` with 0, 1, ... in its braces, up to the first gap."""
        number = 0
        while pattern.format(number) in self.state:
            number += 1
        return number

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._find(name).shape)

    def take(self, name: str, shape: Sequence[int] | None = None) -> Tensor:
        """A tensor to use, floats as float32.

        Raises:
            ValueError: it is missing, or has another shape than ``shape``.
        """
        tensor = self._find(name)
        if shape is not None and tuple(tensor.shape) != tuple(shape):
            raise ValueError(f"{self.source}: {name} is {tuple(tensor.shape)}, expected {tuple(shape)}")
        self._open.pop(name, None)
        return tensor.detach().float() if tensor.is_floating_point() else tensor.detach()

    def drop(self, prefix: str, reason: str) -> None:
        """Leave out all unused tensors whose names begin with ``prefix``."""
        for name in [name for name in self._open if name.startswith(prefix)]:
            del self._open[name]
            self.dropped.append(Dropped(name, tuple(self.state[name].shape), reason))

    def note(self, name: str, shape: Sequence[int], reason: str) -> None:
        """Record that a part of a tensor that was taken is left out."""
        self.dropped.append(Dropped(name, tuple(shape), reason))

    def inner(self, prefix: str) -> Ledger:
        """The tensors whose names begin with ``prefix`` as a separate ledger, named without it; :meth:`take_inner`
        marks them as used here."""
        return Ledger(
            {name.removeprefix(prefix): tensor for name, tensor in self.state.items() if name.startswith(prefix)},
            f"{self.source}, {prefix.rstrip('.')}",
        )

    def take_inner(self, prefix: str, inner: Ledger) -> None:
        """Close a ledger of :meth:`inner`, mark its tensors as used and add its dropped ones."""
        inner.close()
        for name in inner.state:
            self._open.pop(prefix + name, None)
        self.dropped += [Dropped(prefix + item.name, item.shape, item.reason) for item in inner.dropped]

    def close(self) -> None:
        """Check that every tensor was used or dropped.

        Raises:
            ValueError: naming the tensors that were neither used nor dropped.
        """
        if left := list(self._open):
            shown = ", ".join(left[:_SHOWN]) + (f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else "")
            raise ValueError(
                f"{self.source} has {len(left)} tensors that this format does not have: {shown}. "
                "Is it a checkpoint of another kind?"
            )

    def _find(self, name: str) -> Tensor:
        if name not in self.state:
            raise ValueError(f"{self.source} has no {name}; is it a checkpoint of another kind?")
        return self.state[name]


def dropped_listing(dropped: Sequence[Dropped]) -> str:
    """The dropped tensors as text, grouped by reason."""
    reasons: dict[str, list[Dropped]] = {}
    for item in dropped:
        reasons.setdefault(item.reason, []).append(item)
    return "\n".join(
        line
        for reason, items in reasons.items()
        for line in (f"dropped, {reason}:", *(f"  {item.name} {item.shape}" for item in items))
    )


def dropped_before(out: Path, note: Mapping[str, Any], overwrite: bool) -> list[Dropped] | None:
    """What a conversion that is complete has dropped; None if there is none, or it is to be replaced.

    Args:
        note: the origin, with the hashes of the files and the settings.

    Raises:
        ValueError: the folder holds anything else.
    """
    if overwrite or not out.exists():
        return None
    conversion = json.loads(path.read_text(encoding="utf-8")) if (path := out / CONVERSION).is_file() else {}
    if any(conversion.get(key) != value for key, value in note.items()):
        raise ValueError(f"{out} exists and is not this conversion; choose another folder, or pass --overwrite")
    return [Dropped(item["name"], tuple(item["shape"]), item["reason"]) for item in conversion["dropped"]]


def conversion_text(note: Mapping[str, Any], dropped: Sequence[Dropped]) -> str:
    """The content of :data:`CONVERSION`."""
    return json.dumps({**note, "dropped": [asdict(item) for item in dropped]}, indent=1, ensure_ascii=False) + "\n"
