"""The leaderboard: which runs are seeds of one setting, which tables there are, marks, files."""

from __future__ import annotations

import importlib
import json
import sys
from functools import cache
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from idc.data.schema import ChangePair
from idc.evaluation import record as ev
from idc.evaluation.answers import run_answers as score_answers
from idc.evaluation.config import AnswersJob
from idc.evaluation.provenance import describe_data
from idc.evaluation.score import evaluate_captions
from idc.report.leaderboard.boards import BASELINE, PAPER, RUN, UPPER_BOUND, Board, BoardRow, DataSetPage, gather_boards
from idc.report.leaderboard.leaderboard_page import leaderboard_markdown, write_leaderboard
from idc.report.leaderboard.scored_runs import find
from tests.folders import write_rows
from tests.report.html_page import HtmlPage

KINDS = ("none", "move", "color", "none")
CAPTIONS = {"none": "no change", "move": "the ball moved", "color": "the ball turned red"}


def pairs_folder(path: Path, config: dict[str, Any], fingerprint: str = "data1234", **extra: Any) -> None:
    rows = [ChangePair(f"p{i}", b"", b"", ("x",), kind, "test").to_row() for i, kind in enumerate(KINDS)]
    write_rows(path, rows, fingerprint=fingerprint, config=config, extra=extra)


@cache
def scored(count: int) -> tuple[ev.Evaluation, list[ev.ScoredCaption]]:
    """The first pairs, all captioned right."""
    predictions = [
        ev.Prediction(pair_id=f"p{i}", caption=CAPTIONS[kind], references=[CAPTIONS[kind], "x y"], change_type=kind)
        for i, kind in enumerate(KINDS[:count])
    ]
    return evaluate_captions(predictions, metrics=("CIDEr",))


def a_run(
    root: Path, name: str, seed: int, cider: float, pairs: str = "data/clevr", lr: float = 0.1, protocol: str = "coco",
    pretrained: str | None = None, command: str = "", count: int = 4, commit: str = "abc1234",
) -> Path:  # fmt: skip
    """A run's folder with an artifact's config and an evaluation, as the jobs leave them."""
    job: dict[str, Any] = {"name": name, "runs": "runs", "build": {"seed": 7}}  # of the procedures, no training's
    job |= {"optim": {"lr": lr}, "train": {"seed": seed, "log_every": seed}}
    if pretrained:
        job["pretrained"] = f"runs/{pretrained}/artifact"
    artifact = root / "runs" / name / "artifact"
    artifact.mkdir(parents=True)
    (artifact / "config.json").write_text(json.dumps({"system": "procap", "config": {"stage": "f", "job": job}}))
    record, rows = scored(count)
    constant = ev.Baseline(what="the best <constant>", caption="no change", scores={"CIDEr": 0.5}, subsets={})
    known = {"pairs": pairs, "captioner": f"runs/{name}/artifact", "name": protocol, "selection": "best CIDEr on val"}
    known |= {"command": command, "commit": commit, "data": describe_data(str(root / pairs))}
    record = record.model_copy(
        update={
            "fingerprint": f"{name}-{seed}-{protocol}-{Path(pairs).name}",
            "scores": {"CIDEr": cider, "BLEU-4": 0.25},
            "baselines": {"constant": constant},
            "upper_bound": constant.model_copy(update={"what": "the truth", "caption": None, "scores": {"CIDEr": 1.9}}),
            "protocol": {**record.protocol, **known},
        }
    )
    ev.save(root / "runs" / name / "evaluation", record, rows)
    return root / "runs" / name / "evaluation"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    pairs_folder(tmp_path / "data/clevr", {"format": "clevr_change"})
    for seed, cider in enumerate((1.0, 1.1, 1.3)):
        a_run(tmp_path, f"pre-{seed}", seed, 0.1, pairs="data/clevr")
        command = f"python jobs/evaluate.py {seed}"
        a_run(tmp_path, f"fine-{seed}", seed, cider, pretrained=f"pre-{seed}", command=command)
    a_run(tmp_path, "other", 0, 0.9, lr=0.2, pretrained="pre-0")
    return tmp_path


def page_of(pages: list[DataSetPage], key: str) -> DataSetPage:
    return next(page for page in pages if page.key == key)


def board_of(
    page: DataSetPage, subset: str = "all", protocol: str = "coco", variant: str = "", split: str = "test"
) -> Board:
    (found,) = [
        b for b in page.boards if (b.split, b.variant, b.subset, b.protocol) == (split, variant, subset, protocol)
    ]
    return found


def of_kind(board: Board, kind: str) -> list[BoardRow]:
    return [row for row in board.rows if row.kind == kind]


def clevr(root: Path) -> DataSetPage:
    """The page of CLEVR-Change."""
    return page_of(gather_boards([str(root / "runs")]), "clevr_change")


