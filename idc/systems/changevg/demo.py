"""ChangeVG in the demo: the guide and its notes, ChangeIMTI of the rendered satellite pairs, and the small base tuned
with both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from idc.demo.system import DemoFolders, DemoSystem, Stage

_GUIDE, _NOTES, _QUESTIONS = "guide={runs}/guide-{seed}/artifact", "{data}/guided-{seed}", "{data}/changeimti"


def _figures(folders: DemoFolders) -> Mapping[str, float]:
    notes = Path(_NOTES.format(**folders._asdict()))
    scores = json.loads((notes / "guide.json").read_text(encoding="utf-8"))["test"]
    binary = next(measures for measures in scores["answers"] if measures["type"] == "binary")
    return {
        "mIoU of the guide": scores["map"]["mIoU"],
        "of no change anywhere": scores["map_unchanged"]["mIoU"],
        "changed or not, by the guide": binary["scores"]["Accuracy"],
    }


DEMO = DemoSystem(
    "ChangeVG",
    (
        Stage("train the guide", "train_guide", "changevg/guide_small.yaml", "guide-{seed}", ("pairs={pairs}",)),
        Stage(
            "build questions", "build_changeimti", "changevg/changeimti_clean.yaml",
            settings=("pairs={pairs}", f"out={_QUESTIONS}"),
        ),
        Stage(
            "ChangeVG", "finetune_changevg", "changevg/small.yaml", "changevg-{seed}",
            (f"pairs={_QUESTIONS}", _GUIDE),
        ),
    ),
    rendering="satellite_small",
    further=(
        Stage(
            "take the guide's notes", "finetune_changevg", settings=("pairs={pairs}", _GUIDE, f"out={_NOTES}"),
        ),
    ),
    figures=_figures,
)  # fmt: skip
