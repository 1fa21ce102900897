"""Two PDF files: pages paired by what is on them, the words of the file, bounds, and every way in."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

import idc
from idc.captioning.apply import Fault, Pixels, decode_pair, describe_batch
from idc.captioning.boxes import boxes_of
from idc.captioning.contract import SearchOptions
from idc.captioning.counts import counts_of
from idc.captioning.documents import PagePair, paired_pages
from idc.captioning.objects_config import ObjectsConfig
from idc.data.images import encode_png
from idc.data.pdf import MOST_PAGES, Document, PageLook
from idc.systems import untrained_captioner
from tests.captioning.pdf_files import (
    Draw,
    laughs,
    pdf,
    picture_bomb,
    picture_page,
    raw_pdf,
    scanned_page,
    stream,
    table_page,
    text_page,
)
from tests.conftest import Command

TEXTS = [text_page(seed) for seed in range(4)]
SCANS = [scanned_page(seed) for seed in range(3)]
DRAWN = [picture_page(title=f"Plan {number}") for number in range(3)]
REPORT = [TEXTS[0], table_page(), picture_page()]
ZEBRA = 'The word "river" became "zebra" at the top left.'


def described(before: bytes, after: bytes, options: SearchOptions = SearchOptions()) -> tuple[Pixels, idc.Description]:
    pixels = decode_pair(before, after)
    assert isinstance(pixels, Pixels), pixels
    [result] = describe_batch(untrained_captioner(), [pixels], [options], ObjectsConfig())
    assert isinstance(result.pixels, Pixels)
    assert result.description is not None
    return result.pixels, result.description


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (TEXTS, [TEXTS[0], text_page(1, {(7, 3): "zebra"}), *TEXTS[2:]], f"Page 2 of 4 changed. Page 2: {ZEBRA}"),
        (TEXTS, [TEXTS[0], text_page(9), text_page(1, {(7, 3): "zebra"}), *TEXTS[2:]],
         f"Page 3 of 5 changed; page 2 is new. Page 3, before 2: {ZEBRA}"),
        (TEXTS, [TEXTS[0], TEXTS[3]], "Pages 2 and 3 of the document before are gone."),
        (REPORT, [REPORT[0], table_page("417.50"), REPORT[2]],
         'Page 2 of 3 changed. Page 2: The word "412.50" became "417.50" at the top.'),
        (REPORT, [*REPORT[:2], picture_page(("red", "green"))],
         "Page 3 of 3 changed. Page 3: A region of 245 x 165 px at the bottom changed from blue to green."),
        (DRAWN, [DRAWN[0], picture_page(title="Plan 8"), *DRAWN[1:]], "Page 2 is new."),
        (SCANS, [SCANS[0], scanned_page(1, {(7, 3): "zebra"}), scanned_page(9), SCANS[2]],
         f"Page 2 of 4 changed; page 3 is new. Page 2: {ZEBRA}"),
        (TEXTS, TEXTS, "Nothing changed: all 4 pages are the same."),
    ],
    ids=["word", "inserted page and word", "pages gone", "cell", "picture", "inserted drawing", "scans", "same"],
)  # fmt: skip
def test_the_right_page_and_the_right_words_are_said_and_no_other_page(
    before: Sequence[Draw], after: Sequence[Draw], sentence: str
) -> None:
    _, description = described(pdf(before), pdf(after))
    assert description.best.caption == sentence
    assert description.verdict == ("unchanged" if before is after else "changed")


def test_words_of_the_file_are_not_read_and_boxes_are_on_the_page_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idc.systems.objects.reading.lines_on", lambda image: pytest.fail("letters are read"))
    changed = [*TEXTS[:2], text_page(2, {(7, 3): "zebra"}), text_page(9)]
    pixels, description = described(pdf(TEXTS), pdf(changed), SearchOptions(change_map=True))
    word = description.claims[0]
    assert (word.page, word.before, word.after, word.kind) == (3, "price", "zebra", "replaced")
    left, top, right, bottom = word.box_after
    assert pixels.after[top:bottom, left:right].min() < 60, "the word is there"
    assert description.change_map is not None
    assert description.change_map[top:bottom, left:right].all()
    assert description.change_map.mean() < 0.01
    assert not np.array_equal(pixels.before[top:bottom, left:right], pixels.after[top:bottom, left:right])
    fields = description.to_dict()
    assert json.dumps(fields["claims"])
    assert {claim.page for claim in description.claims} == {3, 4}
    boxes = boxes_of(fields)[1]
    assert {box.name for box in boxes} <= {"zebra", "words"}, "those of page 4 are not on page 3"
    _, uncounted = described(pdf(TEXTS), pdf(changed[:3] + TEXTS[3:]), SearchOptions(counts=counts_of(["colour"])))
    assert uncounted.verdict == "unchanged"
    assert uncounted.best.caption.startswith("Nothing that counts changed. Page 3: Nothing that counts changed. 1 diff")


def test_text_that_flows_on_is_no_other_text() -> None:
    """A word more in the first line moves all that follow, by parts of a pixel."""
    words = [f"word{number}" for number in range(300)]

    def flowing(texts: Sequence[str]) -> Draw:
        def draw(canvas: object) -> None:
            from reportlab.platypus import Paragraph

            paragraph = Paragraph(" ".join(texts))
            paragraph.wrapOn(canvas, 400.3, 700)
            paragraph.drawOn(canvas, 70, 300.7)

        return draw

    _, description = described(pdf([flowing(words)]), pdf([flowing([*words[:5], "zebra", *words[5:]])]))
    assert description.best.caption == 'Page 1 of 1 changed. Page 1: The word "zebra" is now at the top.'
    recoloured = [table_page(), TEXTS[1]]

    def grey(canvas: object) -> None:
        canvas.setFillGray(0.4)  # type: ignore[attr-defined]
        table_page()(canvas)  # type: ignore[arg-type]

    _, look = described(pdf(recoloured), pdf([grey, TEXTS[1]]))
    assert {claim.kind for claim in look.claims} == {"changed"}, "the same words in another colour"


def test_pages_are_paired_by_their_likeness_in_order() -> None:
    def look(key: str, *values: float) -> PageLook:
        unit = np.array(values, np.float32) / np.linalg.norm(values)
        return PageLook(key.encode(), unit, unit)

    a, b, c = look("a", 1, 0, 0), look("b", 0, 1, 0), look("c", 0, 0, 1)
    other_b = look("B", 0.2, 1, 0)
    assert paired_pages([a, b, c], [a, other_b, c]) == [PagePair(0, 0, True), PagePair(1, 1), PagePair(2, 2, True)]
    assert paired_pages([a, b], [c, a, other_b]) == [PagePair(None, 0), PagePair(0, 1, True), PagePair(1, 2)]
    assert paired_pages([a, b], [c]) == [PagePair(0, None), PagePair(1, None), PagePair(None, 0)]
    assert paired_pages([], [a]) == [PagePair(None, 0)]
    unlike = look("d", 0.3, 1, 0)
    assert paired_pages([a], [unlike]) == [PagePair(0, None), PagePair(None, 0)]


FAULTS = {
    "encrypted": (pdf([TEXTS[0]], "secret"), "needs a password"),
    "cut off": (pdf([TEXTS[0]])[:500], "damaged document"),
    "no page": (raw_pdf([], "[]", 0), "damaged document"),
    "pages that are not there": (raw_pdf([stream(b""), b"<< >>"], count=900), "damaged document"),
    "10,000 pages": (
        raw_pdf([stream(b""), b"<< >>"], f"[{'3 0 R ' * 10_000}]", 10_000), f"10,000; at most {MOST_PAGES:,} are"
    ),
    "an image": (encode_png(np.zeros((9, 9, 3), np.uint8)), "not comparable: a document and an image"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_document_that_cannot_be_read_gives_one_line(name: str) -> None:
    data, line = FAULTS[name]
    fault = decode_pair(pdf([TEXTS[0]]), data)
    assert isinstance(fault, Fault)
    assert line in str(fault)
    assert "\n" not in str(fault)


def test_hostile_pages_end_their_process_or_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idc.data.pdf._DOCUMENT_SECONDS", 2.0)
    fault = decode_pair(pdf([TEXTS[0]]), laughs())
    assert isinstance(fault, Fault)
    assert str(fault).startswith("pair: takes too long: more than 2 s")
    for data in (picture_bomb(), raw_pdf([stream(b""), b"<< >>"], box="0 0 10000000 10000000")):
        assert Document(data).page(0).image.size <= 3 * 8_100_000


MEMORY = """
import resource
from idc.captioning.apply import decode_pair
from idc.captioning.contract import SearchOptions
from idc.data import pdf as pdf_module
from tests.captioning.pdf_files import pdf, scanned_page, text_page
pages = [text_page(number) for number in range(200)]
pixels = decode_pair(pdf(pages), pdf([*pages[:150], scanned_page(1), text_page(150, {(7, 3): "zebra"}), *pages[151:]]))
print(pixels.documents.describe(SearchOptions()).best.caption)
pdf_module._decoder.cache_clear()  # a process that has ended is counted
# A process begins with the peak of the one that started it in its ru_maxrss.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(max(peak, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) // 1024)
"""


def test_two_hundred_pages_need_no_more_memory_than_a_few() -> None:
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    sentence, megabytes = run.stdout.splitlines()
    assert sentence.startswith("Page 152 of 201 changed; page 151 is new. Page 152, before 151: The word ")
    assert int(megabytes) < 500, "200 pages at once have 2,300 MB of pixels"


def test_every_way_in(tmp_path: Path, command: Command) -> None:
    before, after = tmp_path / "a.pdf", tmp_path / "b.pdf"
    before.write_bytes(pdf(TEXTS[:2]))
    after.write_bytes(pdf([TEXTS[0], text_page(1, {(7, 3): "zebra"})]))
    sentence = f"Page 2 of 2 changed. Page 2: {ZEBRA}"
    caption = idc.load("shipped")(str(before), str(after))
    assert (caption.caption, caption.verdict) == (sentence, "changed")
    assert caption._repr_png_()
    with pytest.raises(ValueError, match="a document and an image"):
        idc.load("objects")(str(before), np.zeros((9, 9, 3), np.uint8))
    done = command("caption", before, after)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(sentence)
    table = tmp_path / "pairs.csv"
    table.write_text("before,after\na.pdf,b.pdf\na.pdf,a.pdf\na.pdf,cut.pdf\n")
    (tmp_path / "cut.pdf").write_bytes(after.read_bytes()[:500])
    rows = tmp_path / "rows.jsonl"
    done = command("caption", "--input", table, "--out", tmp_path / "out", "--local", f"jsonl={rows}")
    assert done.returncode == 0, done.stderr
    first, second, third = map(json.loads, rows.read_text().splitlines())
    assert (first["caption"], first["claims"][0]["page"]) == (sentence, 2)
    assert second["caption"] == "Nothing changed: all 2 pages are the same."
    assert third["error"].startswith("pair: damaged document")
    assert sentence in (tmp_path / "out" / "page.html").read_text().replace("&#34;", '"')


def test_documents_are_sent_between_processes_and_read_by_one() -> None:
    pixels = decode_pair(pdf(TEXTS[:2]), pdf(TEXTS[:1]))
    other = pickle.loads(pickle.dumps(pixels))
    assert other.documents.describe(SearchOptions()).best.caption == "Page 2 of the document before is gone."
    children = [child for child in psutil.Process().children() if "idc.data.decoder_process" in child.cmdline()]
    assert len(children) == 1
