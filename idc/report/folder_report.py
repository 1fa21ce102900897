"""The report on two folders of images: a page, a comment for a pull request, and test cases."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from idc.captioning.boxes import boxes_of
from idc.captioning.contract import assessment_text
from idc.captioning.folder_pairs import STATES, FilePair, FoldersJob, State
from idc.captioning.table import PAGE
from idc.data.images import ImageError, decode_image, encode_png
from idc.report.page import Bullets, Card, Cards, Page, PageBlock, Section, Tiles, reduced, write_texts
from idc.report.pair_cards import with_boxes

COMMENT = "summary.md"
MOST = 60_000
"""Characters of a comment; GitHub takes 65,536."""
_PICTURES = "pictures"
"""Folder of the comment's pictures."""
_SIDE = 320
"""Longer side of such a picture, in pixels."""
_TITLES: dict[State, str] = {
    "changed": "Changed", "new": "New", "missing": "Missing", "unsure": "Not decided", "failed": "Not compared",
    "unchanged": "Unchanged",
}  # fmt: skip
_SPECIAL = re.compile(r"([\\`*_{}\[\]()<>#+!|~&-])")
_MENTION = re.compile(r"([@#])(?=\w)")
_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_report(job: FoldersJob, pairs: Sequence[FilePair]) -> None:
    """Write page, comment and pictures into ``job.out``, and ``job.junit``.

    Raises:
        ValueError: a file cannot be written.
    """
    shutil.rmtree(Path(job.out, _PICTURES), ignore_errors=True)  # of another run
    shown = [pair for state in STATES[:4] for pair in pairs if pair.state == state][: job.show]
    cards: dict[str, Card] = {}
    pictures = {}
    for number, pair in enumerate(shown):
        views = list(_views(pair))
        cards[pair.name] = _card(pair, views)
        for role, image in views:
            pictures[pair.name, role] = f"{_PICTURES}/{number}-{role}.png"
            file = Path(job.out, pictures[pair.name, role])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode_png(reduced(image, _SIDE)))
    write_texts(job.out, {PAGE: _page(job, pairs, cards).html(), COMMENT: comment(pairs, pictures)})
    if job.junit is not None:
        path = Path(job.junit)
        write_texts(str(path.parent), {path.name: test_cases(pairs, job.fail_on)})


def status_of(job: FoldersJob, pairs: Sequence[FilePair]) -> int:
    """The exit status: 3 if a pair could not be captioned, else 1 if one of them makes the job fail, else 0."""
    if any(pair.state == "failed" for pair in pairs):
        return 3
    return int(any(pair.fails(job.fail_on) for pair in pairs))


def states_in_words(pairs: Sequence[FilePair]) -> str:
    """ "3 changed, 1 new, 36 unchanged"."""
    counts = Counter(pair.state for pair in pairs)
    return ", ".join(f"{counts[state]} {_TITLES[state].lower()}" for state in STATES if counts[state])


def comment(pairs: Sequence[FilePair], pictures: dict[tuple[str, str], str]) -> str:
    """The pairs that are not unchanged as GitHub's Markdown, of at most :data:`MOST` characters.

    Args:
        pictures: (name, role) -> relative link.
    """
    lines = [f"**What changed:** {states_in_words(pairs)}."]
    listed = [pair for state in STATES[:-1] for pair in pairs if pair.state == state]
    if listed:
        lines += ["", "| file | what changed | before | after |", "|---|---|---|---|"]
    length = sum(map(len, lines)) + len(lines)
    for number, pair in enumerate(listed):
        images = [
            f"![{role}]({link})" if (link := pictures.get((pair.name, role))) else "" for role in ("before", "after")
        ]
        row = f"| {markdown_text(pair.name)} | {markdown_text(pair.text)} | {images[0]} | {images[1]} |"
        end = f"\n{len(listed) - number} more are on the page."
        if length + len(row) + 1 + len(end) > MOST:
            lines.append(end)
            break
        lines.append(row)
        length += len(row) + 1
    return "\n".join(lines) + "\n"


def markdown_text(text: str) -> str:
    """A text that Markdown shows as it is, in one line of a table: words that were read off an image mention nobody."""
    line = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    return _MENTION.sub("\\1\u2060", line)  # a word joiner, which nobody sees


def test_cases(pairs: Sequence[FilePair], fail_on: str) -> str:
    """One test case a pair, as JUnit writes them."""
    failures = sum(pair.fails(fail_on) for pair in pairs)
    errors = sum(pair.state == "failed" for pair in pairs)
    suite = ElementTree.Element(
        "testsuite", name="idc", tests=str(len(pairs)), failures=str(failures), errors=str(errors)
    )
    for pair in pairs:
        case = ElementTree.SubElement(suite, "testcase", classname="idc", name=_NOT_IN_XML.sub("?", pair.name))
        text = _NOT_IN_XML.sub("?", pair.text)
        if pair.state == "failed":
            ElementTree.SubElement(case, "error", message=text, type=pair.state)
        elif pair.fails(fail_on):
            ElementTree.SubElement(case, "failure", message=text, type=pair.state)
        else:
            ElementTree.SubElement(case, "system-out").text = text
    root = ElementTree.Element("testsuites")
    root.append(suite)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _views(pair: FilePair) -> Iterator[tuple[str, np.ndarray]]:
    """Role and picture with its boxes, of the files that can be read."""
    boxes = ([], []) if pair.row is None or pair.row["caption"] is None else boxes_of(pair.row)
    for role, path, of_image in zip(("before", "after"), (pair.before, pair.after), boxes, strict=True):
        if path is None:
            continue
        try:
            image = decode_image(path.read_bytes())
        except (OSError, ImageError):
            continue
        yield role, with_boxes(image, of_image)


def _card(pair: FilePair, views: Sequence[tuple[str, np.ndarray]]) -> Card:
    tags = [pair.name]
    if pair.row is not None and pair.row["caption"] is not None:
        tags.append(assessment_text(pair.row))
    return Card(pair.name, views, [("said", pair.text)], tags)


def _page(job: FoldersJob, pairs: Sequence[FilePair], cards: Mapping[str, Card]) -> Page:
    of_state = {state: [pair for pair in pairs if pair.state == state] for state in STATES}
    sections = [
        Section("Overview", [Tiles([(_TITLES[state].lower(), str(len(of_state[state])), "") for state in STATES])])
    ]
    for state in STATES:
        shown = [cards[pair.name] for pair in of_state[state] if pair.name in cards]
        rest = [f"{pair.name}: {pair.text}" for pair in of_state[state] if pair.name not in cards]
        blocks: list[PageBlock] = [Cards(shown)]
        title = f"{len(rest)} {'more' if shown else 'files'}"
        blocks.append(Bullets(rest, title=title, folded=state == "unchanged" or bool(shown)))
        sections.append(Section(_TITLES[state], blocks))
    return Page("What changed", f"{job.before} and {job.after}", sections)
