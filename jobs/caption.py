"""Caption what changed between two images, PDF files, those of two folders or very many pairs, or two large GeoTIFFs.

    python jobs/caption.py before.png after.png
    python jobs/caption.py before.png after.png --json --candidates 3 --map map.png
    python jobs/caption.py before.pdf after.pdf
    python jobs/caption.py before.png after.png --ignore 0,0,1,0.1 --ignore 420,300,640,360
    python jobs/caption.py before.png after.png --detector yolox_s.onnx --names person,car,bottle
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact before.png after.png
    python jobs/caption.py --artifact hf:Qwen/Qwen2.5-VL-3B-Instruct --device cuda before.png after.png
    python jobs/caption.py --artifact runs/demo/finetune-0/artifact --input pairs.csv --out captions --local
    python jobs/caption.py input= --help         the settings of tables
    python jobs/caption.py --before OLD --after NEW --out REPORT --local --fail-on changed --junit report.xml
    python jobs/caption.py --before OLD --after NEW --accept start.png --accept list/empty.png
    python jobs/caption.py BEFORE.tif AFTER.tif --out FOLDER --local --artifact regions tile=512 overlap=64
    python jobs/caption.py BEFORE.tif AFTER.tif --out FOLDER --reproject actors=8 gpus_per_actor=1
    python jobs/caption.py out= --help           the settings of GeoTIFFs

--artifact is auto by default: the newest captioner below runs/, else the one that comes with the program (shipped), if
the images are like those that it was trained on; for all others, such as photographs and screenshots, objects, which
needs no training. regions is the same without an object detector. hf:ORG/NAME[@REVISION] is a vision-language model of
the Hugging Face hub. Images may have any size and mode, and may be URIs. Two images need no Ray. Of two PDF files
(pip install 'idc[documents]') pages are paired by what is on them.

With --input: a folder of pairs, Parquet, CSV or JSON lines with the columns `before` and `after`, or a folder of
images. Names that lead out of the table's folder need allow_outside=true, URIs of other hosts allow_remote=true, links
out of a folder follow_links=true. Every row of the input becomes a row of --out, in the same order; one that cannot be
captioned has its reason in `error`. --out also gets page.html (--show 40) and summary.json. The same command continues
an interrupted job.

Two folders and --out: images of the same relative name are pairs. REPORT gets page.html, summary.md (a comment for a
pull request) and the captions. Status 0; 1: changed, by --fail-on; 2: wrong use; 3: a pair could not be captioned.
--accept NAME, or all, copies images of NEW over OLD instead.

Two GeoTIFFs of one place and --out need rasterio: pip install 'idc[geo]'. The scene is captioned in tiles that overlap;
a change that spans several of them is one polygon. Without --artifact, the captioner for satellite images that comes
with the program is used. FOLDER gets changes.geojson, changes.tif, change_map.tif, summary.json, and the captioned
tiles in tiles/. With another threshold or min_area, and --overwrite, the tiles are kept.
"""

from __future__ import annotations

import gc
import json
import sys
from functools import partial
from typing import TYPE_CHECKING

from idc.captioning.pair import PairJob, caption_pair, caption_text
from idc.config import Cli, command, run_form
from idc.util.command_forms import Form
from idc.util.redaction import for_terminal

if TYPE_CHECKING:
    from cluster.caption_job import CaptionFoldersJob, CaptionSceneJob, CaptionTableJob
    from idc.captioning.apply import Pixels
    from idc.captioning.folder_pairs import AcceptJob


def scene_command(args: Cli[CaptionSceneJob]) -> None:
    job = args.config
    from cluster.session import run_chunks
    from idc.geo.scene_job import caption_scene

    run = partial(run_chunks, args.local, job.cluster, processes=job.actors, job=job)
    print(f"{job.out}: {caption_scene(job, run, args.local, args.overwrite).text()}")


def table_command(args: Cli[CaptionTableJob]) -> None:
    job = args.config
    from cluster.session import run_chunks
    from idc.captioning.table import PAGE, caption_rows
    from idc.next_command import after_captions
    from idc.report.gallery import write_gallery

    done = caption_rows(job, partial(run_chunks, args.local, job.cluster, job=job), args.local, args.overwrite)
    print(for_terminal(f"{job.out}: {done.text()}"))
    if not done.captioned:
        raise SystemExit("caption: no row could be captioned")
    write_gallery(job)
    if job.show:
        print(f"page: {job.out}/{PAGE}")
    print(f"next: {after_captions(job.artifact, job)}")


def folders_command(args: Cli[CaptionFoldersJob]) -> None:
    job = args.config
    from cluster.session import run_chunks
    from idc.captioning.folder_pairs import caption_folders
    from idc.captioning.table import PAGE
    from idc.report.folder_report import COMMENT, states_in_words, status_of, write_report

    try:
        pairs = caption_folders(job, partial(run_chunks, args.local, job.cluster, job=job), args.local)
        write_report(job, pairs)
    except (ValueError, OSError) as error:  # 1 is the status of pairs that changed
        print(for_terminal(f"caption: {error}"), file=sys.stderr)
        raise SystemExit(2) from None
    lines = [f"{pair.name}: {pair.text}" for pair in pairs if pair.state != "unchanged"]
    lines += [states_in_words(pairs), f"page: {job.out}/{PAGE}", f"comment of a pull request: {job.out}/{COMMENT}"]
    print(for_terminal("\n".join(lines)))
    raise SystemExit(status_of(job, pairs))


def accept_command(args: Cli[AcceptJob]) -> None:
    from idc.captioning.folder_pairs import accept

    copied = accept(args.config)
    print(for_terminal("\n".join([*copied, f"{len(copied)} images of {args.config.before} are new"])))


def _geotiffs(before: bytes, after: bytes, names: tuple[str, str]) -> Pixels:
    from idc.data.images import MAX_PIXELS
    from idc.geo.georeferenced_pair import decode_georeferenced

    return decode_georeferenced(before, after, MAX_PIXELS, names)[0]


def pair_command(args: Cli[PairJob]) -> None:
    job = args.config
    # Nearly all objects of this process are made by imports and stay. To look for garbage after every 700 of them, the
    # default, takes a tenth of the time.
    gc.set_threshold(100_000)
    result = caption_pair(job, _geotiffs)
    if result["warning"] is not None:
        print(result["warning"], file=sys.stderr)
    print(json.dumps(result) if job.as_json else for_terminal(caption_text(result)))


@command
def main() -> None:
    images = ("before", "after")
    run_form(
        __doc__,
        {
            pair_command: Form(PairJob, local=False, overwrite=False, positional=images),
            table_command: Form("cluster.caption_job:CaptionTableJob", "input"),
            accept_command: Form(
                "idc.captioning.folder_pairs:AcceptJob", "accept", local=False, overwrite=False, positional=images
            ),
            folders_command: Form(
                "cluster.caption_job:CaptionFoldersJob",
                "out",
                overwrite=False,
                positional=images,
                unlike=(".tif", ".tiff"),
            ),
            scene_command: Form("cluster.caption_job:CaptionSceneJob", "out", positional=images),
        },
    )


if __name__ == "__main__":
    main()
