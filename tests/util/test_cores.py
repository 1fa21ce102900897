"""The number of usable cores: affinity mask, CPU quota of a container, systems that have neither; and what they compute
in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from idc.util.cores import bfloat16_is_native, cpu_quota, usable_cores


def groups(root: Path, own: str, quotas: dict[str, str]) -> Path:
    """A system's files of the control group ``own`` and of the ``quotas`` by group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"1:cpu:/elsewhere\n0::/{own}\n")
    (root / "sys/fs/cgroup" / own).mkdir(parents=True)
    for group, text in quotas.items():
        (root / "sys/fs/cgroup" / group / "cpu.max").write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("own", "quotas", "expected"),
    [
        ("pods/one", {"pods": "250000 100000", "pods/one": "max 100000"}, 2.5),
        ("pods/one", {"pods": "250000 100000", "pods/one": "50000 100000"}, 0.5),
        ("", {"": "150000 50000"}, 3),
        ("pods", {"pods": "max 100000"}, None),
        ("", {}, None),
    ],
)
def test_the_smallest_quota_of_the_own_group_and_those_above_counts(
    own: str, quotas: dict[str, str], expected: float | None, tmp_path: Path
) -> None:
    assert cpu_quota(groups(tmp_path / "root", own, quotas)) == expected
    assert cpu_quota(tmp_path / "no control groups") is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (64.0, 8), (1.5, 2), (0.25, 1)])
def test_a_quota_limits_the_cores_and_is_rounded_up(
    quota: float | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("idc.util.cores.cpu_quota", lambda: quota)
    assert usable_cores() == cores


@pytest.mark.parametrize(
    ("cpuinfo", "native"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16 avx512_vnni\nbugs\t\t:\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx2 avx_vnni\n", False),
        ("Features\t: fp asimd bf16\n", False),
        (None, False),
    ],
)
def test_bfloat16_is_native_where_the_processor_says_so(tmp_path: Path, cpuinfo: str | None, native: bool) -> None:
    (tmp_path / "proc").mkdir()
    if cpuinfo is not None:
        (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
    assert bfloat16_is_native(tmp_path) == native


def test_torch_says_the_same_of_this_processor() -> None:
    import torch

    assert bfloat16_is_native() == torch.cpu._is_avx512_bf16_supported()
