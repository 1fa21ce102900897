"""ADPO in the demo: the captioner that SFT trains too, merged, then preferences."""

from __future__ import annotations

from idc.demo.system import DemoSystem, Stage

_MERGED = "{runs}/sft-{seed}/merged"

DEMO = DemoSystem(
    "ADPO",
    (
        Stage("SFT", "finetune_sft", "sft/finetune_small.yaml", "sft-{seed}", ("pairs={pairs}",)),
        Stage("merge SFT", "merge_vlm", settings=("artifact={runs}/sft-{seed}/artifact", f"out={_MERGED}")),
        Stage(
            "train the pair encoder", "train_pair_encoder", "vision/pair_encoder_demo.yaml", "pair-encoder",
            ("pairs={pairs}",),
        ),
        Stage(
            "ADPO", "train_adpo", "adpo/small.yaml", "adpo-{seed}",
            ("pairs={pairs}", f"base.source={_MERGED}", "retriever.encoder={runs}/pair-encoder/artifact"),
        ),
    ),
)  # fmt: skip
