"""Faults injected into the real commands, in processes of their own: those of the table in BENCHMARKS.md."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fault_suite import FAULTS, FaultRow, FaultsConfig, Lab

pytestmark = [pytest.mark.slow, pytest.mark.ray]
CONFIG = FaultsConfig()
INTERVALS_LOST = {"checkpoint_truncated": 2, "checkpoint_flipped_ray": 2}
"""Checkpoint intervals that may be lost, if not one."""
DATA = {"data_actor_killed", "data_driver_killed"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    made = Lab(tmp_path_factory.mktemp("lab"), CONFIG)
    yield made
    made.close()


@pytest.mark.parametrize("name", [name for name in FAULTS if not name.startswith("tracking") and name not in DATA])
def test_a_disturbed_training_loses_at_most_the_steps_since_its_checkpoint(lab: Lab, name: str) -> None:
    row = FAULTS[name](lab)
    assert isinstance(row.lost_steps, int | float), row
    assert isinstance(row.final_difference, float), row
    assert 0 < row.lost_steps <= INTERVALS_LOST.get(name, 1) * CONFIG.checkpoint_every, row
    assert row.final_difference < 1e-5, row


@pytest.mark.parametrize("name", sorted(DATA))
def test_a_disturbed_build_loses_no_row_and_makes_none_twice(lab: Lab, name: str) -> None:
    row = FAULTS[name](lab)
    assert (row.lost_steps, row.final_difference) == ("0 of 96 rows, 0 twice", "0 rows differ"), row


def test_a_run_goes_on_while_the_tracking_server_is_away_and_all_metrics_arrive(lab: Lab) -> None:
    row: FaultRow = FAULTS["tracking_away"](lab)
    assert str(row.lost_steps).startswith("0 steps, 0 of "), row
    assert "FINISHED" in row.note, row
    assert row.final_difference == 0, row


def test_a_tracking_server_that_is_away_at_the_start_is_an_error_that_names_the_setting(lab: Lab) -> None:
    assert FAULTS["tracking_away_at_start"](lab).lost_steps == "nothing was begun"
