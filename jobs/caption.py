"""Caption what changed between two images, between those of very many pairs, or in two large GeoTIFFs.

    python jobs/caption.py before.png after.png
    python jobs/caption.py before.png after.png --json --candidates 3
    python jobs/caption.py before.png after.png --map map.png
    python jobs/caption.py before.png after.png --ignore 0,0,1,0.1 --ignore 420,300,640,360
    python jobs/caption.py before.png after.png --detector yolox_s.onnx --names person,car,bottle
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact before.png after.png
    python jobs/caption.py --artifact hf:Qwen/Qwen2.5-VL-3B-Instruct --device cuda before.png after.png
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact --input pairs.csv --out captions --local
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact --input data/demo/pairs --out captions --actors 2
    python jobs/caption.py input= --help         the settings of the last two
    python jobs/caption.py BEFORE.tif AFTER.tif --out FOLDER --local
    python jobs/caption.py BEFORE.tif AFTER.tif --out FOLDER --local --artifact regions tile=512 overlap=64
    python jobs/caption.py BEFORE.tif AFTER.tif --out FOLDER --local --reproject scaling=percentiles bands=[3,2,1]
    python jobs/caption.py BEFORE.tif AFTER.tif --out FOLDER actors=8 gpus_per_actor=1
    python jobs/caption.py out= --help           the settings of the last four

Without --artifact it is auto: the newest captioner below runs/, else the one that comes with the program (shipped), if
the images are like those that it was trained on, which are rendered scenes; for all others, such as photographs and
screenshots, objects. The printed line names the one that spoke. Two GeoTIFFs are captioned by shipped-satellite.

--artifact objects needs no training: an object detector names what came, went or moved, words on both images are read,
and what has no name is said by its place. --artifact regions is the same without a detector: places and colours. A
captioner that is named is used for any pair; of one that is unlike its training images the verdict is unsure, and what
objects says is printed first.

--artifact hf:ORG/NAME[@REVISION] is a vision-language model of the Hugging Face hub: it is downloaded if it is not on
this machine, after a line with its size, and asked what changed (jobs/wrap_vlm.py: with a prompt of yours).

Two images may have any size and mode; PNG, JPEG, WebP, BMP, GIF, TIFF, JPEG 2000 and PPM; they may be URIs. Needs
no Ray and no data set.

With --input: a folder of pairs, Parquet, CSV or JSON lines with the columns `before` and `after` (paths, URIs, in
Parquet also the bytes), or a folder of images. A relative path of a table stays below the table's folder unless
allow_outside=true; absolute paths are always read, URIs of other hosts with allow_remote=true, links that lead out of a
folder with follow_links=true. Every row of the input becomes a row of --out, in the same order; one that cannot be
captioned has its reason in `error`. At the end, --out gets page.html with pairs, captions and maps (--show 40), and
summary.json with counts: named change types, warnings and, where the input has the column `change_type`, how many are
right. The same command given again continues an interrupted job.
--local needs no Ray.

Two GeoTIFFs of one place and --out need rasterio: pip install 'idc[geo]'. Any captioner with a change map serves. The
scene is read and captioned in tiles that overlap; the tiles' maps are merged, and a change
that spans several of them is one polygon. Without --artifact, the one for satellite images that comes with the program
is used: it has learned rendered roads and buildings. FOLDER gets changes.geojson (longitude and latitude; areas in
square metres on the ellipsoid), changes.tif and change_map.tif on the grid of AFTER.tif, summary.json, and the
captioned tiles in tiles/. With another threshold, min_area or native and --overwrite, the tiles are kept and not
captioned again. With --local and actors=N it uses N processes.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

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
    from idc.geo.placed_pair import decode_placed

    return decode_placed(before, after, MAX_PIXELS, names)[0]


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


def main() -> None:
    if any(argument.startswith(("--input", "input=", "--config")) for argument in sys.argv[1:]):
        table_command()
    elif any(argument.startswith(("--out", "out=")) for argument in sys.argv[1:]):
        scene_command()
    else:
        from idc.captioning.pair_command import command

        command(__doc__, _geotiffs)


if __name__ == "__main__":
    main()
