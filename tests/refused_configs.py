"""Wrong command lines of the jobs, and the faults that each must name."""

from __future__ import annotations

REFUSED: dict[str, tuple[list[str], list[str]]] = {
    "pretrain_procap": (
        [
            "procedures=nowhere",
            "train.batch_sise=4",
            "train.batch_size=7",
            "train.num_workers=2",
            "encoder.width=4",
            "encoder.heads=5",
            "masking.random=0.9",
            "loss.align_negative=swap_halfs",
            "train.zero_stage=2",
            "optim.lr=-1e-4",
        ],
        [
            "encoder.width: input should be greater than or equal to 8, got 4",
            "loss.align_negative: 'swap_halfs' is not one of other_caption, swap_halves; did you mean 'swap_halves'?",
            "optim.lr: input should be greater than or equal to 0, got -0.0001",
            "train.batch_sise: no such setting; did you mean 'batch_size'?",
            "encoder.width: 768 is not divisible by heads = 5",
            "masking.random, entire, in_block and out_of_block: their probabilities add up to 1.2, not 1",
            "train.batch_size=7 is not divisible by grad_accumulation * num_workers = 1 * 2 = 2; take 8",
            "train.zero_stage=2 needs engine=deepspeed, the engine is torch",
            "procedures: no such file or folder: 'nowhere'",
        ],
    ),
    "finetune_procap": (
        ["procedures=nowhere", "pretrained=nor/here", "decoder.width=63", "decoder.heads=1", "label_smoothing=1", "x"],
        [
            "'x' is not of the form key=value",
            "label_smoothing: input should be less than 1, got 1",
            "decoder.width: 63 is odd",
            "procedures: no such file or folder: 'nowhere'",
            "pretrained: no such file or folder: 'nor/here'",
        ],
    ),
    "train_twincap": (
        [
            "pairs=nowhere",
            "model.height=60",
            "model.stem=twins",
            "model.decoder.heads=3",
            "data.augmentation.shift=1",
            "train.engine=deepspeed",
            "train.zero_stage=3",
        ],
        [
            "model.height: input should be a multiple of 8, got 60",
            "model.stem: 'twins' is not one of twin, early; did you mean 'twin'?",
            "data.augmentation.shift: input should be less than 1, got 1",
            "ema: zero_stage=3 shards the weights that are averaged; take zero_stage=2, or ema=0",
            "model.decoder.width: 128 is not divisible by heads = 3",
            "pairs: no such file or folder: 'nowhere'",
        ],
    ),
    "describe_pairs": (
        [
            "pairs=nowhere",
            "out=s3://bucket/described",
            "describer=endpoint",
            "endpoint.url=localhost:8000",
            "instruction=cc3m_",
            "image_captions=no.jsonl",
            "oracle.noise=0.5",
            "oracle.noise_kinds=[wrong_object,wrong_object]",
            "price_prompt=3",
            "temprature=1",
        ],
        [
            "instruction: 'cc3m_' is not one of auto, cc3m, instruct_pix2pix, spot_the_diff; did you mean 'cc3m'?",
            "temprature: no such setting; did you mean 'temperature'?",
            "oracle: not used with describer=endpoint; leave it out",
            "endpoint.model: required with describer=endpoint, for example Qwen/Qwen2-VL-7B-Instruct",
            "price_prompt and price_completion: give both or neither",
            "log: required if out is a URI (s3://bucket/described); give a local file",
            "endpoint.url: 'localhost:8000' is not of the form http://... or https://...",
            "oracle.noise_kinds names a kind twice",
            "pairs: no such file or folder: 'nowhere'",
            "image_captions: no such file or folder: 'no.jsonl'",
        ],
    ),
    "render": (
        [
            "out=pairs",
            "render.jitter=extrem",
            "render.change_types=[color, moved]",
            "render.num_scenes=0",
            "render.min_objects=9",
            "render.max_objects=3",
            "jitter=mild",
            "cluster.address=http://127.0.0.1:8265",
        ],
        [
            "render.num_scenes: input should be greater than or equal to 1, got 0",
            "render.jitter: 'extrem' is not one of none, slight, mild, moderate, extreme; did you mean 'extreme'?",
            "render.change_types.1: 'moved' is not one of color, material, add, drop, move; did you mean 'move'?",
            "jitter: no such setting",
            "render.min_objects 9 is above max_objects 3",
            "cluster.address: 'http://127.0.0.1:8265' is a Jobs API address",
        ],
    ),
    "train_tokenizer": (
        [
            "pairs=nowhere",
            "tokenizer.image_size=60",
            "tokenizer.channels=16",
            "loss.l1=0",
            "loss.l2=0",
            "train.epochs=2",
        ],
        [
            "tokenizer.image_size: 60 is not divisible by 16",
            "tokenizer.channel_mult: 1 * channels = 16 is not divisible by norm_groups = 32",
            "loss.l1 and l2: at least one needs a weight above 0",
            "train.steps=100000 and epochs=2",
            "pairs: no such file or folder: 'nowhere'",
        ],
    ),
    "build_procedures": (
        [
            "procedures=made",
            "build.pairs=nowhere",
            "build.tokenizer=nor/here",
            "build.depth=1",
            "build.similarity=clip",
            "build.strategy=visual_text",
            "build.interpolation=vfiformer",
            "build.interpolation_weights=net_220.pth",
        ],
        [
            "build.similarity: 'clip' is not one of tokenizer, pixels",
            "build.num_keyframes: 2 cannot be drawn from 2^depth - 1 = 1 frames",
            "build.strategy: 'visual_text' needs pair_encoder",
            "build.pairs: no such file or folder: 'nowhere'",
            "build.tokenizer: no such file or folder: 'nor/here'",
            "build.interpolation_weights: no such file or folder: 'net_220.pth'",
        ],
    ),
    "train_interpolator": (
        ["triplets=nowhere", "crop_size=100", "model.window=6", "start=nor/here", "train.steps=3"],
        [
            "crop_size: 100 is not divisible by model.pad_multiple = 64; take 128",
            "model.window: 6 is not divisible by 4; take 8",
            "model.pad_multiple: 64 is not divisible by 48, as 16 and 8 * window demand",
            "train.steps=3 and epochs=300.0: give exactly one of them",
            "triplets: no such file or folder: 'nowhere'",
            "start: no such file or folder: 'nor/here'",
        ],
    ),
    "build_triplets": (
        ["triplets=made", "build.videos=[nowhere.mp4]", "build.scenes.num_scenes=0", "build.gap=0"],
        [
            "build.gap: input should be greater than or equal to 1, got 0",
            "build.scenes.num_scenes: input should be greater than or equal to 1, got 0",
            "build.videos and scenes: give one of the two",
            "build.videos.0: no such file or folder: 'nowhere.mp4'",
        ],
    ),
    "compare_interpolators": (
        ["triplets.real=nowhere", "out=made", "vfiformer.full=net_220.pth", "interpolators=[dis, film]"],
        [
            "interpolators.1: 'film' is not one of blend, dis",
            "triplets.real: no such file or folder: 'nowhere'",
            "vfiformer.full: no such file or folder: 'net_220.pth'",
        ],
    ),
    "corrupt": (
        ["pairs=nowhere", "out=made", "kind=fog", "share=0.2", "seed=-1"],
        [
            "seed: input should be greater than or equal to 0, got -1",
            "severity: required with kind=fog",
            "share: not used with kind=fog",
            "pairs: no such file or folder: 'nowhere'",
        ],
    ),
    "robustness": (
        [
            "artifact=nowhere",
            "pairs=nor/here",
            "sets=made",
            "out=made",
            "sweep=no.yaml",
            "corruptions.fogg=[1]",
            "shares=[2]",
        ],
        [
            "corruptions.fogg.[key]: 'fogg' is not one of gaussian_noise",
            "sweep, procedures: give both for the word rows, or neither",
            "shares: 2.0 must be above 0 and at most 1",
            "artifact: no such file or folder: 'nowhere'",
            "pairs: no such file or folder: 'nor/here'",
            "sweep: no such file or folder: 'no.yaml'",
        ],
    ),
    "sweep": (
        [
            "name=one",
            "settings.pairs=nowhere",
            "system=procap",
            "settings.procedures=nor/here",
            "rows=[{label: wide, settings: {finetune.beems: 2}}, {label: deep, published: {CIDEr: 1}}]",
            "trials.concurent=2",
        ],
        [
            "trials.concurent: no such setting; did you mean 'concurrent'?",
            "rows.1.published.CIDEr: no such column",
            "rows.0 (wide): finetune.beems: no such setting; did you mean 'beams'?",
            "pairs: no such file or folder: 'nowhere'",
            "procedures: no such file or folder: 'nor/here'",
        ],
    ),
    "convert": (
        ["kind=stage2", "weights=nowhere.chkpt", "out=made", "head=4"],
        [
            "head: no such setting; did you mean 'heads'?",
            "vocabulary: required for stage2; without it the ids of its words have no names",
            "weights: no such file or folder: 'nowhere.chkpt'",
        ],
    ),
    "caption": (
        ["artifact=nowhere", "input=nor/here", "out=made", "beams=2", "candidates=3", "chunk_sise=5", "split=dev"],
        [
            "split: 'dev' is not one of train, val, test",
            "chunk_sise: no such setting; did you mean 'chunk_size'?",
            "beams: candidates=3 need as many beams, got beams=2",
            "artifact: no such file or folder: 'nowhere'",
            "input: no such file or folder: 'nor/here'",
        ],
    ),
    "import_dataset": (
        ["source=nowhere", "out=pairs", "format=clevr", "val_share=0.7", "test_share=0.7", "chunk_sise=3"],
        [
            "format: 'clevr' is not one of folder, csv, jsonl, parquet, clevr_change, clevr_dc, spot_the_diff, "
            "image_editing_request, birds_to_words, levir, omnidiff, instruct_pix2pix, cdvqa, qag360k, procap_hdf5, "
            "hugging_face, webdataset, video",
            "chunk_sise: no such setting; did you mean 'chunk_size'?",
            "val_share + test_share is 1.4, more than 1",
            "source: no such file or folder: 'nowhere'",
        ],
    ),
}
"""Job -> arguments, and how the lines of the faults begin."""
