"""Wrong command lines of the jobs, and the faults that each must name: contradictions, missing files."""

from __future__ import annotations

REFUSED: dict[str, tuple[str, list[str]]] = {
    "pretrain_procap": (
        "procedures=nowhere train.batch_size=7 train.num_workers=2 encoder.heads=5 "
        "masking.random=0.9 train.zero_stage=2",
        [
            "encoder.width: 768 is not divisible by heads = 5",
            "masking.random, entire, in_block and out_of_block: their probabilities add up to 1.2, not 1",
            "train.batch_size=7 is not divisible by grad_accumulation * num_workers = 1 * 2 = 2; take 8",
            "train.zero_stage=2 needs train.engine=deepspeed, the engine is torch",
            "procedures: no such file or folder: 'nowhere'",
        ],
    ),
    "finetune_procap": (
        "procedures=nowhere pretrained=nor/here decoder.width=63 decoder.heads=1 x",
        [
            "'x' is not of the form key=value",
            "decoder.width: 63 is odd",
            "procedures: no such file or folder: 'nowhere'",
            "pretrained: no such file or folder: 'nor/here'",
        ],
    ),
    "train_guide": (
        "pairs=nowhere start=nor/here model.image_size=100 model.heads=3 model.backbone.heads=[1,2,5,7]",
        [
            "model.image_size: 100 is not a multiple of 32, the stride of the last level",
            "model.heads: 3 and 2 must divide the last of backbone.widths, 512",
            "model.backbone.widths: 512 of level 4 is not divisible by its heads, 7",
            "pairs: no such file or folder: 'nowhere'",
            "start: no such file or folder: 'nor/here'",
        ],
    ),
    "train_twincap": (
        "pairs=nowhere model.decoder.heads=3 train.engine=deepspeed train.zero_stage=3",
        [
            "ema: train.zero_stage=3 shards the weights that are averaged; take train.zero_stage=2, or ema=0",
            "model.decoder.width: 128 is not divisible by heads = 3",
            "pairs: no such file or folder: 'nowhere'",
        ],
    ),
    "describe_pairs": (
        "pairs=nowhere out=s3://bucket/described describer=endpoint endpoint.url=localhost:8000 "
        "image_captions=no.jsonl oracle.noise=0.5",
        [
            "oracle: not used with describer=endpoint; leave it out",
            "endpoint.model: required with describer=endpoint, for example Qwen/Qwen2-VL-7B-Instruct",
            "log: required if out is a URI (s3://bucket/described); give a local file",
            "endpoint.url: 'localhost:8000' is not of the form http://... or https://...",
            "pairs: no such file or folder: 'nowhere'",
            "image_captions: no such file or folder: 'no.jsonl'",
        ],
    ),
    "build_changeimti": (
        "pairs=nowhere out=out splits=[train] val_as_train=true",
        ["val_as_train: splits has no val; leave it out", "pairs: no such file or folder: 'nowhere'"],
    ),
    "render": (
        "out=pairs render.jitter=extrem jitter=mild",
        [
            "render.jitter: 'extrem' is not one of none, slight, mild, moderate, extreme; did you mean 'extreme'?",
            "jitter: no such setting",
        ],
    ),
    "train_tokenizer": (
        "pairs=nowhere tokenizer.image_size=60 tokenizer.channels=16 loss.l1=0 loss.l2=0 train.epochs=2",
        [
            "tokenizer.image_size: 60 is not divisible by 16",
            "tokenizer.channel_mult: 1 * channels = 16 is not divisible by norm_groups = 32",
            "loss.l1 and l2: at least one needs a weight above 0",
            "train.steps=100000 and train.epochs=2",
            "pairs: no such file or folder: 'nowhere'",
        ],
    ),
    "mine_pairs": (
        "images=nowhere out=pairs alpha=0 beta=0 clip_dinov2.clip=folder efficientnet_lite0.head_thresholds.min=1",
        [
            "clip_dinov2: not used with encoder=efficientnet_lite0; set encoder=clip_dinov2, or leave it out",
            "alpha, beta: both are 0; give one of them a weight",
            "efficientnet_lite0.head_thresholds.min: 1 is not below "
            "efficientnet_lite0.head_thresholds.max=0.99; no neighbour could be a candidate",
            "images: no such file or folder: 'nowhere'",
        ],
    ),
    "pretrain_procap, procedures": (
        "only=procedures procedures=made build.pairs=nowhere build.tokenizer=nor/here build.depth=1 "
        "build.strategy=visual_text build.interpolation=vfiformer build.interpolation_weights=net_220.pth",
        [
            "build.num_keyframes: 2 cannot be drawn from 2^depth - 1 = 1 frames",
            "build.strategy: 'visual_text' needs pair_encoder",
            "build.pairs: no such file or folder: 'nowhere'",
            "build.tokenizer: no such file or folder: 'nor/here'",
            "build.interpolation_weights: no such file or folder: 'net_220.pth'",
        ],
    ),
    "robustness, a set": (
        "pairs=nowhere out=made kind=fog share=0.2",
        [
            "severity: required with kind=fog",
            "share: not used with kind=fog",
            "pairs: no such file or folder: 'nowhere'",
        ],
    ),
    "robustness": (
        "artifact=nowhere pairs=nor/here sets=made out=made evaluate.split=val",
        [
            "evaluate.split: this job sets it; remove it",
            "artifact: no such file or folder: 'nowhere'",
            "pairs: no such file or folder: 'nor/here'",
        ],
    ),
    "evaluate, questions": (
        "artifact=shipped instructions=nowhere out=answers wording=what",
        [
            "wording: must have {question} in it",
            "wording: <image> is in it 0 times",
            "instructions: no such file or folder: 'nowhere'",
        ],
    ),
    "sweep": (
        "name=one settings.pairs=nowhere system=procap settings.procedures=nor/here 'rows=[{label: wide, "
        "settings: {finetune.beems: 2}}, {label: deep, published: {CIDEr: 1}}]'",
        [
            "rows.1.published.CIDEr: no such column",
            "rows.0 (wide): finetune.beems: no such setting; did you mean 'beams'?",
            "pairs: no such file or folder: 'nowhere'",
            "procedures: no such file or folder: 'nor/here'",
        ],
    ),
    "convert": (
        "kind=stage2 weights=nowhere.chkpt out=made",
        [
            "vocabulary: required for stage2; without it the ids of its words have no names",
            "weights: no such file or folder: 'nowhere.chkpt'",
        ],
    ),
    "caption": (
        "artifact=nowhere input=nor/here out=made beams=2 candidates=3",
        [
            "beams: candidates=3 need as many beams, got beams=2",
            "artifact: no such file or folder: 'nowhere'",
            "input: no such file or folder: 'nor/here'",
        ],
    ),
    "import_dataset": (
        "source=nowhere out=pairs val_share=0.7 test_share=0.7",
        ["val_share + test_share is 1.4, more than 1", "source: no such file or folder: 'nowhere'"],
    ),
}
"""Job, after a comma what it is to do -> arguments, as typed in a shell, and how the lines of the faults begin."""
