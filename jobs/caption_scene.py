"""Caption two GeoTIFFs of one place, of any size: a map of what changed, polygons with class, area and caption as
GeoJSON, and a sentence.

    python jobs/caption_scene.py BEFORE.tif AFTER.tif --out FOLDER --local
    python jobs/caption_scene.py BEFORE.tif AFTER.tif --out FOLDER --local --artifact regions tile=512 overlap=64
    python jobs/caption_scene.py BEFORE.tif AFTER.tif --out FOLDER --local --reproject scaling=percentiles bands=[3,2,1]
    python jobs/caption_scene.py BEFORE.tif AFTER.tif --out FOLDER actors=8 gpus_per_actor=1

Needs rasterio: pip install 'idc[geo]'. Any captioner with a change map serves. The scene is read and captioned in tiles
that overlap and never held in memory; the tiles' maps are merged, and a change that spans several of them is one
polygon. Without --artifact, the one for satellite images that comes with the program is used: it has learned rendered
roads and buildings. --artifact regions needs no training.

FOLDER gets changes.geojson (longitude and latitude; areas in square metres on the ellipsoid), changes.tif and
change_map.tif on the grid of AFTER.tif, summary.json, and the captioned tiles in tiles/. The same command given again
continues an interrupted job. With another threshold, min_area or native and --overwrite, the tiles are kept and not
captioned again. --local needs no Ray; with actors=N it uses N processes.
"""

from __future__ import annotations

from functools import partial

from cluster.config import ClusterConfig
from idc.config import cli
from idc.geo.config import SceneJob


class Job(SceneJob):
    """Caption a pair of GeoTIFFs, and where to do it."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__, positional=("before", "after"))
    job = args.config
    from cluster.session import run_chunks
    from idc.geo.scene_job import caption_scene

    try:
        run = partial(run_chunks, args.local, job.cluster, processes=job.actors, job=job)
        result = caption_scene(job, run, args.local, args.overwrite)
    except (ValueError, OSError) as error:
        raise SystemExit(f"caption_scene: {error}") from None
    print(f"{job.out}: {result.text()}")


if __name__ == "__main__":
    main()
