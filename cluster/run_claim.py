"""A run's claim on its folder: which config it is of."""

from __future__ import annotations

from typing import Any

from cluster.tracking import flat
from idc.evaluation.provenance import ORIGIN, command_line, commit
from idc.training.config import OPERATIONAL
from idc.training.run_storage import CHECKPOINTS, RunFolder

CONFIG, RESULT, FATAL = "config.json", "result.json", "fatal.json"


def claim(run: RunFolder, record: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Return the result of the run in its folder if it is complete; otherwise claim the folder for this run.

    Raises:
        ValueError: if another run is there, unless an error ended it before its first checkpoint.
    """
    if run.exists(CONFIG):
        differing = _differing(run.read(CONFIG), record)
        nothing_to_lose = run.exists(FATAL) and not run.exists(CHECKPOINTS)
        if differing and not overwrite and not nothing_to_lose:
            shown = "\n  ".join(differing[:12])
            raise ValueError(
                f"{run} holds a run of another config; take another run name, or --overwrite it. Differing:\n  {shown}"
            )
        if differing:
            run.clear(last=CONFIG)
        elif run.exists(RESULT):
            result: dict[str, Any] = run.read(RESULT)
            return result
        run.remove(FATAL)
    elif not run.is_empty():
        raise ValueError(f"{run} is not empty and not a training run (it has no {CONFIG}); take another run name")
    run.write(CONFIG, record)
    run.write(ORIGIN, {"command": command_line(), "commit": commit()})
    return None


def _differing(saved: dict[str, Any], record: dict[str, Any]) -> list[str]:
    """One line per dotted key whose values differ, except settings that do not change what is learned."""
    old, new = flat(saved), flat(record)
    operational = tuple(f"train.{field}" for field in OPERATIONAL)

    def matters(key: str) -> bool:
        return not any(key == field or key.startswith(field + ".") for field in operational)

    absent = "(absent)"
    return [
        f"{key}: saved {old.get(key, absent)!r}, now {new.get(key, absent)!r}"
        for key in sorted(old.keys() | new.keys())
        if matters(key) and old.get(key, absent) != new.get(key, absent)
    ]
