"""The page of described pairs: counts, refused answers, repetitions (table 14 of NAMC), pairs with pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from markupsafe import Markup

from idc.data.images import ImageError, decode_image
from idc.data.store import iter_rows
from idc.mining.descriptions.config import DescribeJob
from idc.mining.descriptions.describing import ORIGIN
from idc.mining.descriptions.description_statistics import (
    PUBLISHED,
    RESULT,
    DescriptionSummary,
    Repetition,
    description_table,
    summarise_descriptions,
)
from idc.mining.descriptions.template import parse_description
from idc.report import page as pg

PAGE = "page.html"


def write_descriptions_page(job: DescribeJob) -> str:
    """Write ``descriptions.json`` and, unless ``job.show`` is 0, ``page.html`` into the complete folder ``job.out``.
    Returns the counts as text."""
    summary = summarise_descriptions(job)
    texts = {RESULT: summary.model_dump_json(indent=1) + "\n"}
    if job.show:
        texts[PAGE] = descriptions_page(job, summary, list(_shown(job, summary.described))).html()
    pg.write_texts(job.out, texts)
    return f"{job.out}: {description_table(summary)}" + (f"\npage: {job.out}/{PAGE}" if job.show else "")


def descriptions_page(job: DescribeJob, summary: DescriptionSummary, pairs: Sequence[pg.Card]) -> pg.Page:
    """The page of the counts and the pairs to show."""
    settings = {
        "describer": summary.describer,
        "prompt": summary.prompt,
        "words per caption": f"{summary.words_per_caption:.1f}",
        **({"words per image": f"{summary.words_per_image:.1f}"} if summary.words_per_image is not None else {}),
        "verbs": [f"{verb} {count:,}" for verb, count in list(summary.verbs.items())[:12]],
    }
    rejected = {reason: f"{count:,} pairs" for reason, count in summary.rejected.items()}
    refused = summary.asked.examples if summary.asked is not None else {}
    shown = f"{len(pairs)} of {summary.described:,} described pairs, evenly spaced."
    return pg.Page("Described pairs", f"{job.pairs}, described by {summary.describer}", [
        pg.Section("Overview", [
            pg.Tiles(_tiles(summary)),
            pg.Facts(settings),
            pg.Facts(rejected, title="Without a description", folded=True),
        ]),
        pg.Section("Answers", [
            pg.Facts(_asked(summary)), *(pg.Bullets(lines, title=code) for code, lines in refused.items())
        ]),
        pg.Section("Repetition", [pg.Table(
            ["instruction", "total", "unique", "repetition", "ratio", "paper's ratio"],
            [_row(name, row) for name, row in summary.repetition.items()],
            note="Sentences that are equal letter for letter, as in table 14 of the NAMC paper; the last column is the "
            "paper's.",
        )]),
        pg.Section("Pairs", [pg.Cards(pairs, note=shown)]),
    ])  # fmt: skip


def _tiles(summary: DescriptionSummary) -> list[tuple[str, str, str]]:
    rejected = sum(summary.rejected.values())
    tiles = [("described pairs", f"{summary.described:,}", f"of {summary.pairs:,}; {rejected:,} rejected")]
    if (asked := summary.asked) is not None:
        refused = sum(asked.refused.values())
        tiles.append(
            ("answers refused", f"{asked.refused_share:.2%}", f"{refused:,} of {asked.answers:,}; paper: 0.2%")
        )
        tokens = f"{asked.prompt_tokens:,} prompt, {asked.completion_tokens:,} completion"
        tiles.append(("tokens", f"{asked.prompt_tokens + asked.completion_tokens:,}", tokens))
    repeated = summary.repetition["all"]
    tiles.append(("repeated sentences", f"{repeated.share:.2%}", f"{repeated.repeated:,} of {repeated.total:,}"))
    return tiles


def _asked(summary: DescriptionSummary) -> dict[str, str]:
    if (asked := summary.asked) is None:
        return {}
    return {
        **{f"accepted at question {number}": f"{count:,} pairs" for number, count in asked.by_question.items()},
        **{f"refused: {code}": f"{count:,} answers" for code, count in asked.refused.items()},
    }


def _row(name: str, row: Repetition) -> list[str]:
    total, unique = PUBLISHED.get(name, (0, 0))
    published = f"{1 - unique / total:.2%} of {total:,}" if total else ""
    return [name, f"{row.total:,}", f"{row.unique:,}", f"{row.repeated:,}", f"{row.share:.2%}", published]


def _shown(job: DescribeJob, described: int) -> Iterator[pg.Card]:
    """The middle pairs of ``job.show`` equal parts, or all; one whose images are damaged is left out."""
    wanted = pg.middle_numbers(job.show, described)
    for number, row in enumerate(iter_rows(job.out, batch_size=16)):
        if number not in wanted:
            continue
        try:
            views = [(name, pg.reduced(decode_image(row[name]))) for name in ("before", "after")]
        except ImageError:
            continue
        meta = json.loads(row["meta"])
        tags = [row["pair_id"], *([row["change_type"]] if row["change_type"] else [])]
        if (origin := meta.get(ORIGIN)) is not None:
            tags += [origin["instruction"], f"question {origin['question']}"]
        lines = [("said small", line) for line in _lines(job, row["captions"][0])]
        yield pg.Card(row["pair_id"], views, lines, tags)


def _lines(job: DescribeJob, caption: str) -> list[Markup]:
    """The description of each image with its verb."""
    if job.prompt == "conventional":
        return [pg.html_join([pg.styled("soft", "caption"), caption], " ")]
    description = parse_description(caption)
    return [
        pg.html_join([pg.styled("soft", f"first image {description.verb_before}"), description.before], " "),
        pg.html_join([pg.styled("soft", f"second image {description.verb_after}"), description.after], " "),
    ]
