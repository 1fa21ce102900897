"""Tasks of lmms-eval and VLMEvalKit, read as their documents have them, and scored as an evaluation is."""

from __future__ import annotations

import ast
import base64
import csv
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import yaml

from idc.config import load
from idc.data.images import decode_image, encode_png
from idc.data.schema import ChangePair
from idc.data.store import iter_rows
from idc.evaluation.config import EvaluateJob
from idc.evaluation.export import ExportJob, run_export
from idc.evaluation.job import run_evaluation
from idc.rendered.sentences import several_captions
from tests.evaluation.test_rendered_truth import meta_of, type_of
from tests.folders import write_rows
from tests.rendered.drawn_differences import drawn_pairs

PAIRS = 12


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rendered pairs whose images are noise; the last one is of another split."""
    rng, folder = np.random.default_rng(3), tmp_path_factory.mktemp("export") / "pairs"
    images = [encode_png(rng.integers(0, 255, (6, 9, 3), np.uint8)) for _ in range(2 * PAIRS + 2)]
    rows = [
        ChangePair(
            pair_id=f"set/{number}", before=images[2 * number], after=images[2 * number + 1],
            captions=several_captions(pair.differences, pair.before, pair.after, pair.views, 3, rng),
            change_type=type_of(pair), split="test" if number < PAIRS else "train", source=f"rendered:{number}",
            meta=meta_of(pair),
        ).to_row()
        for number, pair in enumerate(drawn_pairs(PAIRS + 1, seed=4))
    ]  # fmt: skip
    write_rows(folder, rows)
    return folder


def exported(pairs: Path, out: Path, to: str, **settings: Any) -> str:
    return run_export(load(ExportJob, None, {"pairs": str(pairs), "out": str(out), "to": to, **settings}))


def said(pairs: Path) -> dict[str, str]:
    """Captions, a third of them of another pair."""
    rows = [row for row in iter_rows(pairs) if row["split"] == "test"]
    return {row["pair_id"]: rows[(at + (at % 3 == 0)) % PAIRS]["captions"][0] for at, row in enumerate(rows)}


def evaluated(pairs: Path, predictions: Path) -> tuple[float | None, float]:
    """CIDEr and difference F1 of an evaluation."""
    settings = {"pairs": str(pairs), "predictions": str(predictions), "out": str(predictions.with_suffix("")),
                "metrics": ["CIDEr"], "spice": False, "resamples": 0, "constant_candidates": 0}  # fmt: skip
    evaluation = run_evaluation(load(EvaluateJob, None, settings | {"nearest_train_pairs": 0}))
    assert evaluation.differences is not None
    return evaluation.scores["CIDEr"], evaluation.differences.f1


class Tagged(yaml.SafeLoader):
    """Reads `!function module.name` as text, as the harness's own loader finds the module next to the file."""


Tagged.add_constructor("!function", lambda loader, node: f"!{loader.construct_scalar(node)}")  # type: ignore[arg-type]


