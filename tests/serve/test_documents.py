"""Two PDF files in a request."""

from __future__ import annotations

import httpx2

from serve.schema import CaptionAnswer
from tests.captioning.pdf_files import pdf, text_page
from tests.serve.bodies import CAPTIONS, PAIR, Pair, upload


def test_two_documents_are_compared_page_by_page(client: httpx2.Client) -> None:
    pages = [text_page(0), text_page(1)]
    pair = Pair(pdf(pages), pdf([pages[0], text_page(1, {(7, 3): "zebra"})]))
    answer = client.post(CAPTIONS, **upload(pair, Pair(pair.before, pair.after[:500]), Pair(pair.before, PAIR.after)))
    compared, cut, image = CaptionAnswer.model_validate_json(answer.content).results
    assert compared.caption == 'Page 2 of 2 changed. Page 2: The word "river" became "zebra" at the top left.'
    assert compared.claims is not None
    assert [claim.page for claim in compared.claims] == [2, 2]
    assert str(cut.error).startswith("pair: damaged document")
    assert "not a readable image" in str(image.error)
