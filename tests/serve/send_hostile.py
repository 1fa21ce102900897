"""Send the hostile requests to a running server, then a valid one, and print the status and time of each response.

    python -m tests.serve.send_hostile http://127.0.0.1:8000
    python -m tests.serve.send_hostile http://captions.example.org:8000 TOKEN

Exit status 1 if a response differs from its entry in ``hostile.py``, or takes longer than a second.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from urllib.parse import urlsplit

from tests.serve.bodies import dumped, pair
from tests.serve.hostile import requests
from tests.serve.wire import Hostile, send

LONGEST_S = 1.0


def main(address: str, token: str | None = None) -> int:
    """Send all requests that apply to the server's authentication mode. Returns the number of wrong responses."""
    parts = urlsplit(address)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    mode = "loopback" if token is None else "token"
    good = Hostile("a good request", 200, None, dumped(pair))
    faults = 0
    for hostile in [*(each for each in requests() if each.only in (None, mode)), good]:
        body = hostile.body()  # made before the time is taken
        started = time.perf_counter()
        reply = send(host, port, replace(hostile, body=lambda body=body: body), token)
        seconds = time.perf_counter() - started
        right = reply.status == hostile.status or (hostile.plain and (reply.status == 0 or 400 <= reply.status < 500))
        fault = not right or (seconds > LONGEST_S and hostile is not good)
        faults += fault
        print(f"{'FAULT' if fault else 'ok':5} {reply.status:3} {1000 * seconds:7.0f} ms  {hostile.name}")
    print(f"{faults} faults")
    return faults


if __name__ == "__main__":
    sys.exit(1 if main(*sys.argv[1:]) else 0)
