"""A task of lmms-eval: a YAML file, the Python module that it names, and the pairs in Parquet. The module scores by
:mod:`idc.evaluation.harness_scores`, so this project has to be installed where the harness runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from idc.evaluation.harness_scores import CIDER, DIFFERENCE_F1
from idc.evaluation.rendered_truth import rendered_truth
from idc.util.atomic import write_text

_MODULE = '''"""Functions of the task, written by jobs/export.py."""

from idc.evaluation.harness_scores import harness_scores

ROW = ("pair_id", "captions", "change_type", "source", "meta")


def images(doc):
    return [doc["before"].convert("RGB"), doc["after"].convert("RGB")]


def question(doc, lmms_eval_specific_kwargs=None):
    return doc["question"]


def target(doc):
    return doc["captions"][0]


def results(doc, answers):
    row = {name: doc[name] for name in ROW} | {"caption": answers[0].strip()}
    return {"CIDEr": row, "difference_f1": row}


def cider(rows):
    return harness_scores(rows)["CIDEr"]


def difference_f1(rows):
    return harness_scores(rows)["difference_f1"]
'''
_IMAGES, _TEXTS = ("before", "after"), ("pair_id", "change_type", "source", "meta", "question")
_TEXT = {"dtype": "string", "_type": "Value"}
_FEATURES = {
    **{name: {"_type": "Image"} for name in _IMAGES}, "captions": {"feature": _TEXT, "_type": "List"},
    **dict.fromkeys(_TEXTS, _TEXT),
}  # fmt: skip
"""By which the library `datasets` decodes the images."""
_SCHEMA = pa.schema(
    [(name, pa.struct([("bytes", pa.binary()), ("path", pa.string())])) for name in _IMAGES]
    + [("captions", pa.list_(pa.string())), *((name, pa.string()) for name in _TEXTS)],
    metadata={"huggingface": json.dumps({"info": {"features": _FEATURES}})},
)


class _Function(str):
    """A function of the module, which the YAML names by a tag."""


class _Dumper(yaml.SafeDumper):
    """Writes the tag."""


_Dumper.add_representer(_Function, lambda dumper, name: dumper.represent_scalar("!function", f"utils.{name}"))


def write_lmms_eval_task(out: Path, name: str, question: str, rows: Iterable[dict[str, Any]]) -> int:
    """Write the folder ``name`` in ``out``; rows have the columns of the stored format. Returns their number."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "test.parquet"
    facts: list[dict[str, Any]] = []
    with pq.ParquetWriter(file, _SCHEMA) as writer:
        for row in rows:
            images = {role: {"bytes": row[role], "path": None} for role in _IMAGES}
            writer.write_table(pa.Table.from_pylist([row | images | {"question": question}], schema=_SCHEMA))
            facts.append({name: row[name] for name in ("pair_id", "change_type", "source", "meta")})
    truth = rendered_truth(facts) if facts else None
    write_text(folder / "utils.py", _MODULE)
    write_text(folder / f"{name}.yaml", _settings(name, file, truth is not None and bool(truth.lists)))
    return len(facts)


def _settings(name: str, file: Path, with_differences: bool) -> str:
    measures = {CIDER: "cider"} | ({DIFFERENCE_F1: "difference_f1"} if with_differences else {})
    settings = {
        "task": name,
        "dataset_path": "parquet",
        "dataset_kwargs": {"data_files": {"test": str(file.absolute())}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_visual": _Function("images"),
        "doc_to_text": _Function("question"),
        "doc_to_target": _Function("target"),
        "process_results": _Function("results"),
        "generation_kwargs": {"max_new_tokens": 128, "temperature": 0, "do_sample": False},
        "metric_list": [
            {"metric": measure, "aggregation": _Function(function), "higher_is_better": True}
            for measure, function in measures.items()
        ],
        "metadata": [{"version": 1.0}],
    }
    return yaml.dump(settings, Dumper=_Dumper, sort_keys=False)
