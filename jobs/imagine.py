"""Show the frames that ProCap generates between two images: a filmstrip (PNG) and an animation (GIF).

    python jobs/imagine.py --artifact runs/demo/finetune-0/artifact before.png after.png --caption "the red ball moved"
    python jobs/imagine.py --artifact runs/demo/finetune-0/artifact --pairs data/demo/pairs --ids a,b,c

Writes OUT/NAME.png and OUT/NAME.gif; NAME is the pair's id or the name of the image before. Existing files are kept,
and NAME-2 is written. An artifact of stage 1 needs a caption; one of stage 2 uses its own if none is given, and also
generates frames without one. Needs no Ray.
"""

from __future__ import annotations

import argparse
import sys


def main() -> None:
    from idc.captioning.loading import add_options, given_options, in_options

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="the image before and the image after the change")
    parser.add_argument("--artifact", required=True, help="artifact folder of a run of stage 1 or stage 2")
    parser.add_argument("--pretrained", metavar="DIR", help="stage 1's artifact, if it is not where stage 2 read it")
    parser.add_argument("--caption", help="the change to show (default: the captioner's own caption)")
    parser.add_argument("--pairs", metavar="DIR", help="folder of pairs, instead of two images")
    parser.add_argument("--ids", default="", help="ids of the pairs, separated by commas")
    parser.add_argument("--rounds", type=int, default=8, help="rounds in which the frames of a caption are filled in")
    parser.add_argument("--out", default="runs/imagined", help="output folder (default: runs/imagined)")
    add_options(parser)
    args = parser.parse_args()
    if (len(args.images) != 2) == (args.pairs is None) or bool(args.ids) != bool(args.pairs) or args.rounds < 1:
        parser.error("give two images, or --pairs and --ids; --rounds is at least 1")
    from idc.systems.procap.imagine import Imaginer, imagine_to, read_pairs

    try:
        pairs = read_pairs(args.images, args.pairs, [name for name in args.ids.split(",") if name])
        imaginer = Imaginer(args.artifact, args.pretrained, given_options(args))
        for pair in pairs:
            for path in imagine_to(args.out, imaginer, pair, args.caption, args.rounds):
                print(path)
    except (OSError, ValueError) as error:
        print(in_options(error), file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
