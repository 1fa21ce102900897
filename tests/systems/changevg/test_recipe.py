"""The commands of the README, from the data set to scored answers, in its order on small data in another folder."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from idc.data.images import encode_png
from tests.changeimti.small_mci import ROAD_LEFT, ROOF_LOW_RIGHT, MciFolder
from tests.data.readers.test_own import put
from tests.docs.checks import ROOT, blocks
from tests.systems.changevg.tiny import MODEL, scene
from tests.vlm.models import tiny_folder

ELSEWHERE = r"kind=mci|sweep\.py|qag360k|cdvqa|small|data/satellite"
"""Of the authors' weights: test_convert.py; trials: test_sweeps.py; data sets of other layouts: tests/docs; the small
ones: the demo."""
_SHORT = ["train.epochs=null", "train.steps=2", "train.batch_size=2", "train.checkpoint_every=2", "train.log_every=1",
          "train.gpus_per_worker=0", "train.tracking.enabled=false"]  # fmt: skip
SMALL = {
    "train_guide": [
        *_SHORT, f"model={json.dumps(MODEL)}", "model.backbone.weights=null", "min_count=1", "train.eval_every=2",
        "train.loader_threads=1",
    ],
    "finetune_changevg": [
        *_SHORT, "base.dtype=float32", "train.grad_accumulation=1", "train.num_workers=1", "train.loader_processes=0",
        "train.precision=fp32", "generation.max_new_tokens=4",
    ],
    "evaluate": ["metrics=[BLEU,CIDEr]", "spice=false", "resamples=0", "allow_empty=true"],
}  # fmt: skip


def documented() -> list[list[str]]:
    page = (ROOT / "idc/systems/changevg/README.md").read_text(encoding="utf-8")
    lines = [line for block in blocks(page) for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("python ") and not re.search(ELSEWHERE, line)]


def test_the_commands_work_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = MciFolder()
    for split, count in (("train", 4), ("val", 2), ("test", 3)):
        for number in range(count):
            data.pair(number, number % 2, *([ROAD_LEFT, ROOF_LOW_RIGHT] if number % 2 else []), split=split)
    put(tmp_path / "LEVIR-MCI", {"LevirCCcaptions.json": json.dumps({"images": data.records}), **data.files})
    for name in ("before.png", "after.png"):
        (tmp_path / name).write_bytes(encode_png(scene(len(name))))
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDC_ROOT", raising=False)
    for script, *arguments in documented():
        job = Path(script).stem
        notes = any(word.startswith("out=") for word in arguments) and job == "finetune_changevg"
        asks = any(word.startswith("instructions=") for word in arguments)
        more = [] if notes else ["max_tokens=4"] if asks else SMALL.get(job, [])
        base = [f"base.source={tiny_folder('internvl', 32)}"] if job == "finetune_changevg" and not notes else []
        local = [] if "--local" in arguments or job == "caption" or asks else ["--local"]
        monkeypatch.setattr(sys, "argv", [script, *arguments, *more, *base, *local])
        print(shlex.join([script, *arguments]))
        importlib.import_module(f"jobs.{job}").main()
    assert json.loads((tmp_path / "runs/changevg-paper/answers/answers.json").read_text())
    assert (tmp_path / "runs/changevg-paper/evaluation/evaluation.json").exists()
