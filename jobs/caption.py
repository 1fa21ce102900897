"""Say what changed between two images, or between those of very many pairs.

    python jobs/caption.py before.png after.png
    python jobs/caption.py before.png after.png --json --candidates 3
    python jobs/caption.py before.png after.png --map map.png --frames film.gif
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact before.png after.png
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact --input pairs.csv --out captions --local
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact --input data/demo/pairs --out captions --actors 2
    python jobs/caption.py input= --help         the settings of the last two

Without --artifact, --server and --device, a server that runs on this machine (http://127.0.0.1:8000, as `make serve`
starts it) is asked; if there is none, the newest captioner below runs/ is loaded. A line on stderr says which. Images
are sent to another machine only if --server names it; its token is read from IDC_TOKEN.

Two images may have any size and mode; PNG, JPEG, WebP, BMP, GIF, TIFF, AVIF, JPEG 2000 and PPM; they may be URIs. Needs
no Ray and no data set.

With --input: a folder of pairs, Parquet, CSV or JSON lines with the columns `before` and `after` (paths, URIs, in
Parquet also the bytes), or a folder of images. A table may name any local file, and URIs of other hosts with
allow_remote=true; links that lead out of a folder are followed with follow_links=true. Every row of the input becomes
a row of --out, in the same order; one that cannot be captioned has its reason in `error`. The same command given again
goes on where it was. --local needs no Ray.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial

from cluster.config import ClusterConfig
from idc.captioning.table import CaptionJob, caption_rows
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


def one() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="image before the change")
    parser.add_argument("after", help="image after the change")
    parser.add_argument("--artifact", help="a trained captioner: the artifact folder of its run (default: see above)")
    parser.add_argument("--server", help="ask this server (default: see above; none: no server)")
    parser.add_argument("--device", help="where to run, e.g. cuda (default: cpu); loads an artifact")
    parser.add_argument("--beams", type=int, help="of the search, 1 is greedy (default: as the artifact was validated)")
    parser.add_argument("--candidates", type=int, default=1, help="captions at most, best first (default: 1)")
    parser.add_argument("--map", metavar="PNG", help="write where it changed: white on black, over the image after")
    parser.add_argument("--frames", metavar="FILE", help="write what the model imagines between: .png or .gif")
    parser.add_argument("--json", action="store_true", help="print JSON: captions, how sure, whether anything changed")
    args = parser.parse_args()
    if args.server not in (None, "none") and (args.artifact or args.device):
        parser.error("--server captions with the server's model; leave out --artifact and --device")
    from idc.captioning.pair import caption_somehow, text_of

    try:
        found = caption_somehow(
            args.before, args.after, artifact=args.artifact, server=args.server, device=args.device, beams=args.beams,
            candidates=args.candidates, map_to=args.map, frames_to=args.frames,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    print(json.dumps(found) if args.json else text_of(found))


def many() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks

    job = args.config
    run = partial(run_chunks, args.local, job.cluster)
    try:
        done = caption_rows(job, run, args.local, args.overwrite)
    except (ValueError, OSError) as error:
        raise SystemExit(f"caption: {error}") from None
    print(f"{job.out}: {done.text()}")
    if not done.captioned:
        raise SystemExit("caption: no row could be captioned")


if __name__ == "__main__":
    main()
