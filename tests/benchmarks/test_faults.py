from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.fault_table import FaultRow, fault_table, rows_elsewhere
from benchmarks.faults import FAULTS, FaultsConfig, measure_faults

ROW = {"fault": "a node lost", "where": "2 nodes", "lost_steps": 3, "recovery_s": 12.34, "final_difference": 1.25e-7,
       "note": "restarted", "command": "python x"}  # fmt: skip


def test_rows_of_other_commands_are_in_the_same_table(tmp_path: Path) -> None:
    (tmp_path / "nodes.json").write_text(json.dumps([ROW, {**ROW, "lost_steps": "0 rows", "recovery_s": None}]))
    (tmp_path / "store.jsonl").write_text(json.dumps({**ROW, "fault": "a store away"}) + "\n")
    lines = fault_table(None, rows_elsewhere(tmp_path)).splitlines()
    assert lines[0] == "| fault | where | lost | back after | final difference | note |"
    assert lines[2] == "| a node lost | 2 nodes | 3 steps | 12.3 s | 1.2e-07 | restarted |"
    assert lines[3] == "| a node lost | 2 nodes | 0 rows |  | 1.2e-07 | restarted |"
    assert lines[4].startswith("| a store away |")
    assert lines.count("- `$ python x`") == 1


@pytest.mark.parametrize("text", ["{", '{"fault": "x"}', '[{"fault": "x"}]', json.dumps([{**ROW, "lost": 1}])])
def test_a_file_that_holds_no_rows_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "nodes.json").write_text(text)
    with pytest.raises(ValueError, match=r"nodes\.json holds no rows of faults"):
        rows_elsewhere(tmp_path)


def test_the_rows_of_the_repository_are_readable() -> None:
    assert all(isinstance(row, FaultRow) for row in rows_elsewhere())


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match=r"injected\.only: unknown lightning; known are worker_killed, "):
        list(measure_faults(FaultsConfig(only=("lightning",))))
    assert set(FAULTS) >= {"disk_full", "tracking_away"}
