"""Show what ProCap imagines between two images: a filmstrip (PNG) and a film (GIF).

    python jobs/imagine.py --artifact runs/demo/finetune-0/artifact before.png after.png --caption "the red ball moved"
    python jobs/imagine.py --artifact runs/demo/finetune-0/artifact --pairs data/demo/pairs --ids a,b,c

Writes OUT/NAME.png and OUT/NAME.gif, NAME being the pair's id or the before image's name; what is there is kept, and
NAME-2 is written. An artifact of stage 1 needs
the caption; one of stage 2 says its own if none is given, and imagines without it, too. Needs no Ray.
"""

from __future__ import annotations

import argparse
import sys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="the image before and the image after the change")
    parser.add_argument("--artifact", required=True, help="artifact folder of a run of stage 1 or stage 2")
    parser.add_argument("--pretrained", metavar="DIR", help="stage 1's artifact, if stage 2's was moved away from it")
    parser.add_argument("--caption", help="the change to imagine (default: what the captioner says)")
    parser.add_argument("--pairs", metavar="DIR", help="folder of pairs, instead of two images")
    parser.add_argument("--ids", default="", help="ids of the pairs, with commas between them")
    parser.add_argument("--rounds", type=int, default=8, help="rounds in which a caption's frames are filled in")
    parser.add_argument("--out", default="runs/imagined", help="folder to write to (default: runs/imagined)")
    parser.add_argument("--device", default="cpu", help="where to run, e.g. cuda (default: cpu)")
    args = parser.parse_args()
    if (len(args.images) != 2) == (args.pairs is None) or bool(args.ids) != bool(args.pairs) or args.rounds < 1:
        parser.error("give two images, or --pairs and --ids; --rounds is at least 1")
    from idc.systems.procap.imagine import Imaginer, imagine_to, read_pairs

    try:
        pairs = read_pairs(args.images, args.pairs, [name for name in args.ids.split(",") if name])
        imaginer = Imaginer(args.artifact, args.pretrained, args.device)
        for pair in pairs:
            for path in imagine_to(args.out, imaginer, pair, args.caption, args.rounds):
                print(path)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
