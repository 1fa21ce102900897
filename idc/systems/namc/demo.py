"""NAMC in the demo: an image tokenizer of its grid, descriptions with known noise, pre-training,
fine-tuning, rewards."""

from __future__ import annotations

from idc.demo.system import DemoSystem, Stage, reward_stage

NOISE = 0.2
"""Share of the objects named in a description that are disturbed."""

DEMO = DemoSystem(
    "NAMC",
    (
        Stage(
            "train the image tokenizer of NAMC", "train_tokenizer", "vision/tokenizer_demo.yaml", "namc-tokenizer",
            ("pairs={pairs}", "tokenizer.patch_size=8", "tokenizer.channels=136", "tokenizer.latent_dim=64"),
        ),
        Stage(
            "describe pairs", "describe_pairs",
            settings=("describer=oracle", "pairs={pairs}", "out={data}/described", f"oracle.noise={NOISE}"),
        ),
        Stage(
            "NAMC pre-training", "pretrain_namc", "namc/pretrain_small.yaml", "namc-pretrain-{seed}",
            ("pairs={data}/described", "caption_pairs={pairs}", "tokenizer={runs}/namc-tokenizer/artifact"),
        ),
        Stage(
            "NAMC fine-tuning", "finetune_namc", "namc/finetune_small.yaml", "namc-{seed}",
            ("pairs={pairs}", "pretrained={runs}/namc-pretrain-{seed}/artifact"),
            captioner="NAMC without rewards",
        ),
        reward_stage("NAMC", "namc"),
    ),
)  # fmt: skip
