"""The log: one JSON object a line on the standard output, which Ray and Kubernetes collect."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any


def log(**entry: Any) -> None:
    """Write a line; ``time`` is added. Nothing of an image, and no token, may be given."""
    print(json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), **entry}), flush=True)
