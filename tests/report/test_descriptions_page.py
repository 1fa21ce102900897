"""The page of described pairs."""

from __future__ import annotations

import json
from pathlib import Path

from idc.data.pipeline import run_local
from idc.data.store import iter_rows
from idc.mining.descriptions.config import DescribeJob
from idc.mining.descriptions.describing import describe_pairs
from idc.mining.descriptions.description_statistics import RESULT, DescriptionSummary
from idc.report.descriptions.descriptions_page import PAGE, write_descriptions_page
from tests.chat_server import serving
from tests.mining.descriptions.small_pairs import described, job, number_in, write_pairs
from tests.report.html_page import HtmlPage

THING = {"color": "red", "material": "metal", "shape": "cube", "size": "small", "radius": 0.4, "turn": 0.0}
VIEW = {"origin": [0.0, -9.0, 4.0], "target": [0.0, 0.0, 0.3]}
SCENE = {
    "before": [{**THING, "x": -1.0, "y": 0.0}], "after": [{**THING, "x": 1.0, "y": 0.0}], "views": [VIEW, VIEW],
}  # fmt: skip


def test_counts_cost_refused_answers_and_pairs(tmp_path: Path) -> None:
    with serving() as server:
        server.answer = lambda number, content: (
            (200, "<b>No</b>") if number_in(content) == 2 else described(number_in(content) // 2)
        )
        one = job(
            write_pairs(tmp_path / "pairs", 9), server.url, asks=2, max_reject_share=0.2, price_prompt=1000.0,
            price_completion=0.0, show=4,
        )  # fmt: skip
        describe_pairs(one, run_local)
    text = write_descriptions_page(one)
    assert "8 of 9 pairs described by Qwen2-VL, structured prompt" in text
    assert "rejected: 1 x off template" in text
    assert (
        "10 answers, 20.00% of them refused (2 x off template); 1,000 prompt and 200 completion tokens, cost 1" in text
    )
    assert f"page: {one.out}/{PAGE}" in text
    summary = DescriptionSummary.model_validate_json((Path(one.out) / RESULT).read_bytes())
    assert (summary.repetition["cc3m"].total, summary.repetition["cc3m"].unique) == (8, 5)
    page = HtmlPage((Path(one.out) / PAGE).read_text(encoding="utf-8"))
    shown = " ".join(page.text.split())
    assert len(page.images) == 8
    for expected in ("20.00%", "2 of 10; paper: 0.2%", "1,000 prompt, 200 completion", "3 of 8", "2.00% of 449,194",
                     "p02: <b>No</b>", "first image shows", "4 of 8 described pairs"):  # fmt: skip
        assert expected in shown, expected


def test_noise_is_marked(tmp_path: Path) -> None:
    pairs = write_pairs(tmp_path / "pairs", 2, p00={"meta": SCENE}, p01={"meta": SCENE})
    for kind, marked in (("wrong_attribute", 4), ("missing_detail", 4)):
        one = DescribeJob(
            pairs=pairs, out=str(tmp_path / kind), describer="oracle", oracle={"noise": 1.0, "noise_kinds": [kind]}
        )
        describe_pairs(one, run_local)
        write_descriptions_page(one)
        page = HtmlPage((tmp_path / kind / PAGE).read_text(encoding="utf-8"))
        found = [attrs["title"] for tag, attrs in page.tags if tag == "s"]
        assert found == [kind.replace("_", " ")] * marked
        assert ("…" in page.text.replace("“…”", "")) == (kind == "missing_detail")
        noise = [json.loads(row["meta"])["description_noise"] for row in iter_rows(one.out)]
        assert [len(some) for some in noise] == [2, 2]
