"""One pair has one answer, whichever way it comes in: Python, the command, a table, the forms and conversations of the
server, and the form that the page sends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import numpy as np
import pytest

import idc
import serve
from idc.captioning.objects_config import OBJECTS
from idc.captioning.sources import AUTO, SHIPPED
from idc.data.images import encode_png
from tests.captioning.test_loading import rows_of, write_table
from tests.conftest import Command
from tests.serve.bodies import BOTTLES, CHAT, RENDERED, Pair, conversation, result, url
from tests.systems.objects.test_exact import BLUE, changed, screen

FIELDS = ("caption", "verdict", "verdict_text", "captioner", "chosen", "claims", "objects_text")
SCREENS = Pair(encode_png(np.array(screen())), encode_png(changed("rectangle", (40, 400, 239, 439), fill=BLUE)))
LEFT = np.zeros((30, 40, 3), np.uint8)
LEFT[:, :12] = 255


class Case(NamedTuple):
    """A pair, caption and captioner of the answer, the mask of what does not count, and the name of what counts."""

    pair: Pair
    caption: str
    captioner: str = OBJECTS
    mask: bytes | None = None
    counts: str | None = None


CASES = {
    "photographs": Case(BOTTLES, "A bottle on the left is gone."),
    "screens": Case(SCREENS, "A blue area of 200 x 40 px appeared at the bottom left."),
    "rendered scenes": Case(RENDERED, "", SHIPPED),
    "with a mask": Case(BOTTLES, "Nothing clearly changed.", mask=encode_png(LEFT)),
    "traffic": Case(
        BOTTLES, "Nothing that counts clearly changed. 1 difference of objects does not count.", counts="traffic"
    ),
}


def page_fields() -> dict[str, str]:
    """What the page adds to a form with two images."""
    script = (Path(serve.__file__).parent / "web" / "api.js").read_text(encoding="utf-8")
    fields = dict(re.findall(r'^ *form\.append\("(\w+)", ([^;]+)\);', script, re.MULTILINE))
    images = {role: fields.pop(role) for role in Pair._fields}
    assert images == {role: f"{role}.file, {role}.name" for role in Pair._fields}
    return {name: "true" if value == "canMap !== false" else value.strip('"') for name, value in fields.items()}


@pytest.mark.parametrize("name", CASES)
def test_every_way_in_has_the_same_answer(name: str, tmp_path: Path, command: Command, client: httpx2.Client) -> None:
    pair, caption, captioner, mask, counts = CASES[name]
    paths = tmp_path / "before.png", tmp_path / "after.png"
    for path, data in zip(paths, pair, strict=True):
        path.write_bytes(data)
    part, ignored = tmp_path / "mask.png", {} if mask is None else {"ignore": mask}
    part.write_bytes(mask or b"")
    settings: Any = {
        **({} if mask is None else {"ignore": str(part)}),
        **({} if counts is None else {"counts": counts}),
    }
    options = [word for name, value in settings.items() for word in (f"--{name}", value)]
    fields = ignored | ({} if counts is None else {"counts": counts})
    loaded: Any = idc.load()
    printed = command("caption", *paths, "--json", *options)
    assert printed.returncode == 0, printed.stderr
    masks = {name: url(data) for name, data in ignored.items()}
    asked = conversation(*map(url, pair), model=AUTO, n=2, **(fields | masks))
    answer = client.post(CHAT, json=asked).raise_for_status().json()
    assert len(answer["choices"]) == (1 if captioner == OBJECTS else 2)
    answers = {
        "python": loaded(*paths, **{name: [value] for name, value in settings.items()}).to_dict(),
        "command": json.loads(printed.stdout),
        "table": rows_of(write_table(tmp_path / "pairs.csv", paths), str(tmp_path / "out"), **settings)[0],
        "form": result(client, pair, model=AUTO, **fields),
        "page": result(client, pair, model=AUTO, **page_fields(), **fields),
        "conversation": {**answer, "caption": answer["choices"][0]["message"]["content"]},
    }
    first = {field: answers["python"][field] for field in FIELDS}
    assert (first["captioner"], caption or first["caption"]) == (captioner, first["caption"])
    for way, answered in answers.items():
        assert {field: answered[field] for field in FIELDS} == json.loads(json.dumps(first)), way
