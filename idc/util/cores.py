"""How many cores this process may use, and whether they compute in bfloat16."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path


def usable_cores() -> int:
    """Cores that this process may run on: those of its affinity mask (all of the machine's on systems without one), at
    most the CPU quota of its container, rounded up as Java and Ray do."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The smallest CPU quota of this process's control group (cgroup v2) and those above it, in cores; None without a
    quota.

    Args:
        root: folder with ``proc`` and ``sys``.
    """
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        group_path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
        if group_path is not None:
            groups = root / "sys/fs/cgroup"
            quotas = [
                _quota(group)
                for group in (groups / group_path, *(groups / group_path).parents)
                if group.is_relative_to(groups)
            ]
            return min((quota for quota in quotas if quota is not None), default=None)
    return None


def bfloat16_is_native(root: Path = Path("/")) -> bool:
    """Whether this processor has AVX-512's instructions for products in bfloat16; others emulate them, slower than
    float32.

    Args:
        root: folder with ``proc``.
    """
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any("avx512_bf16" in line.split() for line in lines if line.startswith("flags"))


def _quota(group: Path) -> float | None:
    """Quota of one group, from its file ``cpu.max``: "max 100000" or "150000 100000" (microseconds per period)."""
    with suppress(OSError):  # the machine's own root group has no such file
        quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    return None
