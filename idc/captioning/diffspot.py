"""Captions of DiffSpot's pairs as its leaderboard takes them: JSON lines of ``id``, ``split``, ``model``,
``prompt_version``, ``raw_response`` and ``prediction``, which has one bullet per difference (docs/evaluation.md and
scripts/prepare_submission.py of Tencent/DiffSpot)."""

from __future__ import annotations

from typing import Any

from idc.captioning.edits import values_in
from idc.data.rows import InputRows

PROMPT_VERSION = "v1.0"
"""Of their prompt, in which a captioner that reads none lists what it would list anyway."""
TIERS = ("easy", "medium", "hard", "no_diff")
_NO_DIFFERENCE = "There is no difference."
_NOT_COMPARED = "The images could not be compared."
"""Prediction of a row without a caption: an empty one is refused."""


def tiers_of(rows: InputRows) -> list[str]:
    """The split of each row, by ``task_type`` and ``difficulty`` in its ``meta``.

    Raises:
        ValueError: a row has none.
    """
    batches = map(rows.read, range(rows.num_chunks))
    return [_tier(*row) for batch in batches for row in zip(batch["pair_id"], batch["meta"], strict=True)]


def _tier(pair_id: str, meta: Any) -> str:
    values = values_in(meta)
    tier = "no_diff" if values.get("task_type") == "no_diff" else values.get("difficulty")
    if tier not in TIERS:
        raise ValueError(
            f"diffspot: pair {pair_id!r} has the difficulty {tier!r}, not one of {', '.join(TIERS)}; import the set's "
            "Parquet first (jobs/import_dataset.py format=diffspot)"
        )
    return str(tier)


def prediction(row: dict[str, Any], tier: str, model: str) -> dict[str, str]:
    """The line of a row of captions: what its claims say, else that there is no difference, else its caption."""
    claims = [claim["text"] for claim in row["claims"] or () if claim["text"]]
    text = row["caption"] or _NOT_COMPARED
    if claims:
        text = "\n".join(f"- {claim}" for claim in claims)
    elif row["verdict"] == "unchanged":
        text = _NO_DIFFERENCE
    return {
        "id": row["pair_id"], "split": tier, "model": model, "prompt_version": PROMPT_VERSION,
        "raw_response": row["caption"] or "", "prediction": text,
    }  # fmt: skip
