"""The OpenAPI document and its HTML page are complete; ``test_api.py`` checks that the page loads nothing else."""

from __future__ import annotations

import re
from typing import Any

import httpx2
import pytest

from serve.api import create_api
from tests.serve.local import LocalBackend, local_config, serving


@pytest.fixture(scope="module")
def answers(artifact: str) -> tuple[dict[str, Any], httpx2.Response]:
    """The OpenAPI document, and the page."""
    with serving(create_api(local_config(artifact), LocalBackend(artifact))) as address:
        return httpx2.get(f"{address}/openapi.json").json(), httpx2.get(f"{address}/docs")


def test_every_path_and_schema_is_on_the_page(answers: Any) -> None:
    document, page = answers
    assert page.status_code == 200
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"<code>{method.upper()} {path}</code>" in page.text
    for name in document["components"]["schemas"]:
        assert f'id="{name}"' in page.text
    targets = set(re.findall(r'href="#(\w+)"', page.text))
    assert targets <= set(document["components"]["schemas"])
    assert "CaptionRequest" in targets
    assert "`" not in re.sub(r"<pre.*?</pre>", "", page.text, flags=re.DOTALL)  # no markup is left over


def test_every_operation_and_field_is_described(answers: Any) -> None:
    document, _ = answers
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["summary"]
            assert operation["description"]
            assert operation["tags"]
            assert "500" in operation["responses"]
    for path in ("/v1/captions", "/v1/chat/completions"):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        assert len(content["examples"]) >= 3
    for shape in document["components"]["schemas"].values():
        assert all("description" in field or "$ref" in field for field in shape.get("properties", {}).values()), shape
