"""ChangeIMTI of a small LEVIR-MCI: questions and answers word for word, and table I's numbers."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from idc.changeimti.changeimti_counts import PUBLISHED_SAMPLES, count_changeimti, counts_table, task_of
from idc.changeimti.changeimti_job import open_changeimti
from idc.changeimti.config import BuildChangeImtiJob
from idc.data.images import decode_image
from idc.data.pipeline import run_local
from idc.data.schema import Instruction
from idc.data.store import Manifest, iter_rows, read_rejects
from tests.changeimti.small_mci import (
    PIXEL,
    ROAD_CENTER,
    ROAD_LEFT,
    ROOF_LOW_RIGHT,
    ROOF_TOP,
    ROOF_TOP_TOO,
    MciFolder,
    label_of,
    small_job,
)

PAIR = "<image> and <image>"
ROADS = "Please tell me where the roads have changed in these two images"
BUILDINGS = "Please tell me where the buildings have changed in these two images"
HINT = ",if no change please output: No change."

Rows = dict[str, Instruction]


def build(job: BuildChangeImtiJob) -> Manifest:
    folder, source, stages = pickle.loads(pickle.dumps(open_changeimti(job)))
    return run_local(folder, source, stages, progress=False, max_reject_share=job.max_reject_share)


def rows_of(job: BuildChangeImtiJob) -> Rows:
    """The rows of a built folder, by the ends of their ids if there is one pair."""
    rows = [Instruction.from_row(row) for row in iter_rows(job.out)]
    single = len({row.of_pair for row in rows}) == 1
    return {row.row_id.partition("/")[2] if single else row.row_id: row for row in rows}


def built(folder: Path, mci: MciFolder, **more: Any) -> Rows:
    job = small_job(mci.imported(folder), max_reject_share=1, **more)
    build(job)
    return rows_of(job)


def asked(row: Instruction) -> list[tuple[str, str]]:
    texts = [turn.text for turn in row.turns]
    return list(zip(texts[::2], texts[1::2], strict=True))


def changed_pair(*boxes: Any) -> MciFolder:
    mci = MciFolder()
    mci.pair(1, 1, *boxes)
    return mci


def test_the_questions_of_a_changed_pair_are_those_of_the_notebook(tmp_path: Path) -> None:
    """The 15 samples, in the order of table I; positions once each, from the last region to the first."""
    rows = built(tmp_path, changed_pair(ROAD_LEFT, ROAD_CENTER, ROOF_TOP, ROOF_TOP_TOO, ROOF_LOW_RIGHT))
    single = {name: asked(row)[0] for name, row in rows.items() if not name.startswith("dialogue")}
    assert single == {
        **{f"caption-{n}": (f"Please describe the changes in {PAIR}", f"{n} houses appear in the scene 1")
           for n in range(5)},
        "binary": (f"Please check if there have been any changes to the roads or buildings in these two images:{PAIR}. "
                   "Please answer yes or no.", "Yes"),
        "count-road": (f"How many roads have been changed in these two images:{PAIR}", "2"),
        "count-building": (f"How many buildings have been changed in these two images:{PAIR}", "3"),
        "location-road": (f"{ROADS}:{PAIR}{HINT}", "center,left"),
        "location-building": (f"{BUILDINGS}:{PAIR}{HINT}", "lower right corner,top"),
    }  # fmt: skip
    assert list(rows) == [*single, *(f"dialogue-{n}" for n in range(5))]
    row = rows["count-road"]
    assert (row.split, row.of_pair, row.source) == ("train", "train_000001", "LEVIR/train_000001.png")
    assert row.meta["changeflag"] == 1
    assert row.meta["about"] == "road"
    assert [region["position"] for region in row.meta["regions"]["building"]] == ["lower right corner", "top", "top"]
    assert row.meta["regions"]["road"][0] == {
        "polygon": [[25, 25], [25, 32], [32, 32], [32, 25]], "centroid": [28, 28], "position": "center"
    }  # fmt: skip
    assert [decode_image(image)[0, 0, 1] for image in row.images] == [90, 150], "before and after"


def test_a_dialogue_asks_four_things_and_shows_the_images_in_its_first_turn(tmp_path: Path) -> None:
    rows = built(tmp_path, changed_pair(ROAD_LEFT, ROOF_TOP, ROOF_LOW_RIGHT))
    for number in range(5):
        row = rows[f"dialogue-{number}"]
        first, roads, buildings, last = asked(row)
        assert first == (f"Have there been any changes to the roads and buildings in these two images:{PAIR}?", "Yes")
        assert roads in [("How many roads have been changed in these two images?", "1"), (ROADS + HINT, "left")]
        assert buildings in [
            ("How many buildings have been changed in these two images?", "2"),
            (BUILDINGS + HINT, "lower right corner,top"),
        ]
        assert last == ("Please describe the changes.", f"{number} houses appear in the scene 1")
        tasks = [turn.task for turn in row.turns if turn.role == "assistant"]
        assert tasks[0] == "binary"
        assert set(tasks[1:3]) <= {"count", "location"}
        assert tasks[3] == "caption"


def test_an_unchanged_pair_has_one_caption_and_one_dialogue(tmp_path: Path) -> None:
    mci = MciFolder()
    mci.pair(2, 0)
    rows = built(tmp_path, mci)
    assert len(rows) == 7
    assert asked(rows["caption-0"])[0][1] == "the scene is the same as before", "not its first sentence"
    assert asked(rows["binary"])[0][1] == "No"
    assert asked(rows["count-road"])[0][1] == asked(rows["count-building"])[0][1] == "0"
    assert asked(rows["location-road"])[0] == (f"{ROADS}:{PAIR}{HINT}", "No change")
    assert asked(rows["dialogue-0"])[3][1] == "the scene is the same as before"


def test_train_and_val_of_levir_mci_give_the_numbers_of_table_1(tmp_path: Path) -> None:
    """4,074 changed and 4,074 unchanged pairs with five captions each and a mask, as published, are 89,628 samples."""
    numbers: Counter[str] = Counter()
    for flag, count in ((1, 3407 + 667), (0, 3408 + 666)):
        mci = MciFolder()
        mci.pair(1, flag, *([ROAD_LEFT] if flag else []))
        tasks = Counter(task_of(f"pair/{name}") for name in built(tmp_path / str(flag), mci))
        numbers.update({task: count * number for task, number in tasks.items()})
    assert numbers == PUBLISHED_SAMPLES
    assert numbers.total() == 89_628


def third_turns(rows: Rows) -> set[str]:
    third = {asked(row)[2] for name, row in rows.items() if "dialogue" in name}
    return {"roads" if "roads" in question else "buildings" for question, _ in third}


def test_the_bugs_of_the_notebook_are_settings(tmp_path: Path) -> None:
    pair = changed_pair(ROAD_LEFT, PIXEL)
    rows = built(tmp_path / "notebook", pair)
    assert asked(rows["location-road"])[0] == (f"{ROADS}:{PAIR}{HINT}", "left")
    assert [asked(rows[f"{task}-building"])[0][1] for task in ("count", "location")] == ["0", "No change"]
    assert third_turns(rows) == {"roads"}
    assert third_turns(built(tmp_path / "asked", changed_pair(ROAD_LEFT), as_published=False)) == {"buildings"}
    rows = built(tmp_path / "area", pair, regions={"as_published": False})
    assert [asked(rows[f"{task}-building"])[0][1] for task in ("count", "location")] == ["1", "top left corner"]


def test_the_dialogues_of_a_pair_ask_the_same_unless_each_draws(tmp_path: Path) -> None:
    def questions(name: str, **more: Any) -> dict[str, set[tuple[str, ...]]]:
        mci = MciFolder()
        for number in range(6):
            mci.pair(number, 1, ROAD_LEFT, ROOF_TOP)
        rows = built(tmp_path / name, mci, tasks=["dialogue"], **more)
        of_pairs: dict[str, set[tuple[str, ...]]] = {}
        for row in rows.values():
            of_pairs.setdefault(str(row.of_pair), set()).add(tuple(text for text, _ in asked(row)))
        return of_pairs

    by_pair = questions("pair")
    assert {len(texts) for texts in by_pair.values()} == {1}
    assert len(set.union(*by_pair.values())) > 1, "pairs differ"
    assert max(len(texts) for texts in questions("dialogue", as_published=False).values()) > 1
    assert questions("again") == by_pair
    assert questions("seed", seed=1) != by_pair


def contradictory() -> MciFolder:
    mci = MciFolder()
    mci.pair(1, 1, ROAD_LEFT)
    mci.pair(2, 0)
    mci.pair(3, 0, ROOF_TOP)  # unchanged, with a roof
    mci.pair(4, 1)  # changed, with an empty mask
    mci.pair(5, 1, PIXEL)  # changed, and nothing is counted
    return mci


def test_contradictory_pairs_are_kept_and_counted_and_clean_leaves_them_out(tmp_path: Path) -> None:
    kept = small_job(contradictory().imported(tmp_path))
    assert build(kept).num_rows == 3 * 15 + 2 * 7
    counts = count_changeimti(kept.out)
    empty = "changed, but the mask is empty"
    assert counts.contradictions == {
        "unchanged, but the mask has roads or buildings": 1, empty: 1,
        "changed, but no region of the mask has an area": 1,
    }  # fmt: skip
    assert f"contradictory pairs: 1 {empty}; clean=true leaves them out" in counts_table(counts)
    rows = rows_of(kept)
    assert asked(rows["train_000003/binary"])[0][1] == "No"
    assert rows["train_000004/binary"].meta["contradiction"] == empty
    assert "contradiction" not in rows["train_000001/binary"].meta

    job = small_job(kept.pairs, out=str(tmp_path / "clean"), clean=True, max_reject_share=1)
    manifest = build(job)
    assert {row.of_pair for row in rows_of(job).values()} == {"train_000001", "train_000002"}
    assert (manifest.num_rows, manifest.reject_reasons) == (15 + 7, {"contradiction": 15 + 15 + 7})
    counts = count_changeimti(job.out)
    assert (counts.contradictions, counts.rejected_pairs) == ({}, {"contradiction": 3})


def rejected(folder: Path, mci: MciFolder) -> dict[str, str]:
    """Reason of each sample by the end of its id; none was made."""
    job = small_job(mci.imported(folder), max_reject_share=1)
    manifest = build(job)
    reasons = {reject.row_id.partition("/")[2]: reject.reason for reject in read_rejects(job.out)}
    assert (len(reasons), manifest.num_rows) == (manifest.num_rejected, 0)
    return reasons


OTHER_COLOUR = label_of(ROAD_LEFT)
OTHER_COLOUR[7, 9] = 200
# What is wrong with the pair, and parts of what is said of each of its 15 samples
UNUSABLE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "other colours": (
        {"label": OTHER_COLOUR},
        ["bad mask: train/label/train_000001.png of LEVIR/train_000001.png has 1 pixel of another colour"],
    ),
    "a missing mask": (
        {"label": None},
        ["no mask: LEVIR/train_000001.png, train/label/train_000001.png is missing", "tasks=[caption,binary] alone"],
    ),
    "unequal images": (
        {"sizes": (60, 48)}, ["unequal sizes: LEVIR/train_000001.png, before is 60x60, after 48x48"],
    ),
    "a mask of another size": (
        {"label": label_of(ROAD_LEFT, size=50)},
        ["unequal sizes: train/label/train_000001.png of LEVIR/train_000001.png is 50x50, the images are 60x60"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_pair_has_no_samples_that_need_its_mask(name: str, tmp_path: Path) -> None:
    settings, parts = UNUSABLE[name]
    mci = MciFolder()
    mci.pair(1, 1, ROAD_LEFT, **settings)
    if name == "a missing mask":
        del mci.files["images/train/label/train_000001.png"]
        assert len(built(tmp_path / "tasks", mci, tasks=["caption", "binary"])) == 6
    reasons = rejected(tmp_path / "in", mci)
    assert len(reasons) == 15
    [reason] = set(reasons.values())
    assert all(part in reason for part in parts)


def test_captions_that_are_missing_or_have_an_image_mark_cost_what_ends_with_them(tmp_path: Path) -> None:
    for sentences, rejects in (
        ([], {"no caption": 2}),
        (["a <image> appears", "a road appears", "", "a road", "roads"], {"bad row": 2}),
    ):
        mci = MciFolder()
        mci.pair(1, 1, ROAD_LEFT, sentences=sentences)
        job = small_job(mci.imported(tmp_path / str(len(sentences))), max_reject_share=1)
        assert build(job).reject_reasons == rejects


def test_splits_are_those_of_the_pairs_unless_val_is_trained_on(tmp_path: Path) -> None:
    mci = MciFolder()
    for number, split in enumerate(["train"] * 4 + ["val"] * 2 + ["test"] * 2):
        mci.pair(number, number % 2, *([ROAD_LEFT] if number % 2 else []), split=split)
    pairs = mci.imported(tmp_path)
    assert build(small_job(pairs)).rows_by_split == {"train": 44, "val": 22}
    joined = small_job(pairs, out=str(tmp_path / "joined"), val_as_train=True, splits=["train", "val", "test"])
    assert build(joined).rows_by_split == {"train": 66, "test": 22}
