"""Contexts of C3-Bench by name: what a model is told of them, and that every door knows them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from idc.captioning.apply import CaptionSettings
from idc.captioning.contract import SearchOptions
from idc.captioning.criteria import contexts, criteria_text
from idc.config import ConfigError, load
from idc.metrics.change_types import says_no_change
from serve.schema import CaptionForm, ChatRequest

DOMAINS = {"Both images show the same place": 9, "Both images show the same room": 5, "Both images show a product": 29,
           "The second image is an edit": 1, "Both images are satellite images": 7}  # fmt: skip


def test_every_context_says_what_to_report_and_to_ignore_and_what_to_answer() -> None:
    numbers = {start: sum(text.startswith(start) for text in contexts().values()) for start in DOMAINS}
    assert numbers == DOMAINS
    assert sum(numbers.values()) == len(contexts()) == 51
    for name, text in contexts().items():
        _, reported, *_, ignored, answer = text.split(". ")
        assert reported.startswith("Report only these changes: "), name
        assert ignored.startswith("Ignore "), name
        assert "{" not in text + name, name
        assert says_no_change(answer.partition("answer: ")[2]), name


def test_a_context_ignores_what_its_own_line_says_or_what_its_group_does() -> None:
    lot = SearchOptions(criteria="c3:parking_lot").paragraph
    assert lot.startswith("Both images show the same place: parking lot. Report only these changes: vehicles, pedestr")
    assert "Ignore light and exposure, the viewpoint, compression, weather, season and shadows." in lot
    assert "Ignore light and exposure, the viewpoint and compression." in criteria_text("c3:cantina")
    assert "; and any such defect that is gone." in criteria_text("c3:screw")
    assert SearchOptions(criteria="Puddles do not count.").paragraph == "Puddles do not count."


@pytest.mark.parametrize("name", ["c3:parking", "c3:"])
def test_a_name_that_is_none_is_refused_before_anything_is_loaded(name: str) -> None:
    fault = f"'{name}' is no context of C3-Bench"
    with pytest.raises(ConfigError, match=fault):
        load(CaptionSettings, None, {"criteria": name})
    with pytest.raises(ValueError, match=fault):
        SearchOptions(criteria=name)
    body: dict[str, Any] = {"model": "a", "messages": [{"role": "user", "content": "?"}], "criteria": name}
    with pytest.raises(ValidationError, match=fault):
        ChatRequest.model_validate(body)
    with pytest.raises(ValueError, match="did you mean"):
        criteria_text("c3:parking_lots")


def test_a_server_and_a_command_take_a_name() -> None:
    body = {"model": "a", "messages": [{"role": "user", "content": "?"}], "criteria": "c3:tile"}
    assert ChatRequest.model_validate(body).criteria == criteria_text("c3:tile")
    assert load(CaptionSettings, None, {"criteria": "c3:tile"}).search_options().criteria == "c3:tile"
    assert CaptionForm.model_fields["criteria"].default is None
