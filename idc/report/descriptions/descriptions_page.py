"""The page of described pairs: counts, cost, refused answers, repetitions (table 14 of NAMC), pairs with pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from markupsafe import Markup

from idc.data import files
from idc.data.images import ImageError, decode_image
from idc.data.store import iter_rows
from idc.data.write_errors import explain_write_errors
from idc.mining.descriptions.config import DescribeJob
from idc.mining.descriptions.describing import NOISE, ORIGIN
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
    summary, out = summarise_descriptions(job), files.locate(job.out)
    with explain_write_errors(out):
        (out / RESULT).write(summary.model_dump_json(indent=1).encode() + b"\n")
    text = f"{job.out}: {description_table(summary)}"
    if job.show:
        page = descriptions_page(job, summary, list(_shown(job, summary.described)))
        with explain_write_errors(out):
            (out / PAGE).write(page.html().encode())
        text += f"\npage: {job.out}/{PAGE}"
    return text


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
    marks = " Dotted words are wrong; “…” marks a missing one." if summary.noise is not None else ""
    return pg.Page("Described pairs", f"{job.pairs}, described by {summary.describer}", [
        pg.Section("Overview", [
            pg.Tiles(_tiles(summary)),
            pg.Facts(settings),
            pg.Facts(rejected, title="Without a description", folded=True),
            pg.Facts(_noise(summary), title="Noise", folded=True),
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
        pg.Section("Pairs", [pg.Cards(pairs, note=shown + marks)]),
    ])  # fmt: skip


def _tiles(summary: DescriptionSummary) -> list[tuple[str, str, str]]:
    rejected = sum(summary.rejected.values())
    tiles = [("described pairs", f"{summary.described:,}", f"of {summary.pairs:,}; {rejected:,} rejected")]
    if (asked := summary.asked) is not None:
        refused = sum(asked.refused.values())
        tiles.append(
            ("answers refused", f"{asked.refused_share:.2%}", f"{refused:,} of {asked.answers:,}; paper: 0.2%")
        )
        cost = "no prices given" if asked.cost is None else f"{asked.cost:,.4g}"
        tokens = f"{asked.prompt_tokens:,} prompt, {asked.completion_tokens:,} completion"
        tiles.append(("tokens", f"{asked.prompt_tokens + asked.completion_tokens:,}", tokens))
        tiles.append(("cost", cost, f"{asked.uncounted:,} answers without a count" if asked.uncounted else ""))
    if (noise := summary.noise) is not None:
        share = noise.wrong_words / max(1, noise.words)
        tiles.append(("wrong words", f"{share:.1%}", f"{noise.wrong_words:,} of {noise.words:,}"))
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


def _noise(summary: DescriptionSummary) -> dict[str, str]:
    if (noise := summary.noise) is None:
        return {}
    share = noise.noisy_images / max(1, noise.images)
    kinds = {kind.replace("_", " "): f"{count:,}" for kind, count in noise.kinds.items()}
    return {"images with noise": f"{noise.noisy_images:,} of {noise.images:,} ({share:.1%})", **kinds}


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
        lines = [("said small", line) for line in _lines(job, row["captions"][0], meta.get(NOISE, []))]
        yield pg.Card(row["pair_id"], views, lines, tags)


def _lines(job: DescribeJob, caption: str, noise: Sequence[dict[str, Any]]) -> list[Markup]:
    """The description of each image with its verb."""
    if job.prompt == "conventional":
        return [pg.html_join([pg.styled("soft", "caption"), caption], " ")]
    description = parse_description(caption)
    images = (
        ("before", f"first image {description.verb_before}", description.before),
        ("after", f"second image {description.verb_after}", description.after),
    )
    return [
        pg.html_join([pg.styled("soft", name), _marked(text, [flaw for flaw in noise if flaw["image"] == image])], " ")
        for image, name, text in images
    ]


def _marked(text: str, noise: Sequence[dict[str, Any]]) -> Markup:
    """The text with its noise dotted; a missing word is an ellipsis."""
    pieces: list[pg.Text_] = []
    end = 0
    for flaw in sorted(noise, key=lambda flaw: flaw["start"]):
        wrong = text[flaw["start"] : flaw["end"]]
        pieces += [text[end : flaw["start"]], pg.struck(wrong or "…", flaw["kind"].replace("_", " "))]
        end = flaw["end"]
    return pg.html_join([*pieces, text[end:]])
