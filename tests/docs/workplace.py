"""A folder as the pages find it, after `make demo` and an import of one's own pairs, all tiny; and documented commands
made small."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_sample_images

from tests.captioning.pdf_files import pdf, text_page
from tests.data.readers.test_more_readers import cdvqa, qag360k, vidic
from tests.data.small_sets import clevr_change, spot_the_diff
from tests.docs.checks import ROOT
from tests.docs.own_pairs import own_pairs
from tests.mining.small_collection import write_images
from tests.systems.procap.world import World

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
    "train_grpo": ["train.steps=2", "train.checkpoint_every=2", "train.batch_size=2"],
    "finetune_rewards": ["train.steps=2", "train.checkpoint_every=2", "train.batch_size=2"],
    "mine_pairs": ["efficientnet_lite0.size=64", "chunk_size=8", "query_chunk=8", "workers=1"],
}  # fmt: skip
"""Job -> settings with which it takes seconds."""
LOCAL = {*SMALL, "import_dataset", "describe_pairs"}
"""Jobs that run in their own process with ``--local``."""

PARTS = ("kind=", "instructions=", "answers=", "judge=", "evaluations=", "only=")
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


def make_workplace(world: World, captioner: Path, folder: Path) -> Path:
    """Write what commands of the pages read.

    Args:
        world: stands for the demo's pairs, tokenizer and procedures.
        captioner: the artifact of a ProCap, for the demo's.
    """
    (folder / "jobs").symlink_to(ROOT / "jobs")
    (folder / "idc").mkdir(exist_ok=True)
    (folder / "idc" / "weights").symlink_to(ROOT / "idc" / "weights")
    for source, target in (
        (world.pairs, "data/demo/pairs"),
        (world.procedures, "data/demo/procedures"),
        (world.tokenizer, "runs/demo/tokenizer/artifact"),
        (captioner, "runs/demo/finetune-0/artifact"),
    ):
        shutil.copytree(source, folder / target)
    own_pairs([Image.fromarray(image) for image in load_sample_images().images], folder / "my_pairs", 40, unchanged=12)
    mask = Image.new("L", (16, 12), 0)
    mask.paste(255, (0, 0, 8, 6))
    mask.save(folder / "mask.png")
    for suffix in ("png", "jpg"):
        for name in ("before", "after"):
            Image.open(folder / "my_pairs" / name / "039.jpg").save(folder / f"{name}.{suffix}")
    for name, pages in (("before", [text_page(0)]), ("after", [text_page(0), text_page(1)])):
        (folder / f"{name}.pdf").write_bytes(pdf(pages))
    for version, name in (("baseline", "before"), ("screenshots", "after")):
        (folder / version).mkdir()
        shutil.copy(folder / f"{name}.png", folder / version / "start.png")
    with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["pair_id", "before", "after"])
        rows.writerows([f"{n:03}", f"my_pairs/before/{n:03}.jpg", f"my_pairs/after/{n:03}.jpg"] for n in range(4))
    write_images(folder / "photos", scenes=6)
    clevr_change().write(folder / "CLEVR_FOLDER")
    qag360k(folder / "QAG-360K")
    cdvqa(folder / "CDVQA")
    vidic(folder / "ViDiC-1K")
    videos = [{f"video{n + 1}_path": f"data/add/{pair}_{side}.mp4" for n, side in enumerate(("src", "tgt"))}
              for pair in range(2)]  # fmt: skip
    responses = [pair | {"response": "In B a second person appeared."} for pair in videos]
    (folder / "response.json").write_text(json.dumps(responses), encoding="utf-8")
    spot = spot_the_diff()
    spot.write(folder / "SPOT_FOLDER")
    test = [pair_id for pair_id, (split, *_) in spot.pairs.items() if split == "test"]
    for name, fields in (("mine", {"caption": "a man is here"}), ("theirs", {"captions": ["a man came"]})):
        lines = [json.dumps({"pair_id": pair_id, **fields}) + "\n" for pair_id in test]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    answers = [{"type": "count", "class": "road", "answer": "3", "prediction": "3."}]
    (folder / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in answers), encoding="utf-8")
    for command in (
        "jobs/train_twincap.py --config jobs/configs/twincap/demo.yaml name=twincap-0 runs=runs/demo",
        "jobs/import_dataset.py source=my_pairs out=data/mine/pairs",
        "jobs/train_twincap.py --config jobs/configs/twincap/demo.yaml name=mine pairs=data/mine/pairs",
    ):
        done = run(command.split(), folder)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return folder