def test_seeds_of_one_setting_make_one_row(root: Path) -> None:
    board = board_of(clevr(root))
    runs = {row.name: row for row in of_kind(board, RUN)}
    assert runs.keys() == {"procap fine", "procap other", "procap pre"}, "pre-n of its seed is one setting, too"
    fine = runs["procap fine"]
    assert (fine.seeds, fine.pairs) == ((0, 1, 2), 4)
    assert fine.values["CIDEr"].mean == pytest.approx(100 * 3.4 / 3)
    assert fine.values["CIDEr"].std == pytest.approx(15.275252)
    assert fine.values["right type"].values == [100, 100, 100]
    assert (fine.origin["selected by"], fine.origin["commit"]) == ("best CIDEr on val", "abc1234")
    assert fine.origin["evaluation"] == "; ".join(f"python jobs/evaluate.py {seed}" for seed in range(3))
    assert runs["procap other"].seeds == (0,)
    assert "job.optim.lr = 0.2" in runs["procap other"].source
    assert "job.optim.lr = 0.1" in fine.source
    assert fine.mark == "4 pairs, the official split has 7,970"


def test_baselines_upper_bound_and_published_rows_are_in_the_same_table_best_first(root: Path) -> None:
    board = board_of(clevr(root))
    assert [row.name for row in of_kind(board, BASELINE)] == ["baseline: constant"], "once, not for every seed"
    assert of_kind(board, BASELINE)[0].values["CIDEr"].mean == 50
    assert of_kind(board, UPPER_BOUND)[0].values["CIDEr"].mean == 190
    assert {"ProCap", "NAMC", "M3Diff", "ADPO"} <= {row.name for row in of_kind(board, PAPER)}
    means = [row.values["CIDEr"].mean for row in board.rows if "CIDEr" in row.values]
    assert means == sorted(means, reverse=True)
    assert "baseline, constant: the best <constant>." in board.footnotes
    text = leaderboard_markdown(clevr(root))
    assert f"## {board.title}" in text
    assert "| run | procap fine | 25.0 ± 0.0 |" in text


def test_the_clean_row_of_a_robustness_table_is_no_run_of_its_own(root: Path) -> None:
    for name in ("clean", "fog-3"):
        (root / "runs/other/robustness" / name).mkdir(parents=True)
        copyfile(root / "runs/other/evaluation/evaluation.json", root / f"runs/other/robustness/{name}/evaluation.json")
    (root / "runs/other/robustness/robustness.json").write_text("{}")
    names = {folder.relative_to(root / "runs/other").as_posix() for folder in find([str(root / "runs/other")])}
    assert names == {"evaluation", "robustness/fog-3"}


def altered(folder: Path, **update: Any) -> None:
    """The evaluation of a run with other values."""
    record, rows = ev.load_evaluation(folder / "evaluation"), ev.load_predictions(folder / "evaluation")
    ev.save(folder / "evaluation", record.model_copy(update=update), rows)


def test_what_an_evaluation_records_beside_its_scores_is_in_its_row(root: Path) -> None:
    other = root / "runs/other"
    record = ev.load_evaluation(other / "evaluation")
    taught = ev.Training(system="toy", samples=12, seconds=3.0, cores=1)
    baseline = ev.Baseline(what="captions", scores={"CIDEr": 0.7}, subsets={}, training=taught)
    altered(
        other, baselines={**record.baselines, "trained": baseline}, types=record.types.model_copy(update={"pairs": 3}),
        training=ev.Training(system="procap", supervision="captions and hints"),
        extra_protocols={"levir_words": {"CIDEr": 0.6}},
    )  # fmt: skip
    a_run(root, "fine-9", 2, 1.2, pretrained="pre-2")
    a_run(root, "fine-5", 5, 1.0, pretrained="pre-0", count=2)
    board = board_of(clevr(root))
    rows = {row.name: row for row in board.rows}
    trained = rows["baseline: trained"]
    assert (trained.source, trained.values["CIDEr"].mean) == ("toy, trained on 12 pairs in 3 s on 1 core", 70)
    assert rows["procap other"].source.startswith("supervision: captions and hints; ")
    assert rows["procap other"].mark.endswith("; right type: of 3 pairs")
    fine = [row for row in of_kind(board, RUN) if row.name == "procap fine"]
    assert sorted((row.seeds, row.pairs) for row in fine) == [((0, 1, 2, 2), 4), ((5,), 2)], "fewer pairs: another row"
    assert any(row.mark.startswith("a seed occurs twice; ") for row in fine)
    beside = board_of(clevr(root), protocol="levir_words")
    assert [(row.name, row.values["CIDEr"].mean) for row in beside.rows] == [("procap other", pytest.approx(60))]


