"""Mine similar pairs from a collection of images (NAMC, appendix D.1).

    python jobs/mine_pairs.py --local images=photos out=data/mined
    python jobs/mine_pairs.py --config jobs/configs/mining/paper.yaml images=s3://bucket/cc3m out=s3://bucket/mined

Near-duplicates are left out; then: nearest neighbours under two features, thresholds, clusters, one pair per cluster.
Writes the page mining.html into the folder. The same command continues a killed job; other thresholds reuse features
and neighbours: another out with the same work, or --overwrite.
"""

from __future__ import annotations

from functools import partial

from cluster.config import OnCluster
from idc.config import cli, command
from idc.mining.config import MinePairsJob
from idc.next_command import after_mining


class Job(OnCluster, MinePairsJob):
    """Mine pairs, and the cluster to do it on."""


@command
def main() -> None:
    args = cli(Job, __doc__)
    from cluster.preflight import Bundle, Requirements
    from cluster.session import run_chunks, session
    from idc.mining.image_features import encoder_fingerprint, extraction
    from idc.mining.mining_job import already_mined, mine
    from idc.report.mining_page import mining_summary, write_mining_page

    job = args.config
    encoder = encoder_fingerprint(job)
    earlier = manifest = already_mined(job, encoder, args.overwrite)
    if manifest is None:
        run = partial(run_chunks, args.local, job.cluster, processes=job.workers)
        workers = Bundle("workers", 1, job.cpus_per_worker, job.gpus_per_worker)
        with session(job.cluster, Requirements(job, [workers], job.out), args.local):
            manifest = mine(job, run, extraction(job), encoder, overwrite=args.overwrite)
    write_mining_page(job, manifest, again=earlier is None)
    print("\n".join(mining_summary(job, manifest)))
    print(f"next: {after_mining(job.out)}")


if __name__ == "__main__":
    main()
