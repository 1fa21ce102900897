"""Checkpoints that are damaged after they were written, and disks that are full while they are."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from idc.training.config import TrainConfig
from idc.training.context import (
    COMPLETE,
    SNAPSHOT,
    LocalContext,
    checkpoint_name,
    complete_checkpoints,
    free_folder,
    mend_snapshot,
)
from idc.training.disk import is_disk_full
from idc.training.integrity import STATE_FILE, list_name, newest_intact
from idc.training.loop import read_log
from tests.faults.injection import damage, fill, small_disk
from tests.invariants.harness import Run, largest_difference, run_cases
from tests.training import toy

TRAIN: dict[str, Any] = {**toy.TRAIN, "tracking": {"enabled": False}}
NEWEST, BEFORE = checkpoint_name(24), checkpoint_name(20)


def run(run_dir: Path, **settings: Any) -> Run:
    train = TrainConfig.model_validate({**TRAIN, **settings})
    toy.entry({"train": train.model_dump(mode="json")}, LocalContext(run_dir, keep_last=train.keep_last))
    return Run(run_dir)


@pytest.mark.parametrize("how", ["truncate", "flip"])
@pytest.mark.parametrize("file", ["torch.pt", STATE_FILE, list_name(0)])
def test_the_checkpoint_before_a_damaged_one_is_used_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str, file: str
) -> None:
    first = run(tmp_path)
    state, log = first.state, first.log
    damage(tmp_path / "checkpoints" / NEWEST / file, how)
    again = run(tmp_path)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "is damaged" in line]
    assert f"{NEWEST} is damaged ({file} " in line or file == list_name(0)
    assert f"resuming from the one before, {BEFORE}" in line
    assert largest_difference(again.state, state) == 0
    assert [entry["loss"] for entry in again.log] == [entry["loss"] for entry in log]
    assert newest_intact(LocalContext(tmp_path)) == tmp_path / "checkpoints" / NEWEST


def test_a_missing_file_is_damage(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "checkpoints" / NEWEST / "torch.pt").unlink()
    assert newest_intact(LocalContext(tmp_path)) == tmp_path / "checkpoints" / BEFORE
    (tmp_path / "checkpoints" / BEFORE / list_name(0)).unlink()
    with pytest.raises(ValueError, match="are damaged") as caught:
        newest_intact(LocalContext(tmp_path))
    assert f"{NEWEST}: torch.pt is missing" in str(caught.value)
    assert f"{BEFORE}: {list_name(0)} is missing" in str(caught.value)


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_again_by_itself(tmp_path: Path) -> None:
    run(tmp_path)
    for name in (BEFORE, NEWEST):
        damage(tmp_path / "checkpoints" / name / "torch.pt", "truncate")
    with pytest.raises(ValueError, match=r"all checkpoints in .* are damaged:") as caught:
        run(tmp_path)
    assert "or remove that folder to train from step 0 again" in str(caught.value)
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")][-1] == 24  # nothing was begun


def test_a_checkpoint_of_before_there_were_checksums_is_taken(tmp_path: Path) -> None:
    run(tmp_path)
    folder = tmp_path / "checkpoints" / NEWEST
    state = json.loads((folder / STATE_FILE).read_text())
    del state["checksums"], state["kept_bests"]
    (folder / STATE_FILE).write_text(json.dumps(state))
    (folder / list_name(0)).unlink()
    assert newest_intact(LocalContext(tmp_path)) == folder


def test_the_best_weights_of_an_older_checkpoint_are_kept_until_the_run_is_complete(tmp_path: Path) -> None:
    """The checkpoint of step 10 refers to weights of step 6, which step 12 beats: both files stay."""
    train = TrainConfig.model_validate({**TRAIN, "steps": 15, "eval_every": 3, "keep_last": 2})
    context = LocalContext(tmp_path, keep_last=2)
    seen: list[set[str]] = []
    report = context.report

    def watch(metrics: dict[str, Any], checkpoint_dir: Path | None, step: int) -> None:
        report(metrics, checkpoint_dir, step)
        for folder in complete_checkpoints(tmp_path / "checkpoints"):
            best = json.loads((folder / STATE_FILE).read_text())["best"]
            assert (tmp_path / "best" / f"{checkpoint_name(best['step'])}.safetensors").exists()
        seen.append({path.name for path in (tmp_path / "best").iterdir()})

    context.report = watch  # type: ignore[method-assign]
    toy.entry({"train": train.model_dump(mode="json")}, context)
    assert max(len(names) for names in seen) >= 2
    assert len(list((tmp_path / "best").iterdir())) == 1


@pytest.mark.slow
def test_every_rank_lists_what_it_wrote_and_a_damaged_shard_is_found(tmp_path: Path) -> None:
    """DeepSpeed ZeRO-2 on two ranks: a bit of the second one's shard."""
    settings = {"num_workers": 2, "engine": "deepspeed", "zero_stage": 2}
    first = run_cases("tests.training.toy:entry", {"train": TRAIN}, {"run": settings}, tmp_path)["run"]
    state, losses = first.state, first.losses
    folder = first.path / "checkpoints" / NEWEST
    lists = [json.loads((folder / list_name(rank)).read_text()) for rank in (0, 1)]
    assert not lists[0].keys() & lists[1].keys()
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == {*lists[0], *lists[1], list_name(0), list_name(1), COMPLETE}
    (shard,) = [name for name in lists[1] if "optim_states" in name]
    damage(folder / shard, "flip")
    again = run_cases("tests.training.toy:entry", {"train": TRAIN}, {"run": settings}, tmp_path)["run"]
    assert newest_intact(LocalContext(first.path)) == folder, "written again"
    assert largest_difference(again.state, state) < 1e-6
    assert again.losses == pytest.approx(losses, rel=1e-6)


