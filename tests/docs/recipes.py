"""Runs a documented command, made small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.checks import ROOT

SMALL = {
    "train_twincap": ["train.steps=4", "train.eval_every=2", "train.checkpoint_every=2", "train.batch_size=4"],
    "train_tokenizer": ["train.steps=12", "train.checkpoint_every=12"],
    "train_pair_encoder": ["train.steps=2", "train.eval_every=2", "train.checkpoint_every=2", "train.batch_size=8"],
    "pretrain_procap": ["train.steps=2", "train.checkpoint_every=2", "train.batch_size=4", "train.engine=torch"],
    "finetune_procap": [
        "train.steps=2", "train.eval_every=2", "train.checkpoint_every=2", "train.batch_size=4", "train.engine=torch",
    ],
    "render": ["render.num_scenes=3", "render.samples_per_pixel=2"],
    "evaluate": ["metrics=[BLEU,METEOR,ROUGE-L,CIDEr]", "spice=false", "resamples=20", "allow_empty=true"],
    "robustness": [
        "corruptions={fog: [5]}", "evaluate.metrics=[CIDEr]", "evaluate.spice=false", "evaluate.allow_empty=true",
    ],
    "mine_pairs": ["efficientnet_lite0.size=64", "chunk_size=8", "query_chunk=8", "workers=1"],
}  # fmt: skip
"""Job -> settings with which it takes seconds."""
LOCAL = {*SMALL, "import_dataset", "describe_pairs"}
"""Jobs that run in their own process with ``--local``."""

PARTS = ("kind=", "instructions=", "answers=", "judge=", "evaluations=", "artifacts.", "only=")
"""Settings by which a job does another thing, without the settings of ``SMALL``."""


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """A job's command in a folder that has ``jobs/`` in it, made small."""
    job = Path(words[0]).stem
    part = any(word.startswith(PARTS) for word in words)
    small = [] if part else SMALL.get(job, [])
    if job == "render" and "satellite" in " ".join(words):  # which has no samples, and refuses the setting
        small = small[:1]
    local = ["--local"] if job in LOCAL and not (part and job == "evaluate") else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    environment.pop("IDC_ROOT", None)
    return subprocess.run(
        [sys.executable, *words, *small, *local],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
