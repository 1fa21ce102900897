"""Render CLEVR-Change-style image pairs, or satellite pairs, with their captions into a folder of pairs.

    python jobs/render.py --local --config jobs/configs/render/demo.yaml out=data/demo/pairs
    python jobs/render.py --local --config jobs/configs/render/several_small.yaml out=data/several/pairs
    python jobs/render.py --local --config jobs/configs/render/satellite_small.yaml out=data/satellite/pairs
    python jobs/render.py out=s3://bucket/pairs render.num_scenes=1000 render.jitter=extreme workers=64

Two pairs per scene: one with a change, one with distractors only; with render.ordered_pairs=true eight of each training
scene; with render.several one, with none to five changes; with render.satellite one in LEVIR-CC's manner. Scene n of a
seed is the same for any number of workers, with Ray or without. The same command continues a killed build.
"""

from __future__ import annotations

from cluster.config import OnCluster
from idc.config import cli, command
from idc.next_command import after_pairs
from idc.rendered.config import RenderJob


class Job(OnCluster, RenderJob):
    """Render pairs, and the cluster to do it on."""


@command
def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.rendered.render import open_rendering

    job = args.config
    folder, source, stages = open_rendering(job, args.overwrite)
    manifest = run_chunks(
        args.local, job.cluster, folder, source, stages,
        processes=job.workers, max_reject_share=job.max_reject_share, job=job, name="rendering",
    )  # fmt: skip
    print(f"{job.out}: {manifest.num_rows} pairs {manifest.rows_by_split}, rejected: {manifest.num_rejected}")
    print(f"next: {after_pairs(job.out)}")


if __name__ == "__main__":
    main()
