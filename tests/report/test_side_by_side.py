"""The leaderboard's tables of paired tests and of what was measured of captioners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from idc.captioning.throughput import CaptionerSpeed, Throughput
from idc.evaluation import record as ev
from idc.evaluation.provenance import describe_data
from idc.evaluation.score import evaluate_captions
from idc.evaluation.significance import compare_systems
from idc.report.leaderboard.boards import gather_boards
from idc.report.leaderboard.leaderboard_folder import write_leaderboard
from idc.report.leaderboard.side_by_side import MeasuredSystems, read_measured, side_by_side
from idc.report.page import Table
from tests.report.html_page import HtmlPage
from tests.report.test_leaderboard import board_of, page_of, pairs_folder

KINDS = ("move", "color", "none")
RIGHT = {"none": "there is no change", "move": "the red ball has moved", "color": "the red ball turned blue"}
WRONG = "the big green cube is gone"
PAIRS = 12


def an_evaluation(
    folder: Path, system: str, seed: int, wrong: int, fingerprint: str, pairs: str = "data/own", pair: str = "p",
    **update: Any,
) -> Path:  # fmt: skip
    """A run with an evaluation of 12 pairs, the first ``wrong`` of which are captioned wrongly."""
    artifact = folder / "artifact"
    artifact.mkdir(parents=True)
    (artifact / "config.json").write_text(
        f'{{"system": "{system}", "config": {{"job": {{"train": {{"seed": {seed}}}}}}}}}'
    )
    kinds = [KINDS[number % len(KINDS)] for number in range(PAIRS)]
    given = [
        ev.Prediction(
            pair_id=f"{pair}{number}", caption=WRONG if number < wrong else RIGHT[kind],
            references=[RIGHT[kind], f"{RIGHT[kind]} here"], change_type=kind,
        )
        for number, kind in enumerate(kinds)
    ]  # fmt: skip
    found, rows = evaluate_captions(given, metrics=("BLEU", "CIDEr"), resamples=100)
    known = {
        "pairs": pairs,
        "captioner": artifact.relative_to(Path.cwd()).as_posix(),
        "name": "coco",
        "commit": "abc1234",
    }
    known["data"] = describe_data(pairs)
    found = found.model_copy(
        update={"fingerprint": fingerprint, "artifact": fingerprint, "protocol": {**found.protocol, **known}, **update}
    )
    ev.save(folder / "evaluation", found, rows)
    return folder / "evaluation"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pairs_folder(tmp_path / "data/own", {"format": "csv"}, "own12345")
    for seed in (0, 1):
        an_evaluation(tmp_path / f"runs/good-{seed}", "good", seed, seed, f"good-{seed}")
        an_evaluation(tmp_path / f"runs/bad-{seed}", "bad", seed, 6 + seed, f"bad-{seed}")
    return tmp_path


def sections(runs: list[str], measured: MeasuredSystems | None = None) -> dict[str, Table]:
    board = board_of(page_of(gather_boards(runs), "own-own12345"))
    return {one.title: one for one in side_by_side(board, measured or MeasuredSystems()) if not one.empty}


def a_throughput() -> Throughput:
    good = CaptionerSpeed(artifact="a", identity="good-0", parameters=1_234_567, seconds=[0.1, 0.2, 0.4])
    return Throughput(
        fingerprint="x", pairs=10, tokens=20, device="cpu", speed="auto", cores=2, captioners={"Good": good}
    )


def a_robustness(folder: Path, identity: str) -> Path:
    """A folder as the robustness job leaves it: clean pairs and fog."""
    for name, cider, variant in (("clean", 2.0, {}), ("fog-3", 0.5, {"variant": "fog, severity 3"})):
        one, rows = ev.load_evaluation("runs/good-0/evaluation"), ev.load_predictions("runs/good-0/evaluation")
        data = {"data_set": "own", "fingerprint": "own12345", **variant}
        update = {
            "fingerprint": f"{identity}-{name}",
            "artifact": identity,
            "scores": {"CIDEr": cider},
            "protocol": {**one.protocol, "data": data},
        }
        ev.save(folder / name, one.model_copy(update=update), rows)
    return folder


def test_the_best_setting_is_tested_against_the_others_seed_by_seed(root: Path) -> None:
    tests = sections(["runs"])["Paired tests"]
    assert tests.head == ["difference", "seed", "BLEU-4", "CIDEr"]
    assert [(name.split(" – ")[0].split()[0], seed) for name, seed, *_ in tests.items] == [("good", "0"), ("good", "1")]
    rows = [ev.load_predictions(f"runs/{name}-1/evaluation") for name in ("bad", "good")]
    expected = compare_systems(rows[0], rows[1], "coco").metrics["CIDEr"]
    assert expected.difference > 0
    between = f"{100 * expected.interval.low:+.1f} to {100 * expected.interval.high:+.1f}"
    assert tests.items[1][3] == f"{100 * expected.difference:+.1f} ({between}), p = {expected.p:.4f}"
    assert "not corrected" in tests.note


def test_pairs_that_are_not_the_same_are_not_compared_and_the_page_says_so(root: Path) -> None:
    an_evaluation(root / "runs/other", "other", 0, 9, "other", pair="q")
    assert sections(["runs/good-0"]) == {}, "one setting"
    assert [seed for _, seed, *_ in sections(["runs/good-0", "runs/bad-1"])["Paired tests"].items] == ["0 – 1"]
    assert "Paired tests" not in sections(["runs/good-0", "runs/other"])
    an_evaluation(root / "runs/third", "third", 0, 8, "third")
    both = sections(["runs/good-0", "runs/third", "runs/other"])["Paired tests"]
    assert len(both.items) == 1
    assert "not the same pairs" in both.note


def test_measurements_are_shown_with_the_captioner_they_are_of(root: Path) -> None:
    table = a_robustness(root / "tables/good", "good-0")
    measured = MeasuredSystems(a_throughput(), read_measured(None, [str(table)]).robustness)
    found = sections(["runs"], measured)["The captioners"]
    assert found.head == ["captioner", "training, first seed", "parameters", "tokens a second", "fog, severity 3"]
    ((name, _, parameters, speed, fog),) = found.items
    assert name.startswith("good")
    assert "on 12 pairs" in sections(["runs"], measured)["The captioners"].note
    assert (parameters, speed, fog) == ("1,234,567", "1,000 (500 to 2,000)", "50.0 (25%)")


def test_the_clean_row_of_a_robustness_table_is_no_run_of_its_own(root: Path) -> None:
    table = a_robustness(root / "runs/good-0/robustness", "good-0")
    (table / "robustness.json").write_text("{}")
    found = [one.folder.relative_to(root / "runs").as_posix() for page in gather_boards([str(root / "runs")])
             for one in page.scored]  # fmt: skip
    assert "good-0/robustness/clean" not in found
    assert {"good-0/evaluation", "good-0/robustness/fog-3"} <= set(found)


def test_cells_have_intervals_of_the_pairs(root: Path) -> None:
    pages = gather_boards(["runs"])
    board = board_of(page_of(pages, "own-own12345"))
    good = next(row for row in board.rows if row.name.startswith("good"))
    recorded = ev.load_evaluation("runs/good-0/evaluation").intervals["CIDEr"]
    assert good.intervals["CIDEr"].low == pytest.approx(100 * recorded.low)
    assert (good.intervals["right type"].low, good.intervals["right type"].high) == pytest.approx((75.75, 100), abs=0.1)
    (path,) = [path for path in write_leaderboard(root / "out", pages) if path.name == "own-own12345.html"]
    page = HtmlPage(path.read_text(encoding="utf-8"))
    assert "75.8 to 100.0" in page.text
    assert "Paired tests" in page.text


def test_wrong_measurements_are_refused(root: Path) -> None:
    with pytest.raises(ValueError, match="'runs/good-0/artifact' holds no robustness table"):
        read_measured(None, ["runs/good-0/artifact"])
    with pytest.raises(ValueError, match=r"speed\.json is not a measured speed"):
        read_measured("speed.json", [])
    table = a_robustness(root / "tables/good", "good-0")
    (table / "clean" / "evaluation.json").unlink()
    with pytest.raises(ValueError, match="has no evaluation of an artifact on the pairs as they are"):
        read_measured(None, [str(table)])
