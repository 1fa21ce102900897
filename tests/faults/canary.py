"""A pickle that shows by a folder that it was executed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any


class Canary:
    """Unpickling it creates a folder.

    Args:
        folder: in which ``executed`` is created.
    """

    def __init__(self, folder: Path) -> None:
        self.mark = folder / "executed"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)

    def pickled(self) -> bytes:
        return pickle.dumps(self)

    def check(self) -> None:
        """It was not executed until now; and it would be seen if it were."""
        assert not self.mark.exists(), "a pickle was executed"
        pickle.loads(self.pickled())
        assert self.mark.exists()
        self.mark.rmdir()