def test_a_full_disk_ends_a_run_with_advice_and_the_same_run_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """A real disk, filled up between two checkpoints."""
    undisturbed = run(tmp_path / "undisturbed")
    with small_disk(megabytes=2) as disk:
        context = LocalContext(disk / "run")
        report, fillers = context.report, list[Path]()

        def fill_after_the_second(metrics: dict[str, Any], checkpoint_dir: Path | None, step: int) -> None:
            report(metrics, checkpoint_dir, step)
            if step == 10:
                fillers.append(fill(disk, leave=16 << 10))

        context.report = fill_after_the_second  # type: ignore[method-assign]
        payload = {"train": TrainConfig.model_validate(TRAIN).model_dump(mode="json")}
        with pytest.raises(ValueError, match="is full") as caught:
            toy.entry(payload, context)
        assert f"the disk of {disk / 'run'}" in str(caught.value)
        assert "then the same command goes on from step 10" in str(caught.value)
        names = sorted(path.name for path in (disk / "run" / "checkpoints").glob("step_*"))
        assert names == [checkpoint_name(5), checkpoint_name(10)]
        assert newest_intact(LocalContext(disk / "run")) == disk / "run" / "checkpoints" / checkpoint_name(10)
        fillers[0].unlink()
        again = run(disk / "run")
        assert largest_difference(again.state, undisturbed.state) == 0
        assert again.losses == undisturbed.losses


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError("[Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device"), True),
        (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), True),
        (RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"), False),  # there is room
        (OSError(errno.EACCES, "Permission denied"), False),
    ],
)
def test_errors_of_a_full_disk_are_recognised(tmp_path: Path, error: Exception, full: bool) -> None:
    assert is_disk_full(error, [tmp_path]) is full
    outer = RuntimeError("while saving")
    outer.__cause__ = error
    assert is_disk_full(outer, [tmp_path]) is full


@pytest.mark.parametrize(
    "content", ["", '{"checkpoint_results": [', '{"checkpoint_results": [{"checkpoint_dir_name": "step_00000099"}]}']
)
def test_a_list_of_checkpoints_that_ray_would_not_start_with_is_removed(tmp_path: Path, content: str) -> None:
    """Ray writes it in place: a kill or a full disk can cut it. Or a user removed a checkpoint."""
    folder = tmp_path / checkpoint_name(5)
    folder.mkdir()
    (folder / STATE_FILE).write_text("{}")
    (tmp_path / SNAPSHOT).write_text(content)
    mend_snapshot(tmp_path)
    assert not (tmp_path / SNAPSHOT).exists()
    assert bool(complete_checkpoints(tmp_path)) is ("99" not in content)  # else it was never registered


def test_a_good_list_of_checkpoints_stays(tmp_path: Path) -> None:
    (tmp_path / checkpoint_name(5)).mkdir()
    (tmp_path / SNAPSHOT).write_text('{"checkpoint_results": [{"checkpoint_dir_name": "step_00000005"}]}')
    mend_snapshot(tmp_path)
    assert [path.name for path in complete_checkpoints(tmp_path)] == [checkpoint_name(5)]
    # a second checkpoint of this step, when the first is damaged, does not take its folder
    assert free_folder(tmp_path, 5).name == "step_00000005_2"
    (tmp_path / "step_00000006").mkdir()  # an upload that was cut
    assert free_folder(tmp_path, 6) == tmp_path / "step_00000006"
    assert not (tmp_path / "step_00000006").exists()
