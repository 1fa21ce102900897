"""The machine and the torch build of a measurement: what decides whether two figures can be compared."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from idc.cores import usable_cores

FLAGS = (
    "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8",
    "asimddp", "bf16", "i8mm", "sve", "sve2",
)  # fmt: skip
"""Processor flags that decide which kernels torch, MKL and oneDNN choose (x86, then ARM)."""
VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_AFFINITY", "KMP_BLOCKTIME",
    "THP_MEM_ALLOC_ENABLE", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "ATEN_CPU_CAPABILITY", "LD_PRELOAD",
)  # fmt: skip
"""Environment variables that change the speed of torch; those that are set are recorded."""


class Machine(BaseModel):
    """Hardware of a measurement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    processor: str
    flags: tuple[str, ...]
    """Those of :data:`FLAGS` that the processor has."""
    cores: int
    """Cores that this process may use."""
    memory_gib: float | None = None
    gpu: str | None = None
    """Name of the GPU, if the measurement used one."""

    def kind(self) -> tuple[str | int | None, ...]:
        """Equal for machines whose absolute figures may be compared. Processors of clouds share names such as
        "AMD EPYC Processor"; the flags tell generations apart."""
        return (self.processor, *self.flags, self.cores, self.gpu)

    def text(self) -> str:
        """For tables: "AMD EPYC Processor (avx2), 2 cores, 24 GiB"."""
        memory = "" if self.memory_gib is None else f", {self.memory_gib:.0f} GiB"
        flags = f" ({', '.join(self.flags)})" if self.flags else ""
        return f"{f'{self.gpu}; ' if self.gpu else ''}{self.processor}{flags}, {self.cores} cores{memory}"


class TorchBuild(BaseModel):
    """Build of torch, and the instructions that it uses here."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    capability: str
    """Instruction set of torch's own kernels, e.g. AVX512."""
    blas: str
    """E.g. mkl, with its version."""
    onednn: str | None
    """Version of oneDNN; None if torch was built without."""
    cuda: str | None = None


def this_machine(device: str = "cpu") -> Machine:
    """This machine, with the GPU if ``device`` is one."""
    processor, flags = platform.processor() or platform.machine(), set[str]()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        values = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
        processor = " ".join(values.get("model name", processor).split())
        flags = set(values.get("flags", values.get("Features", "")).split())
    memory = None
    with contextlib.suppress(ValueError, OSError, AttributeError):
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    gpu = None
    if device.startswith("cuda"):
        import torch

        gpu = torch.cuda.get_device_name(device)
    return Machine(
        processor=processor,
        flags=tuple(flag for flag in FLAGS if flag in flags),
        cores=usable_cores(),
        memory_gib=memory,
        gpu=gpu,
    )


def torch_build() -> TorchBuild:
    import torch

    text = torch.__config__.show()
    mkl = re.search(r"Math Kernel Library Version (\S+)", text)
    onednn = re.search(r"(?:MKL-DNN|oneDNN)\s+v(\S+)", text)
    blas = re.search(r"BLAS_INFO=(\w+)", text)
    return TorchBuild(
        version=str(torch.__version__),
        capability=torch.backends.cpu.get_cpu_capability(),
        blas=" ".join(filter(None, [blas and blas[1], mkl and mkl[1]])) or "unknown",
        onednn=onednn[1] if onednn else None,
        cuda=torch.version.cuda,
    )


def cores_in_use() -> float:
    """Cores that all processes together used during the next two seconds, while this process waits. Unlike the load
    average, it does not count what this process did just before."""
    import psutil

    return float(psutil.cpu_percent(interval=2.0)) / 100 * (psutil.cpu_count() or 1)
