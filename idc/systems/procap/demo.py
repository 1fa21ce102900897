"""ProCap in the demo: image tokenizer, procedures, two stages, rewards; procedures on the page."""

from __future__ import annotations

from idc.demo.system import DemoSystem, Stage, reward_stage

_PROCEDURES = "procedures={data}/procedures"

DEMO = DemoSystem(
    "ProCap",
    (
        Stage(
            "train the tokenizer", "train_tokenizer", "vision/tokenizer_demo.yaml", "tokenizer", ("pairs={pairs}",),
            first=True,
        ),
        Stage(
            "build procedures", "pretrain_procap", "procap/procedures_demo.yaml", first=True,
            settings=("only=procedures", "build.pairs={pairs}", "build.tokenizer={runs}/tokenizer/artifact",
                      _PROCEDURES),
        ),
        Stage(
            "ProCap stage 1", "pretrain_procap", "procap/pretrain_demo.yaml", "pretrain-{seed}", (_PROCEDURES,),
            first=True,
        ),
        Stage(
            "ProCap stage 2", "finetune_procap", "procap/finetune_demo.yaml", "finetune-{seed}",
            (_PROCEDURES, "pretrained={runs}/pretrain-{seed}/artifact"),
            captioner="ProCap without rewards",
        ),
        reward_stage("ProCap", "finetune"),
    ),
    page=(_PROCEDURES,),
)  # fmt: skip
