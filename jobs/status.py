"""All work: what runs, where, how far, until when and for how much; what has stalled, died or failed, and why.

    python jobs/status.py
    python jobs/status.py "runs=[/shared/idc/runs]" "data=[/shared/idc/data]" core_hour=0.04
    python jobs/status.py --json

Reads the folders of runs, sweeps and data sets, and disturbs none of them. With dashboard=http://HEAD:8265, or
RAY_API_SERVER_ADDRESS, it also shows the jobs and nodes of a Ray cluster.
"""

from __future__ import annotations

import json
import os
import time

from idc.config import cli
from idc.status.config import StatusJob
from idc.status.scan import find_work
from idc.status.status_table import status_table


def main() -> None:
    job = cli(StatusJob, __doc__, local=False, overwrite=False).config
    dashboard = job.dashboard or os.environ.get("RAY_API_SERVER_ADDRESS")
    cluster = None
    try:
        works = find_work([*job.runs, *job.data], job.stalled_after)
        if dashboard:
            from cluster.cluster_state import cluster_state, state_text

            cluster = cluster_state(dashboard)
    except ValueError as error:
        raise SystemExit(f"status: {error}") from None
    if job.json_output:
        now = time.time()
        entries = [work.to_dict(now, job.core_hour, job.gpu_hour) for work in works]
        print(json.dumps({"work": entries, **({"cluster": cluster} if cluster is not None else {})}))
        return
    print(status_table(works, job))
    if cluster is not None:
        print(state_text(cluster))


if __name__ == "__main__":
    main()
