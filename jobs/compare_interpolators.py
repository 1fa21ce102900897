"""Compare interpolators: PSNR and SSIM of known middle frames for the linear blend, DIS flow and VFIformer.

    python jobs/compare_interpolators.py triplets.middlebury=data/middlebury triplets.ucf101=data/ucf101 \\
        out=runs/interpolators
    python jobs/compare_interpolators.py triplets.vimeo=data/vimeo_triplet split=test out=runs/interpolators \\
        vfiformer.VFIformer=net_220.pth "vfiformer.our own=runs/interpolator/artifact"

Runs in this process. Writes interpolators.json and interpolators.md to the folder `out`.
"""

from __future__ import annotations

from idc.config import cli
from idc.vision.interpolation.config import CompareInterpolatorsJob


class Job(CompareInterpolatorsJob):
    """The comparison; it needs no cluster."""


def main() -> None:
    args = cli(Job, __doc__, local=False, overwrite=False)
    from idc.vision.interpolation.comparison import compare, table

    try:
        result = compare(args.config)
    except ValueError as error:
        raise SystemExit(f"compare_interpolators: {error}") from None
    print(table(result))


if __name__ == "__main__":
    main()
