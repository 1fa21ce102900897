"""Say what changed between two images.

    python jobs/caption.py --artifact runs/demo-finetune/artifact before.png after.png

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
