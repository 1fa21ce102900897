"""The page of described pairs."""

from __future__ import annotations

from pathlib import Path

from idc.data.pipeline import run_local
from idc.mining.descriptions.describing import describe_pairs
from idc.mining.descriptions.description_statistics import RESULT, DescriptionSummary
from idc.report.descriptions_page import PAGE, write_descriptions_page
from tests.chat_server import serving
from tests.mining.descriptions.small_pairs import described, job, number_in, write_pairs
from tests.report.html_page import HtmlPage


def test_counts_refused_answers_and_pairs(tmp_path: Path) -> None:
    with serving() as server:
        server.answer = lambda number, content: (
            (200, "<b>No</b>") if number_in(content) == 2 else described(number_in(content) // 2)
        )
        described_job = job(write_pairs(tmp_path / "pairs", 9), server.url, asks=2, max_reject_share=0.2, show=4)
        describe_pairs(described_job, run_local)
    text = write_descriptions_page(described_job)
    assert "8 of 9 pairs described by Qwen2-VL, structured prompt" in text
    assert "rejected: 1 x off template" in text
    assert "10 answers, 20.00% of them refused (2 x off template); 1,000 prompt and 200 completion tokens" in text
    assert f"page: {described_job.out}/{PAGE}" in text
    summary = DescriptionSummary.model_validate_json((Path(described_job.out) / RESULT).read_bytes())
    assert (summary.repetition["cc3m"].total, summary.repetition["cc3m"].unique) == (8, 5)
    page = HtmlPage((Path(described_job.out) / PAGE).read_text(encoding="utf-8"))
    shown = " ".join(page.text.split())
    assert len(page.images) == 8
    for expected in ("20.00%", "2 of 10; paper: 0.2%", "1,000 prompt, 200 completion", "3 of 8", "2.00% of 449,194",
                     "p02: <b>No</b>", "first image shows", "4 of 8 described pairs"):  # fmt: skip
        assert expected in shown, expected
