"""Say what changed between two images, or between those of very many pairs.

    python jobs/caption.py --artifact runs/demo/finetune-0/artifact before.png after.png
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact --input pairs.csv --out captions --local
    python jobs/caption.py --artifact CAPTIONER --input s3://bucket/pairs --out s3://bucket/captions --actors 8
    python jobs/caption.py input= --help         the settings of the second form

Two images may have any size, mode and format that Pillow reads, and may be URIs; needs no Ray and no data set.

With --input: a folder of pairs, Parquet, CSV or JSON lines with the columns `before` and `after` (paths, URIs, in
Parquet also the bytes), or a folder of images. Every row of it becomes a row of --out, in the same order; one that
cannot be captioned has its reason in `error`. The same command given again goes on where it was. --local needs no Ray.
"""

from __future__ import annotations

import argparse
import json
import sys

from cluster.config import ClusterConfig
from idc.batch import CaptionJob
from idc.config import cli


class Job(CaptionJob):
    """Caption the pairs of an input, and where to do it."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    if any(argument.startswith(("--input", "input=", "--config")) for argument in sys.argv[1:]):
        many()
    else:
        one()


def many() -> None:
    args = cli(Job, __doc__)
    from functools import partial

    from cluster.session import run_chunks
    from idc.batch import caption_rows

    job = args.config
    try:
        done = caption_rows(job, partial(run_chunks, args.local, job.cluster), args.local, args.overwrite)
    except (ValueError, OSError) as error:
        raise SystemExit(f"caption: {error}") from None
    print(f"{job.out}: {done.text()}")
    if done.rows and done.rows == sum(done.errors.values()):
        raise SystemExit("caption: no row could be captioned")


def one() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="image before the change")
    parser.add_argument("after", help="image after the change")
    parser.add_argument("--artifact", required=True, help="a trained captioner: the artifact folder of its run")
    parser.add_argument("--device", default="cpu", help="where to run, e.g. cuda (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print JSON with the file names and the caption")
    args = parser.parse_args()
    from idc.data.images import ImageError, decode_image, read_bytes

    images, faults = [], []
    for path in (args.before, args.after):
        try:
            images.append(decode_image(read_bytes(path)))
        except (OSError, ImageError) as error:
            faults.append(f"{path}: {error}")
    if faults:
        print("\n".join(faults), file=sys.stderr)
        raise SystemExit(2)
    from idc.systems import load_captioner

    try:
        captioner = load_captioner(args.artifact, args.device)
    except ValueError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    caption = captioner([images[0]], [images[1]])[0]
    if args.json:
        print(json.dumps({"before": args.before, "after": args.after, "caption": caption, "artifact": args.artifact}))
    else:
        print(caption)


if __name__ == "__main__":
    main()
