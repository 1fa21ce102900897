"""The encoders of mining as a stage: from encoded images to the two features and a thumbnail of each."""

from __future__ import annotations

import numpy as np

from idc.data.images import ImageError, decode_image, resize_image
from idc.data.pipeline import Batch, StageSpec, good_rows, num_rows, with_errors
from idc.data.readers.base import printable
from idc.mining.config import MinePairsJob, MiningConfig
from idc.mining.features_folder import FEATURES, LENGTHS, THUMBNAIL_SIDE, feature_schema, unit_length


def extraction(job: MinePairsJob) -> StageSpec:
    """The stage, with the job's resources."""
    kwargs = {"config": job.mining(), "threads": job.cpus_per_worker}
    return StageSpec(ExtractFeatures, kwargs, num_gpus=job.gpus_per_worker, batch_size=job.batch_size)


def encoder_fingerprint(config: MiningConfig) -> str:
    """Identifies the encoders and what their features depend on; a model in a folder counts by its content."""
    from idc.training.hashing import content_or_id
    from idc.vision.features import lite0_version

    if config.encoder == "clip_dinov2":
        paper = config.clip_dinov2
        return f"clip {content_or_id(paper.clip)} dinov2 {content_or_id(paper.dinov2)}"
    return f"{lite0_version()} {config.efficientnet_lite0.size}"


class ExtractFeatures:
    """Stage: from the columns of an image collection to those of a folder of features. On a GPU the encoders run in
    bfloat16 where they can, so that features of a GPU and of a CPU differ in the third digit. ``threads`` of torch
    are the same in every worker, so that the last bit does not depend on how many there are."""

    def __init__(self, config: MiningConfig, threads: int) -> None:
        from idc.vision.features import ClipFeatures, Dinov2Features, EfficientNetLite0, use_threads

        use_threads(threads)
        self.max_pixels = config.max_pixels
        if config.encoder == "clip_dinov2":
            clip, dinov2 = ClipFeatures(config.clip_dinov2.clip), Dinov2Features(config.clip_dinov2.dinov2)
            self.encode = lambda images: (clip(images), dinov2(images))
        else:
            self.encode = EfficientNetLite0(config.efficientnet_lite0.size)

    def __call__(self, batch: Batch) -> Batch:
        batch = with_errors(batch)
        out: Batch = {name: [None] * num_rows(batch) for name in feature_schema().names}
        out |= {"place": batch["place"], "image_id": batch["image_id"], "error": list(batch["error"])}
        out["row_id"] = batch["image_id"]
        images: dict[int, np.ndarray] = {}
        for i in good_rows(batch):
            try:
                images[i] = decode_image(batch["data"][i], self.max_pixels)
            except ImageError as fault:
                out["error"][i] = printable(str(fault))
        if images:
            encoded = self.encode(list(images.values()))
            for name, length, vectors in zip(FEATURES, LENGTHS, encoded, strict=True):
                for i, vector, whole in zip(images, unit_length(vectors), vectors, strict=True):
                    out[name][i], out[length][i] = vector.tobytes(), float(np.linalg.norm(whole.astype(np.float64)))
        for i, image in images.items():
            out["height"][i], out["width"][i] = image.shape[:2]
            out["thumbnail"][i] = resize_image(image, THUMBNAIL_SIDE).tobytes()
        return out
