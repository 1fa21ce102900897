"""Describe image pairs by a model or an oracle: for NAMC's pre-training in its template, or in free words.

    python jobs/describe_pairs.py pairs=data/cc3m/pairs out=data/cc3m/described endpoint.url=http://localhost:8000/v1 \\
        endpoint.model=Qwen/Qwen2-VL-7B-Instruct
    python jobs/describe_pairs.py pairs=data/cc3m/pairs out=data/trial max_pairs=100 \\
        endpoint.url=https://api.openai.com/v1 endpoint.model=gpt-4o-mini
    python jobs/describe_pairs.py --local describer=oracle pairs=data/demo/pairs \\
        out=data/demo/described oracle.noise=0.2

The result is a folder of pairs, with counts, tokens and repetitions in descriptions.json and examples in page.html. The
same command continues a killed job and asks no answered question again. The key is read from $OPENAI_API_KEY.
"""

from __future__ import annotations

import sys
from functools import partial

from cluster.config import ClusterConfig
from idc.config import cli, command
from idc.mining.descriptions.config import DescribeJob
from idc.next_command import after_descriptions


class Job(DescribeJob):
    """Describe pairs, and the cluster to do it on."""

    cluster: ClusterConfig = ClusterConfig()
    """The Ray cluster (describer=oracle without --local)."""


@command
def main() -> None:
    args = cli(Job, __doc__)
    from cluster.session import run_chunks
    from idc.endpoint.chat_endpoint import EndpointError
    from idc.mining.descriptions.describing import describe_pairs, log_path
    from idc.report.descriptions_page import write_descriptions_page

    job = args.config
    try:
        describe_pairs(job, partial(run_chunks, args.local, job.cluster, job=job), args.overwrite)
        print(write_descriptions_page(job))
        print(f"next: {after_descriptions(job.out)}")
    except EndpointError as error:
        print(f"{error}\nThe answers so far are in {log_path(job)}; the same command continues.", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
