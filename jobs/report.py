"""Write one self-contained HTML page of a run.

    python jobs/report.py out=runs/report.html evaluations=[runs/captioner/evaluation] pairs=data/pairs \\
        procedures=data/procedures tokenizer=runs/tokenizer/tokenizer runs.tokenizer=runs/tokenizer \\
        "runs.stage 1=runs/pretrain" "runs.stage 2=runs/captioner"

Several evaluations count as seeds: the page shows their mean and deviation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idc.config import cli
from idc.report.config import ReportJob

if TYPE_CHECKING:
    import numpy as np

    from idc.report.collect import Imagine, Reconstruct


def main() -> None:
    args = cli(ReportJob, __doc__, local=False, overwrite=False)
    from idc.report.collect import collect
    from idc.report.run import write_report

    job = args.config
    reconstruct = reconstruction(job.tokenizer) if job.tokenizer is not None else None
    imagine = imagination(job.imagine) if job.imagine is not None else None
    path = write_report(job.out, collect(job, reconstruct, imagine))
    print(f"{path} ({path.stat().st_size / 2**20:.1f} MiB)")


def reconstruction(folder: str) -> Reconstruct:
    """A function that encodes and decodes images with the tokenizer."""
    import numpy as np
    import torch

    from idc.vision.tokenizer.model import ImageTokenizer, prepare_frame, to_frames, to_images

    tokenizer = ImageTokenizer.load(folder).eval()

    @torch.no_grad()
    def reconstruct(images: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
        frames = np.stack([prepare_frame(image, tokenizer.config) for image in images])
        back = to_frames(tokenizer.decode(tokenizer.encode(to_images(frames))))
        return list(zip(frames, back, strict=True))

    return reconstruct


def imagination(artifact: str) -> Imagine:
    """A function that returns the frames ProCap imagines between two images."""
    from idc.systems.procap.imagine import Imaginer

    imaginer = Imaginer(artifact)

    def imagine(before: np.ndarray, after: np.ndarray, caption: str) -> list[tuple[str, np.ndarray]]:
        return [(found.way, found.frames) for found in imaginer(before, after, caption)]

    return imagine


if __name__ == "__main__":
    main()
