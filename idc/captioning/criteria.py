"""What counts, for a model that reads language: own words, or a context of C3-Bench by its name, ``c3:parking_lot``."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from idc.util.model_faults import did_you_mean

C3 = "c3:"
"""Before the name of a context: a topic of C3-Bench, ``image_editing``, or one of its domains' anomalies."""
_CONTEXTS = Path(__file__).with_name("c3_contexts.yaml")
_NOTHING = "There is no identifiable change."
"""The answer that the benchmark asks for where nothing that counts changed."""


def criteria_text(criteria: str) -> str:
    """The criteria as a paragraph.

    Raises:
        ValueError: there is no context of this name.
    """
    name = criteria.removeprefix(C3)
    if name == criteria:
        return criteria
    if name not in contexts():
        raise ValueError(
            f"{criteria!r} is no context of C3-Bench{did_you_mean(name, list(contexts()))}; "
            f"there are {', '.join(contexts())}"
        )
    return contexts()[name]


@cache
def contexts() -> dict[str, str]:
    """Name of a context of C3-Bench -> what it asks for, in our words."""
    groups = yaml.safe_load(_CONTEXTS.read_text(encoding="utf-8"))
    return {
        name: f"{group['scene'].format(name.replace('_', ' '))} Report only these changes: {reported}"
        f"{group.get('besides', '')}. Ignore {ignored or group['ignore']}. If none of these changed, answer: {_NOTHING}"
        for group in groups
        for name, text in group["contexts"].items()
        for reported, _, ignored in [text.partition(" | ")]
    }
