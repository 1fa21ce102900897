"""Caption what changed between two images, between those of very many pairs, or in two large GeoTIFFs.

    python jobs/caption.py before.png after.png
    python jobs/caption.py before.png after.png --json --candidates 3 --map map.png
    python jobs/caption.py before.png after.png --ignore 0,0,1,0.1 --ignore 420,300,640,360
    python jobs/caption.py before.png after.png --detector yolox_s.onnx --names person,car,bottle
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact before.png after.png
    python jobs/caption.py --artifact hf:Qwen/Qwen2.5-VL-3B-Instruct --device cuda before.png after.png
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact --input pairs.csv --out captions --local
    python jobs/caption.py input= --help         the settings of tables
    python jobs/caption.py BEFORE.tif AFTER.tif --out FOLDER --local --artifact regions tile=512 overlap=64
    python jobs/caption.py BEFORE.tif AFTER.tif --out FOLDER --reproject actors=8 gpus_per_actor=1
    python jobs/caption.py out= --help           the settings of GeoTIFFs

--artifact is auto by default: the newest captioner below runs/, else the one that comes with the program (shipped), if
the images are like those that it was trained on; for all others, such as photographs and screenshots, objects, which
needs no training. regions is the same without an object detector. hf:ORG/NAME[@REVISION] is a vision-language model of
the Hugging Face hub. Images may have any size and mode, and may be URIs. Two images need no Ray.

With --input: a folder of pairs, Parquet, CSV or JSON lines with the columns `before` and `after`, or a folder of
images. Names that lead out of the table's folder need allow_outside=true, URIs of other hosts allow_remote=true, links
out of a folder follow_links=true. Every row of the input becomes a row of --out, in the same order; one that cannot be
captioned has its reason in `error`. --out also gets page.html (--show 40) and summary.json. The same command continues
an interrupted job.

Two GeoTIFFs of one place and --out need rasterio: pip install 'idc[geo]'. The scene is captioned in tiles that overlap;
a change that spans several of them is one polygon. Without --artifact, the captioner for satellite images that comes
with the program is used. FOLDER gets changes.geojson, changes.tif, change_map.tif, summary.json, and the captioned
tiles in tiles/. With another threshold or min_area, and --overwrite, the tiles are kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from idc.captioning.contract import Speed
from idc.captioning.loading import LoadConfig
from idc.captioning.objects_config import Mode
from idc.config import load

if TYPE_CHECKING:
    from collections.abc import Callable

    from idc.captioning.apply import Pixels
    from idc.data.store import Manifest


def __getattr__(name: str) -> Any:
    """``Job``, which every job has: imported when it is asked for, because two images need nothing of it, and most of
    the time that they take is imports."""
    if name != "Job":
        raise AttributeError(name)
    from cluster.caption_job import CaptionTableJob

    return CaptionTableJob


def _geotiffs(before: bytes, after: bytes, names: tuple[str, str]) -> Pixels:
    """The pixels of two GeoTIFFs of one grid."""
    from idc.data.images import MAX_PIXELS
    from idc.geo.georeferenced_pair import decode_georeferenced

    return decode_georeferenced(before, after, MAX_PIXELS, names)[0]


def scene_command() -> None:
    from cluster.caption_job import CaptionSceneJob
    from idc.config import cli

    args = cli(CaptionSceneJob, __doc__, positional=("before", "after"))
    job = args.config
    from cluster.session import run_chunks
    from idc.geo.scene_job import caption_scene

    try:
        run = partial(run_chunks, args.local, job.cluster, processes=job.actors, job=job)
        print(f"{job.out}: {caption_scene(job, run, args.local, args.overwrite).text()}")
    except (ValueError, OSError) as error:
        raise SystemExit(f"caption: {error}") from None


def table_command() -> None:
    from cluster.caption_job import CaptionTableJob
    from idc.config import cli

    args = cli(CaptionTableJob, __doc__)
    from cluster.session import run_chunks
    from idc.captioning.table import PAGE, caption_rows
    from idc.next_command import after_captions
    from idc.report.gallery import write_gallery

    run: Callable[..., Manifest] = partial(run_chunks, args.local, args.config.cluster, job=args.config)
    try:
        job = args.config
        done = caption_rows(job, run, args.local, args.overwrite)
        print(f"{job.out}: {done.text()}")
        if not done.captioned:
            raise SystemExit("caption: no row could be captioned")
        write_gallery(job)
    except (ValueError, OSError) as error:
        raise SystemExit(f"caption: {error}") from None
    if job.show:
        print(f"page: {job.out}/{PAGE}")
    print(f"next: {after_captions(job.artifact, job)}")


def _pair_arguments() -> argparse.Namespace:
    """The command line for one pair; ``loading`` has the settings of the captioner. Leaves with status 2 on an
    error."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [options] BEFORE AFTER\n       %(prog)s --input FOLDER --out FOLDER [options and settings]\n"
        "       %(prog)s BEFORE.tif AFTER.tif --out FOLDER [options and settings]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("before", help="image before the change")
    add("after", help="image after the change")
    add("--artifact", help="a captioner: auto (default, see above), objects, regions, shipped, shipped-satellite, "
        "hf:ORG/NAME, or the artifact folder of a training run")  # fmt: skip
    options = {
        "device": add("--device", help="torch device of the captioner, e.g. cuda (default: cpu)"),
        "base.source": add("--base", metavar="FOLDER", help="the artifact's base model, if it is not where it "
            "was made"),
        "speed": add("--speed", choices=get_args(Speed), help="optimisations of the captioner (default: auto, those "
            "that change no caption and pay here); exact: none, fast: also what pays on some processors only, bf16: "
            "captions may differ"),
        "objects.detector": add("--detector", help="what names objects: embedded (default), the ONNX file of a YOLOX "
            "model, hf:ORG/NAME, or none"),
        "objects.names": add("--names", help="objects that may be named, as in person,car (default: see "
            "docs/captioning.md)"),
        "objects.mode": add("--mode", choices=get_args(Mode), help="how images are compared: exact for screenshots and "
            "documents, photographs, or auto (default)"),
        "endpoint.url": add("--endpoint", metavar="URL", help="a server that runs the language model of a "
            "vision-language artifact, http://localhost:8000/v1 as `vllm serve` starts it (default: it runs here)"),
    }  # fmt: skip
    add("--ignore", action="append", metavar="PART", default=[], help="where differences do not count: "
        "left,top,right,bottom in pixels of AFTER or in shares of it (0 to 1), or a mask image, which is white there; "
        "may be given several times")  # fmt: skip
    add("--only", action="append", metavar="PART", default=[], help="where differences count alone, likewise")
    add("--beams", type=int, help="of the search, 1 is greedy (default: as the artifact was validated)")
    add("--candidates", type=int, default=1, help="maximum number of captions (default: 1)")
    add("--map", metavar="PNG", help="write where it changed: white on black, over the image after")
    add("--json", action="store_true", help="print JSON: captions, confidences, verdict")
    args = parser.parse_args()
    values = {setting: getattr(args, option.dest) for setting, option in options.items()}
    try:
        args.loading = load(LoadConfig, None, {name: value for name, value in values.items() if value is not None})
    except ValueError as error:
        _refuse(error)
    return args


