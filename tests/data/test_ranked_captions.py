"""Ranked captions of TRL's and LLaMA-Factory's files: their columns, what is refused, images below the folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from idc.data.pipeline import TooManyRejects, run_local
from idc.data.ranked_captions import ImportPreferencesJob, open_preferences, preference_of, preference_rows
from idc.data.store import iter_rows, read_manifest, read_rejects
from idc.schema import Preference
from tests.vlm.folders import image

IMAGES = ["a.png", "b.png"]
CAPTIONS = {"chosen": "the cube was added", "rejected": "the ball was added"}
PARTS = [{"type": "image"}] * 2
ROWS: dict[str, dict[str, Any]] = {
    "TRL, texts": {"prompt": "What changed?", **CAPTIONS},
    "TRL, messages": {
        "prompt": [{"role": "user", "content": "What changed?"}],
        **{name: [{"role": "assistant", "content": text}] for name, text in CAPTIONS.items()},
    },
    "TRL, parts": {
        "prompt": [{"role": "user", "content": [*PARTS, {"type": "text", "text": "What changed?"}]}],
        **{name: [{"role": "assistant", "content": [{"type": "text", "text": CAPTIONS[name]}]}] for name in CAPTIONS},
    },
    "LLaMA-Factory, sharegpt": {
        "conversations": [{"from": "human", "value": "<image><image>What changed?"}],
        **{name: {"from": "gpt", "value": text} for name, text in CAPTIONS.items()},
    },
    "LLaMA-Factory, alpaca": {"instruction": "What", "input": "changed?", **CAPTIONS},
}  # fmt: skip


def folder_of(tmp_path: Path, rows: list[Any], lines: bool = True, **settings: Any) -> Path:
    for number, name in enumerate(IMAGES):
        (tmp_path / name).write_bytes(image(number, (32, 32)))
    text = "\n".join(map(json.dumps, rows)) if lines else json.dumps(rows, indent=1)
    (tmp_path / "ranked.json").write_text(text)
    job = ImportPreferencesJob(source=str(tmp_path / "ranked.json"), out=str(tmp_path / "out"), **settings)
    folder, source, stages = open_preferences(job)
    run_local(folder, source, stages, preference_rows, max_reject_share=job.max_reject_share, progress=False)
    return tmp_path / "out"


@pytest.mark.parametrize("name", ROWS)
def test_the_columns_of_others_are_read(name: str) -> None:
    preference = preference_of({**ROWS[name], "images": IMAGES}, 3, "x")
    assert preference.prompt.replace("\n", " ") == "<image><image>What changed?"
    assert (preference.chosen, preference.rejected) == (CAPTIONS["chosen"], CAPTIONS["rejected"])
    assert (preference.row_id, preference.images, preference.split) == ("row-3", ("a.png", "b.png"), "train")


@pytest.mark.parametrize("lines", [True, False])
def test_a_file_becomes_a_folder_of_preferences(tmp_path: Path, lines: bool) -> None:
    rows = [
        {**row, "images": IMAGES, "split": "val" if number else "train"} for number, row in enumerate(ROWS.values())
    ]
    rows[1] |= {"score_chosen": 4.0, "score_rejected": 2.5, "id": "mine"}
    out = folder_of(tmp_path, rows, lines, chunk_size=2)
    assert read_manifest(out, kind="preferences").rows_by_split == {"train": 1, "val": 4}
    read = [Preference.from_row(row) for row in iter_rows(out)]
    assert read[0].images == tuple(image(number, (32, 32)) for number in range(2))
    assert (read[1].row_id, read[1].chosen_score, read[1].rejected_score) == ("mine", 4.0, 2.5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rejected": CAPTIONS["chosen"]}, "chosen and rejected are the same text"),
        ({"chosen": None}, "chosen: None is no text and no single message"),
        ({"prompt": None}, "prompt: missing"),
        ({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "has one question"),
        ({"prompt": "<image> What?"}, "1 times <image> in prompt, and 2 images"),
        ({"images": ["a.png", "c.png"]}, "c.png"),
        ({"images": ["a.png", "../../etc/passwd"]}, "files below the source"),
        ({"split": "dev"}, "split 'dev' is not one of"),
    ],
)
def test_unusable_rows_are_left_out_with_their_reasons(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    good = {**ROWS["TRL, texts"], "images": IMAGES}
    out = folder_of(tmp_path, [good, {**good, **change}], max_reject_share=0.5)
    (reject,) = read_rejects(out)
    assert reason in reject.reason
    assert len(list(iter_rows(out))) == 1
    (tmp_path / "few").mkdir()
    with pytest.raises(TooManyRejects):
        folder_of(tmp_path / "few", [good, {**good, **change}])


@pytest.mark.parametrize(("text", "message"), [("", "expected JSON objects"), ("{", "JSON"), ("[1]", "expected JSON")])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        open_preferences(ImportPreferencesJob(source=str(tmp_path / "x.json"), out=str(tmp_path / "out")))
