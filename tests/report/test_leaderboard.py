"""The leaderboard: which runs are seeds of one setting, which tables there are, marks, exports, published files."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import idc.report
from idc.data.schema import ChangePair
from idc.evaluation import record as ev
from idc.evaluation.answers import AnswersJob
from idc.evaluation.answers import run_answers as score_answers
from idc.evaluation.provenance import describe_data
from idc.evaluation.score import evaluate_captions
from idc.report.leaderboard.boards import BASELINE, PAPER, RUN, UPPER_BOUND, Board, BoardRow, DataSetPage, gather_boards
from idc.report.leaderboard.leaderboard_folder import write_leaderboard
from idc.report.leaderboard.leaderboard_page import leaderboard_markdown
from tests.folders import write_rows
from tests.report.html_page import HtmlPage

KINDS = ("none", "move", "color", "none")
TEMPLATES = Path(idc.report.__file__).parent / "templates"
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
    assert (fine.selection, fine.commit) == ("best CIDEr on val", "abc1234")
    assert fine.command == "; ".join(f"python jobs/evaluate.py {seed}" for seed in range(3))
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


def altered(folder: Path, **update: Any) -> None:
    """The evaluation of a run with other values."""
    record, rows = ev.load_evaluation(folder / "evaluation"), ev.load_predictions(folder / "evaluation")
    ev.save(folder / "evaluation", record.model_copy(update=update), rows)


def test_what_an_evaluation_records_beside_its_scores_is_in_its_row(root: Path) -> None:
    other = root / "runs/other"
    record = ev.load_evaluation(other / "evaluation")
    taught = ev.Training(system="toy", samples=12, seconds=3.0, cores=1)
    baseline = ev.Baseline(what="captions", scores={"CIDEr": 0.7}, subsets={}, training=taught)
    assert record.types is not None
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


def test_the_page_is_whole_and_its_policy_allows_its_own_script_alone(root: Path, tmp_path: Path) -> None:
    written = write_leaderboard(tmp_path / "out", gather_boards([str(root / "runs")]))
    assert written[0].name == "index.html"
    assert len(written) == 10
    for path in written:
        HtmlPage(path.read_text(encoding="utf-8"))
    text = (tmp_path / "out" / "clevr_change.html").read_text(encoding="utf-8")
    page = HtmlPage(text)
    assert not any(tag in ("link", "img", "iframe") for tag, _ in page.tags)
    assert not any("src" in attrs for _, attrs in page.tags)
    (policy,) = [attrs["content"] for tag, attrs in page.tags if tag == "meta" and attrs.get("http-equiv")]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script.strip() == (TEMPLATES / "sort_tables.js").read_text(encoding="utf-8").strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" == policy
    assert "&lt;constant&gt;" in text
    assert "4 pairs, the official split has 7,970" in page.text
    assert "113.3 ± 15.3" in page.text
    assert "python jobs/evaluate.py 0" in page.text
    targets = {attrs["href"] for tag, attrs in page.tags if tag == "a"}
    for target in targets:
        assert target is not None
        if target.startswith("#"):
            assert any(attrs.get("id") == target[1:] for _, attrs in page.tags), target
        else:
            assert (tmp_path / "out" / target).exists(), target


def test_written_again_it_keeps_what_is_wanted_and_nothing_else(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "leaderboard"
    twice = [str(root / "runs/*"), str(root / "runs/fine-1/../fine-1")]
    write_leaderboard(out, gather_boards(twice))
    sums = dict(reversed(line.split("  ")) for line in (out / "SHA256SUMS").read_text(encoding="utf-8").splitlines())
    assert len(sums) == 2 * 7, "predictions are published with their hashes, of one evaluation once"
    for name, digest in sums.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    copied = ev.load_predictions(out / "runs/clevr_change/fine-0-0-coco-clevr")
    assert copied == ev.load_predictions(root / "runs/fine-0/evaluation")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    write_leaderboard(out, gather_boards(twice))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before, "copies are not runs"
    write_leaderboard(out, gather_boards([str(root / "runs/other")]))
    assert len([*out.rglob("predictions.jsonl")]) == 1
    with pytest.raises(ValueError, match="is not empty and holds no leaderboard"):
        write_leaderboard(root / "data", gather_boards([str(root / "runs/other")]))


def test_markdown_holds_the_same_numbers(root: Path) -> None:
    page = clevr(root)
    text = leaderboard_markdown(page)
    assert f"## {board_of(page).title}" in text
    assert "| run | procap fine | 25.0 ± 0.0 |" in text
    assert "| published | ProCap | 56.7 | 41.7 | 74.7 | 135.6 |" in text


# -- faults -------------------------------------------------------------------------------------------------------


def test_faults_are_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder: 'nowhere'"):
        gather_boards(["nowhere"])
    with pytest.raises(ValueError, match="holds no evaluation"):
        gather_boards([str(root / "data")])
    lost = a_run(root, "lost-0", 0, 1.0)
    altered(lost.parent, protocol={"pairs": "data/gone"})
    with pytest.raises(ValueError, match="lost-0/evaluation does not record its data set; score it with pairs="):
        gather_boards([str(lost)])
    a_run(root, "unknown-0", 0, 1.0, commit="unknown")
    (row,) = of_kind(board_of(page_of(gather_boards([str(root / "runs/unknown-0")]), "clevr_change")), RUN)
    assert row.mark.endswith("; commit of the program not recorded")
    (root / "runs/other/evaluation/predictions.jsonl").unlink()
    with pytest.raises(ValueError, match=r"has no predictions.jsonl"):
        gather_boards([str(root / "runs/other")])


def test_the_job(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(root)
    monkeypatch.delenv("IDC_ROOT", raising=False)
    main = importlib.import_module("jobs.leaderboard").main
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "--runs", "runs/fine-*", "runs/other"])
    main()
    assert capsys.readouterr().out == "4 evaluations, 9 data sets: runs/leaderboard/index.html\n"
    assert (root / "runs/leaderboard/clevr_change.md").exists()
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "--runs", "nothing"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr().err == "--runs: no such folder: 'nothing'\n"
