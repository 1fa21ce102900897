"""Import captions that people or models have ranked, with the columns of TRL or LLaMA-Factory, for jobs/train_adpo.py.

    python jobs/import_preferences.py source=ranked.jsonl out=data/ranked
    python jobs/import_preferences.py source=ranked.json images=photos out=data/ranked --local

Unusable rows, such as those whose two captions are the same, are left out and listed with their reasons in
rejects-*.parquet. The same command continues a killed import.
"""

from __future__ import annotations

from cluster.config import ClusterConfig
from idc.config import cli
from idc.data.ranked_captions import ImportPreferencesJob


class Job(ImportPreferencesJob):
    """Import ranked captions, and the cluster to do it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (not with --local)."""


def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.data.ranked_captions import open_preferences, preference_rows

    job = args.config
    try:
        folder, source, stages = open_preferences(job, args.overwrite)
        manifest = run_chunks(
            args.local, job.cluster, folder, source, stages, preference_rows, max_reject_share=job.max_reject_share,
            job=job, name="preferences",
        )  # fmt: skip
    except ValueError as error:
        raise SystemExit(f"import_preferences: {error}") from None
    print(f"{job.out}: {manifest.num_rows} preferences {manifest.rows_by_split}, rejected: {manifest.num_rejected} "
          f"{manifest.reject_reasons}")  # fmt: skip


if __name__ == "__main__":
    main()
