"""Say what changed between two images.

    python jobs/caption.py --artifact runs/demo/finetune-0/artifact before.png after.png
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact before.png after.png --json --candidates 3
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact before.png after.png --map map.png --frames film.gif

Images may have any size, mode and format that Pillow reads, and may be URIs. Needs no Ray and no data set.
"""

from __future__ import annotations

import argparse
import json
import sys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="image before the change")
    parser.add_argument("after", help="image after the change")
    parser.add_argument("--artifact", required=True, help="a trained captioner: the artifact folder of its run")
    parser.add_argument("--device", default="cpu", help="where to run, e.g. cuda (default: cpu)")
    parser.add_argument("--beams", type=int, help="of the search, 1 is greedy (default: as the artifact was validated)")
    parser.add_argument("--candidates", type=int, default=1, help="captions at most, best first (default: 1)")
    parser.add_argument("--map", metavar="PNG", help="write where it changed: white on black, over the image after")
    parser.add_argument("--frames", metavar="FILE", help="write what the model imagines between: .png or .gif")
    parser.add_argument("--json", action="store_true", help="print JSON: captions, how sure, whether anything changed")
    args = parser.parse_args()
    from idc.caption_pair import caption_pair

    try:
        found = caption_pair(
            args.artifact, args.before, args.after, device=args.device, beams=args.beams, candidates=args.candidates,
            map_to=args.map, frames_to=args.frames,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    if args.json:
        print(json.dumps(found))
    else:
        print("\n".join(one["caption"] for one in found["candidates"]))


if __name__ == "__main__":
    main()
