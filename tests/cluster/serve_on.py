"""Serves captions on a running cluster, one proxy on each node: ``python -m tests.cluster.serve_on ADDRESS ARGS``, the
application's args as JSON. Prints ``serving`` and serves until it is killed."""

from __future__ import annotations

import json
import signal
import sys


def main(address: str, args: str) -> None:
    import ray
    from ray import serve

    from serve.app import build

    ray.init(address=address)
    serve.start(proxy_location="EveryNode", http_options={"host": "0.0.0.0", "port": 8000})
    serve.run(build(json.loads(args)), name="captions")
    print("serving", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