def test_protocols_splits_and_data_do_not_meet(root: Path) -> None:
    a_run(root, "ids-0", 0, 0.7, protocol="levir_ids")
    pairs_folder(root / "data/clevr_fog", {"pairs": str(root / "data/clevr")}, "fog12345",
                 robustness={"of": "data1234", "data_set": "clevr_change", "kind": "fog", "severity": 5,
                             "which": "both", "seed": 0})  # fmt: skip
    a_run(root, "foggy-0", 0, 0.6, pairs="data/clevr_fog")
    pairs_folder(root / "data/mine", {"format": "csv"}, "mine5678")
    a_run(root, "mine-0", 0, 0.5, pairs="data/mine")
    pages = gather_boards([str(root / "runs")])
    clevr = page_of(pages, "clevr_change")
    assert [row.name for row in of_kind(board_of(clevr, protocol="levir_ids"), RUN)] == ["procap ids"]
    foggy = board_of(clevr, variant="fog, severity 5")
    assert [row.name for row in of_kind(foggy, RUN)] == ["procap foggy"]
    assert {row.name for row in of_kind(board_of(clevr), RUN)} == {"procap fine", "procap other", "procap pre"}
    mine = page_of(pages, "own-mine5678")
    assert mine.title == "Own pairs (data/mine)"
    assert not of_kind(board_of(mine), PAPER)
    titles = [board.title for board in clevr.boards]
    assert len(set(titles)) == len(titles)
    assert all("protocol" in title for title in titles)


def test_answers_are_compared_with_change_vgs(root: Path) -> None:
    lines = [
        {"type": "binary", "answer": "Yes", "prediction": "yes"},
        {"type": "binary", "answer": "No", "prediction": "?"},
    ]
    (root / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    score_answers(AnswersJob(answers=str(root / "a.jsonl"), out=str(root / "runs/answers"), allow_unreadable=True))
    board = board_of(page_of(gather_boards([str(root / "runs")]), "changeimti"), "change or not", "answers")
    (ours,) = of_kind(board, RUN)
    assert ours.values["Accuracy"].mean == 0.5
    assert ours.mark == "1 unreadable predictions count as wrong"
    assert of_kind(board, BASELINE)[0].values["Recall"].mean == 1
    assert len(of_kind(board, PAPER)) == 7


# -- on disk ------------------------------------------------------------------------------------------------------


def test_the_page_is_whole_and_its_links_lead_somewhere(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert write_leaderboard(out, gather_boards([str(root / "runs"), str(root / "runs/fine-1/../fine-1")])).exists()
    assert len([*out.glob("*.html")]) == 10
    for path in out.glob("*.html"):
        page = HtmlPage(text := path.read_text(encoding="utf-8"))
        assert not any(tag in ("link", "img", "iframe", "script") for tag, _ in page.tags)
        for target in {attrs["href"] or "" for tag, attrs in page.tags if tag == "a"}:
            whole = f'id="{target[1:]}"' in text if target.startswith("#") else (out / target).exists()
            assert whole, target
    text = (out / "clevr_change.html").read_text(encoding="utf-8")
    assert "&lt;constant&gt;" in text
    text = HtmlPage(text).text
    for part in (
        "4 pairs, the official split has 7,970", "113.3 ± 15.3", "python jobs/evaluate.py 0", "and is counted once",
        "51.0 to 100.0",  # Wilson's interval of 4 right types in 4
    ):  # fmt: skip
        assert part in text, part


# -- faults -------------------------------------------------------------------------------------------------------


def test_faults_are_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no such folder: 'nowhere'"):
        gather_boards(["nowhere"])
    with pytest.raises(ValueError, match="holds no evaluation"):
        gather_boards([str(root / "data")])
    lost = a_run(root, "lost-0", 0, 1.0)
    altered(lost.parent, protocol={"pairs": "data/gone"})
    with pytest.raises(ValueError, match=r"lost-0/evaluation does not record its data set; jobs/evaluate\.py does"):
        gather_boards([str(lost)])
    damaged = a_run(root, "damaged-0", 0, 1.0)
    (damaged.parent / "evaluation" / "evaluation.json").write_text("{}")
    capsys.readouterr()
    assert {row.name for row in of_kind(board_of(clevr(root)), RUN)} == {"procap fine", "procap other", "procap pre"}
    notes = capsys.readouterr().err.splitlines()
    assert [note.partition(": ")[0] for note in notes] == ["left out"] * 2
    assert all(any(part in note for note in notes) for part in ("lost-0", "damaged-0"))
    a_run(root, "unknown-0", 0, 1.0, commit="unknown")
    (row,) = of_kind(board_of(page_of(gather_boards([str(root / "runs/unknown-0")]), "clevr_change")), RUN)
    assert row.mark.endswith("; commit of the program not recorded")


def test_the_job(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(root)
    main = importlib.import_module("jobs.leaderboard").main
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "--runs", "runs/fine-*", "runs/other"])
    main()
    assert capsys.readouterr().out == "4 evaluations, 9 data sets: runs/leaderboard/index.html\n"
    assert (root / "runs/leaderboard/clevr_change.md").exists()
