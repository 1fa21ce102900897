"""What is concluded of a caption, a calibrated probability and a familiarity: verdict, its reason, and the warning;
and the regions of a class map."""

from __future__ import annotations

import re

import numpy as np
import pytest

from idc.captioning.class_counts import ClassCount, count_classes
from idc.captioning.contract import FAMILIAR_FROM, UNSURE_BETWEEN, Candidate, ClassMap, Description, require
from tests.captioning.toy import ToyCaptioner

MOVED, SAME = Candidate("the red cube moved", -0.1), Candidate("nothing has changed", -0.1)


@pytest.mark.parametrize(
    ("best", "changed", "verdict", "text"),
    [
        (MOVED, None, "changed", None),
        (SAME, None, "unchanged", None),
        (MOVED, UNSURE_BETWEEN[1], "changed", None),
        (SAME, UNSURE_BETWEEN[0], "unchanged", None),
        (MOVED, 0.12, "unsure", "the caption names a change, but the calibrated probability .* is 12 %"),
        (SAME, 0.88, "unsure", "the caption says that nothing changed, but the calibrated probability .* is 88 %"),
        (MOVED, 0.6, "unsure", "the caption names a change, and the .* is 60 %, too near one half to decide"),
        (SAME, 0.4, "unsure", "the caption says that nothing changed, and the .* is 40 %, too near one half to decide"),
    ],
)
def test_the_verdict_is_unsure_where_caption_and_probability_disagree_or_the_probability_decides_nothing(
    best: Candidate, changed: float | None, verdict: str, text: str | None
) -> None:
    found = Description((best,), changed=changed)
    assert found.verdict == verdict
    assert re.fullmatch(text or "", found.verdict_text or "")


@pytest.mark.parametrize("best", [MOVED, SAME])
@pytest.mark.parametrize("changed", [None, 0.01, 0.99])
def test_of_an_unfamiliar_pair_the_verdict_is_unsure_whatever_the_caption_reads(
    best: Candidate, changed: float | None
) -> None:
    description = Description((best,), changed=changed, familiarity=FAMILIAR_FROM / 2)
    assert (description.verdict, description.verdict_text) == (
        "unsure", "the images are unlike those that the model was trained on",
    )  # fmt: skip
    assert Description((best,), changed=changed, familiarity=FAMILIAR_FROM).verdict_text != description.verdict_text


def test_only_a_pair_below_the_threshold_gets_a_warning_and_it_names_what_the_model_has_seen() -> None:
    unfitted = Description((SAME,), trained_on="rendered scenes")
    assert (unfitted.familiar, unfitted.warning) == (None, None)
    inside = Description((SAME,), familiarity=FAMILIAR_FROM, trained_on="rendered scenes")
    assert (inside.familiar, inside.warning) == (True, None)
    outside = Description((SAME,), familiarity=FAMILIAR_FROM / 2, trained_on="rendered scenes")
    assert (outside.familiar, outside.warning) == (
        False, "This model has only seen rendered scenes. Do not trust it here.",
    )  # fmt: skip
    unnamed = Description((SAME,), familiarity=FAMILIAR_FROM / 2)
    assert unnamed.warning == "This model has only seen other images than these. Do not trust it here."


def test_a_captioner_is_refused_where_it_lacks_a_capability() -> None:
    captioner = ToyCaptioner(lambda befores, afters: ["no change"])
    with pytest.raises(ValueError, match=r"^score: this captioner cannot compute the probability .*capabilities: none"):
        require(captioner, "score")
    captioner.capabilities = frozenset({"map", "answer"})
    assert require(captioner, "map") is captioner
    with pytest.raises(ValueError, match=r"^sample: .* sample captions at random .*capabilities: answer, map"):
        require(captioner, "sample")


NAMES = ("background", "road", "building")


def test_regions_of_each_class_with_their_positions_and_share() -> None:
    classes = np.zeros((30, 30), np.uint8)
    classes[2:8, 2:8] = 2
    classes[20:28, 1:9] = 2
    classes[:, 11:20] = 1
    classes[15, 28] = 2  # without an area: not counted, as in the published answers
    road, building = count_classes(ClassMap(classes, NAMES))
    assert road == ClassCount("road", 1, 270 / 900, ("center",))
    assert building == ClassCount("building", 2, 101 / 900, ("lower left corner", "top left corner"))
    assert building.to_dict() == {
        "name": "building", "count": 2, "share": 101 / 900, "positions": ["lower left corner", "top left corner"],
    }  # fmt: skip