def _refuse(error: Exception) -> NoReturn:
    """Print an error with the option ``--base`` in place of the setting, but in commands of other jobs."""
    setting = r"(?<!\.py )\bbase\.source(?:=|(?=:))"
    print(re.sub(setting, lambda match: "--base " if match[0].endswith("=") else "--base", str(error)), file=sys.stderr)
    raise SystemExit(2) from None


def main() -> None:
    if any(argument.startswith(("--input", "input=", "--config")) for argument in sys.argv[1:]):
        table_command()
        return
    if any(argument.startswith(("--out", "out=")) for argument in sys.argv[1:]):
        scene_command()
        return
    args = _pair_arguments()
    # Nearly all objects of this process are made by imports and stay. To look for garbage after every 700 of them, the
    # default, takes a tenth of the time.
    gc.set_threshold(100_000)
    from idc.captioning.pair import caption_pair, caption_text  # numpy and Pillow, which `--help` does not need

    try:
        result = caption_pair(
            args.artifact, args.before, args.after, load=args.loading, beams=args.beams, candidates=args.candidates,
            map_to=args.map, ignore=args.ignore, only=args.only, geotiffs=_geotiffs,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        _refuse(error)
    if result["warning"] is not None:
        print(result["warning"], file=sys.stderr)
    print(json.dumps(result) if args.json else caption_text(result))


if __name__ == "__main__":
    main()
