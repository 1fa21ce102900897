"""The one-pair part of ``jobs/caption.py``: its command line."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from typing import TYPE_CHECKING, get_args

from idc.captioning.loading import add_options, given_options, in_options
from idc.captioning.objects_config import Mode

if TYPE_CHECKING:
    from idc.captioning.pair import ReadGeotiffs


def command(doc: str | None, geotiffs: ReadGeotiffs) -> None:
    """``jobs/caption.py`` for one pair: parse the command line, caption, print. Leaves with status 2 on an error.

    Args:
        geotiffs: reads two GeoTIFFs.
    """
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options] BEFORE AFTER\n       %(prog)s --input FOLDER --out FOLDER [options and settings]\n"
        "       %(prog)s BEFORE.tif AFTER.tif --out FOLDER [options and settings]",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", help="image before the change")
    parser.add_argument("after", help="image after the change")
    parser.add_argument(
        "--artifact",
        help="a captioner: auto (default, see above), objects, regions, shipped, shipped-satellite, hf:ORG/NAME, or "
        "the artifact folder of a training run",
    )
    add_options(parser)
    parser.add_argument(
        "--detector",
        help="what names objects: embedded (default), the ONNX file of a YOLOX model, hf:ORG/NAME, or none",
    )
    parser.add_argument("--names", help="objects that may be named, as in person,car (default: see docs/captioning.md)")
    parser.add_argument(
        "--mode", choices=get_args(Mode), help="how images are compared: exact for screenshots and documents, "
        "photographs, or auto (default)",
    )  # fmt: skip
    parser.add_argument(
        "--ignore", action="append", metavar="PART", default=[], help="where differences do not count: "
        "left,top,right,bottom in pixels of AFTER or in shares of it (0 to 1), or a mask image, which is white there; "
        "may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--only", action="append", metavar="PART", default=[], help="where differences count alone, likewise"
    )
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help="a server that runs the language model of a vision-language artifact, http://localhost:8000/v1 as "
        "`vllm serve` starts it (default: it runs here)",
    )
    parser.add_argument("--beams", type=int, help="of the search, 1 is greedy (default: as the artifact was validated)")
    parser.add_argument("--candidates", type=int, default=1, help="maximum number of captions (default: 1)")
    parser.add_argument("--map", metavar="PNG", help="write where it changed: white on black, over the image after")
    parser.add_argument("--json", action="store_true", help="print JSON: captions, confidences, verdict")
    args = parser.parse_args()
    # Nearly all objects of this process are made by imports and stay. To look for garbage after every 700 of them, the
    # default, takes a tenth of the time.
    gc.set_threshold(100_000)
    from idc.captioning.pair import caption_text, caption_with_any  # numpy and Pillow, which `--help` does not need

    try:
        result = caption_with_any(
            args.before, args.after, artifact=args.artifact, load=given_options(args), beams=args.beams,
            candidates=args.candidates, map_to=args.map, ignore=args.ignore, only=args.only, geotiffs=geotiffs,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        print(in_options(error), file=sys.stderr)
        raise SystemExit(2) from None
    print(json.dumps(result) if args.json else caption_text(result))
