"""How a captioner is loaded: device, number format, optimisations. The same settings in every command that captions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

from pydantic import Field

from idc.captioning.contract import Captioner, Dtype
from idc.config import ConfigModel, load
from idc.systems import load_captioner, optimisation_faults

LoadCaptioner = Callable[[], Captioner]
"""Loads a captioner; picklable, because every actor loads its own."""


class LoadConfig(ConfigModel):
    """How a captioner is loaded."""

    device: str | None = Field(None, min_length=1)
    """Torch device of the captioner, e.g. cuda. Default: cuda where its process has a GPU, else cpu."""
    dtype: Dtype = "float32"
    """bfloat16: matrix products and convolutions in bfloat16, for hardware that has it; captions may differ. A CPU
    without it emulates it, slower than float32."""
    speed: dict[str, bool] = Field(default_factory=dict)
    """Optimisations to switch on or off, by their names in the artifact's system, e.g. `{compile: true}`. They change
    no result but by the rounding of float32."""

    def loading_identity(self) -> dict[str, str]:
        """The loading settings that captions depend on, where they differ from the default; for fingerprints."""
        return {} if self.dtype == "float32" else {"dtype": self.dtype}


DEFAULTS = LoadConfig()
LOADING = frozenset(LoadConfig.model_fields)
"""Names of these settings in a job."""


class CaptionerLoader:
    """Loads the captioner of an artifact; picklable.

    Args:
        gpus: number of GPUs of the process that loads it; the default device is cuda if there are any.
        threads: number of torch threads of the whole process; by default unchanged.

    Raises:
        ValueError: the folder is not an artifact, or its system does not have an optimisation. This is found before
            anything is started.
    """

    def __init__(self, artifact: str, config: LoadConfig, gpus: float = 0.0, threads: int | None = None) -> None:
        if faults := list(optimisation_faults(artifact, config.speed)):
            raise ValueError("\n".join(faults))
        self.artifact, self.threads = artifact, threads
        self.device = config.device or ("cuda" if gpus > 0 else "cpu")
        self.dtype, self.speed = config.dtype, config.speed

    def __call__(self) -> Captioner:
        if self.threads is not None:
            import torch

            torch.set_num_threads(self.threads)
        return load_captioner(self.artifact, self.device, self.dtype, self.speed)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``, ``--dtype`` and ``--speed`` to a command that does not take settings as ``name=value``."""
    parser.add_argument("--device", help="torch device of the captioner, e.g. cuda (default: cpu)")
    parser.add_argument("--dtype", choices=get_args(Dtype), help="number format of the captioner (default: float32)")
    parser.add_argument(
        "--speed", metavar="NAME=BOOL", action="append", default=[],
        help="switch an optimisation of the artifact's system on or off, e.g. compile=true; may be repeated",
    )  # fmt: skip


def given_options(args: argparse.Namespace) -> LoadConfig:
    """The settings of :func:`add_options`.

    Raises:
        ValueError: an optimisation is not of the form NAME=BOOL.
    """
    values: dict[str, Any] = {name: value for name in ("device", "dtype") if (value := getattr(args, name)) is not None}
    values |= {f"speed.{name}": value for name, value in map(_named, args.speed)}
    return load(LoadConfig, None, values)


def _named(text: str) -> Sequence[Any]:
    name, _, value = text.partition("=")
    if value not in ("true", "false"):
        raise ValueError(f"--speed {text}: expected NAME=true or NAME=false")
    return name, value == "true"


def loading_faults(artifact: str | None, config: LoadConfig) -> Iterator[str]:
    """For ``preflight`` of a job: optimisations that the artifact's system does not have."""
    if artifact is not None and config.speed:
        try:
            yield from optimisation_faults(artifact, config.speed)
        except ValueError as error:
            yield f"artifact: {error}"