def test_a_task_of_lmms_eval_has_images_prompt_references_and_our_scores(pairs: Path, tmp_path: Path) -> None:
    printed = exported(pairs, tmp_path / "tasks", "lmms_eval", name="changes", prompt="What differs?")
    assert printed == (
        f"{PAIRS} pairs in {tmp_path}/tasks\n"
        f"lmms-eval --model MODEL --tasks changes --include_path {tmp_path}/tasks --batch_size 1"
    )
    folder = tmp_path / "tasks" / "changes"
    task = yaml.load((folder / "changes.yaml").read_text(), Tagged)
    assert (task["task"], task["output_type"], task["test_split"]) == ("changes", "generate_until", "test")
    spec = importlib.util.spec_from_file_location("changes_utils", folder / "utils.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    functions = [task[name] for name in ("doc_to_visual", "doc_to_text", "doc_to_target", "process_results")]
    visual, text, target, results = (getattr(module, name.removeprefix("!utils.")) for name in functions)
    [split] = datasets.load_dataset(
        task["dataset_path"], cache_dir=str(tmp_path / "cache"), **task["dataset_kwargs"]
    ).values()
    stored = {row["pair_id"]: row for row in iter_rows(pairs)}
    captions, processed = said(pairs), []
    for document in split:
        row = stored[document["pair_id"]]
        for image, role in zip(visual(document), ("before", "after"), strict=True):
            assert (np.asarray(image) == decode_image(row[role])).all()
        assert text(document, lmms_eval_specific_kwargs=None) == "What differs?"
        assert target(document) == row["captions"][0]
        processed.append(results(document, [f" {captions[document['pair_id']]}\n"]))
    assert len(processed) == PAIRS
    (tmp_path / "said.json").write_text(json.dumps(captions))
    scores = [
        getattr(module, metric["aggregation"].removeprefix("!utils."))([row[metric["metric"]] for row in processed])
        for metric in task["metric_list"]
    ]
    assert [metric["metric"] for metric in task["metric_list"]] == ["CIDEr", "difference_f1"]
    assert scores == pytest.approx(evaluated(pairs, tmp_path / "said.json"))
    assert 0.3 < scores[1] < 0.95


def test_a_table_of_vlmevalkit_has_both_images_in_a_cell_and_its_predictions_are_scored(
    pairs: Path, tmp_path: Path
) -> None:
    printed = exported(pairs, tmp_path / "LMUData", "vlmevalkit", name="changes", max_pairs=9).splitlines()
    assert printed[1:] == [
        f"LMUData={tmp_path}/LMUData PRED_FORMAT=json python run.py --data changes --model MODEL --mode infer",
        f"python jobs/evaluate.py predictions=outputs/MODEL/MODEL_changes.json pairs={pairs} out=OUT max_pairs=9",
    ]
    exported(pairs, tmp_path / "LMUData", "vlmevalkit", name="changes")
    csv.field_size_limit(sys.maxsize)
    with (tmp_path / "LMUData" / "changes.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    stored = {row["pair_id"]: row for row in iter_rows(pairs)}
    assert [row["index"] for row in rows] == list(map(str, range(PAIRS)))
    for row in rows:
        images, references = ast.literal_eval(row["image"]), ast.literal_eval(row["answer"])
        pair = stored[row["pair_id"]]
        assert [base64.b64decode(image) for image in images] == [pair["before"], pair["after"]]
        assert len(row["image"]) > 64, "a shorter cell is the index of another row"
        assert references == pair["captions"]
        assert row["question"].startswith("The first image shows a scene before, the second one after.")
    predictions = [  # as the harness writes them: the columns but the images, and one more
        {name: row[name] for name in row if name != "image"} | {"prediction": said(pairs)[row["pair_id"]]}
        for row in rows
    ]
    (tmp_path / "theirs.json").write_text(json.dumps(predictions))
    (tmp_path / "ours.json").write_text(json.dumps(said(pairs)))
    assert evaluated(pairs, tmp_path / "theirs.json") == evaluated(pairs, tmp_path / "ours.json")


def test_pairs_without_a_truth_have_cider_alone_and_without_captions_or_images_none(tmp_path: Path) -> None:
    image = encode_png(np.zeros((4, 4, 3), np.uint8))
    rows = [ChangePair(f"{n}", image, image, captions=(f"car {n} left",), split="test").to_row() for n in range(3)]
    write_rows(tmp_path / "plain", rows)
    exported(tmp_path / "plain", tmp_path / "tasks", "lmms_eval")
    task = yaml.load((tmp_path / "tasks/idc/idc.yaml").read_text(), Tagged)
    assert [metric["metric"] for metric in task["metric_list"]] == ["CIDEr"]
    with pytest.raises(ValueError, match="split 'val' has no pair with a caption"):
        exported(tmp_path / "plain", tmp_path / "none", "vlmevalkit", split="val")
