"""What was measured is stored whole, the page is made of it, and only what became worse is reported as worse."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import job as benchmark_job
from benchmarks import measurement as measuring
from benchmarks import page
from benchmarks.compare import compare_with_record, comparison_summary, judge
from benchmarks.job import BenchmarkJob, BenchmarkResult, run_benchmark
from benchmarks.machine import Machine, TorchBuild
from benchmarks.measurement import Environment, KnownStats, MeasuredRow, Measurement, Stats, code_commit
from benchmarks.record import RECORDS, Figure, Run, objections, recorded_figures
from idc.config import ConfigError, load

HERE = Machine(processor="P", flags=("avx2",), cores=2, memory_gib=24)
ELSEWHERE = Machine(processor="P", flags=("avx2", "avx512f"), cores=2, memory_gib=24)
TORCH = TorchBuild(version="2", capability="AVX2", blas="mkl", onednn="3")
WHERE = Environment(machine=HERE, torch=TORCH, threads=1, commit="c", date="2026-01-02T03:04Z", command="python x",
                    load=0.1, versions={})  # fmt: skip


def measurement(**changes: Any) -> Measurement:
    values = {
        "part": "decoding", "title": "a over b", "unit": "s", "aim": "at most 1", "above": [3.0, 1.0, 8.0],
        "below": [2.0, 1.0, 2.0], "environment": WHERE,
    }  # fmt: skip
    return Measurement(**{**values, **changes})


def made(
    above: list[float],
    below: list[float] | None = None,
    *,
    machine: Machine = HERE,
    commit: str = "c",
    date: str = "2026-01-02T03:04Z",
    unit: str = "pairs/s",
    title: str = "a over b",
) -> Run:
    where = WHERE.model_copy(update={"machine": machine, "commit": commit, "date": date})
    run = measurement(title=title, unit=unit, above=above, below=below or [], environment=where)
    return Run.of([run])


# -- a row --------------------------------------------------------------------------------------------------------


def test_the_ratio_is_the_median_of_the_paired_ratios() -> None:
    run = measurement()
    assert run.ratios == [1.5, 1.0, 4.0]
    assert run.ratio == 1.5
    assert run.cells() == ["a over b", "**1.50** (1.00 to 4.00, n = 3)", "at most 1", "3 / 2 s"]
    assert measurement(above=[2.0], below=[4.0]).cells()[1] == "**0.50** (n = 1)"


def test_measurements_that_do_not_pair_have_no_ratio() -> None:
    with pytest.raises(ValueError, match="shorter"):
        _ = measurement(below=[1.0]).ratio


def test_a_plain_quantity_has_no_ratio() -> None:
    run = measurement(below=[], unit="MiB", aim="at most 9")
    assert run.ratio is None
    assert run.cells() == ["a over b", "", "at most 9", "**3** (1 to 8, n = 3) MiB"]


def test_numbers_and_words_of_more_are_printed_and_lists_are_not() -> None:
    run = measurement(more={"share_of_equal_tokens": 1.0, "runs": [1.0, 2.0], "by": {"a": 1}, "kind": "dis", "n": 3})
    assert run.further() == ["share of equal tokens 1", "kind dis", "n 3"]


@pytest.mark.parametrize(
    ("unit", "direction"),
    [("tokens/s", "higher"), ("TFLOP/s", "higher"), ("pairs/s and core", "higher"), ("s", "lower"), ("s/step", "lower"),
     ("ms", "lower"), ("MiB", "lower"), ("CPU s/pair", "lower"), ("captions", "neither"), ("", "neither")],
)  # fmt: skip
def test_the_unit_decides_which_way_is_better(unit: str, direction: str) -> None:
    assert measurement(unit=unit).direction() == direction
    assert measurement(unit=unit, better="higher").direction() == "higher"


# -- the record ---------------------------------------------------------------------------------------------------


def test_a_figure_is_read_back_with_all_its_runs(tmp_path: Path) -> None:
    assert Figure.load(tmp_path, "decoding").runs == []
    first = Run.of([measurement(more={"seconds": [1 / 3, 2.0]}), measurement(title="second", below=[])], 0.1)
    Figure(figure="decoding", runs=[first]).save(tmp_path)
    again = made([1.0], [2.0], commit="d")
    Figure.load(tmp_path, "decoding").with_run(again).save(tmp_path)
    figure = recorded_figures(tmp_path)["decoding"]
    assert [run.commit for run in figure.runs] == ["c", "d"]
    assert figure.runs[1] == again
    assert figure.runs[0].rows[0].above == [3.0, 1.0, 8.0]
    assert figure.runs[0].rows[0].more == {"seconds": [0.333333, 2.0]}
    assert figure.runs[0].machine == HERE
    assert '"above": [3.0, 1.0, 8.0]' in (tmp_path / "decoding.json").read_text()


@pytest.mark.parametrize("text", ['{"scores": 1}', "{", '{"figure": "other", "runs": []}'])
def test_a_file_that_is_no_figure_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "decoding.json").write_text(text)
    with pytest.raises(ValueError, match=r"decoding\.json"):
        Figure.load(tmp_path, "decoding")


def test_what_may_not_be_recorded_is_named() -> None:
    assert objections("abc", 0.1, 2) == []
    assert objections("abc+", 0.1, 2) == ["files differ from commit abc"]
    assert objections("unknown", 0.9, 2) == [
        "the commit is unknown, there is no git checkout", "other work uses 0.9 of 2 cores",
    ]  # fmt: skip


def test_the_record_and_its_page_do_not_make_the_checkout_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("IDC_COMMIT", raising=False)
    (tmp_path / "benchmarks" / "records").mkdir(parents=True)
    for name in ("BENCHMARKS.md", "benchmarks/measurement.py", "benchmarks/records/a.json"):
        (tmp_path / name).write_text("1")
    git = ("git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@e.org")
    for args in (["init", "-q"], ["add", "."], ["commit", "-qm", "m"]):
        subprocess.run([*git, *args], check=True)
    monkeypatch.setattr(measuring, "__file__", str(tmp_path / "benchmarks" / "measurement.py"))
    monkeypatch.setattr(measuring, "commit", lambda: "abc+")
    for name in ("BENCHMARKS.md", "benchmarks/records/a.json", "benchmarks/records/b.json"):
        (tmp_path / name).write_text("2")
    assert code_commit() == "abc"
    (tmp_path / "new.py").write_text("2")
    assert code_commit() == "abc+"


def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, commit: str = "abc", busy: float = 0.0) -> list[str]:
    """The job on made-up measurements, an own record and an own page; returns what was measured."""
    measured: list[str] = []

    def one(part: Any, job: BenchmarkJob, caption_job: str) -> Any:
        measured.append(part)
        where = WHERE.model_copy(update={"commit": commit})
        yield measurement(part=part, unit="tokens/s", above=[4.0, 4.1, 4.2], below=[2.0, 2.0, 2.0], environment=where)

    monkeypatch.setattr(benchmark_job, "measure", one)
    monkeypatch.setattr(benchmark_job, "cores_in_use", lambda: busy)
    monkeypatch.setattr(benchmark_job, "code_commit", lambda: commit)
    monkeypatch.setattr(benchmark_job, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(page, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr("sys.argv", ["benchmark.py"])
    return measured


def job(tmp_path: Path, **settings: Any) -> BenchmarkJob:
    return load(BenchmarkJob, overrides={"parts": ["decoding"], "out": str(tmp_path / "out"), **settings})


def test_a_run_is_stored_and_only_recorded_if_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(monkeypatch, tmp_path, commit="abc+", busy=1.0)
    result = run_benchmark(job(tmp_path, variant="small"), "caption.py")
    assert list(result.runs) == ["decoding-small"]
    assert len(result.notes) == 2
    assert [run.busy_cores for run in Figure.load(tmp_path / "out", "decoding-small").runs] == [1.0]
    assert not (tmp_path / "records").exists()
    assert not (tmp_path / "page.md").exists()


def test_a_recorded_run_is_on_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(monkeypatch, tmp_path)
    run_benchmark(job(tmp_path, record=True), "caption.py")
    assert [run.commit for run in Figure.load(tmp_path / "records", "decoding").runs] == ["abc"]
    assert "**2.05** (2.00 to 2.10, n = 3)" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize(("commit", "busy"), [("abc+", 0.0), ("abc", 1.0)])
def test_a_changed_checkout_or_a_busy_machine_is_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, commit: str, busy: float
) -> None:
    measured = fake(monkeypatch, tmp_path, commit=commit, busy=busy)
    with pytest.raises(ValueError, match=r"decoding is not recorded: .*anyway="):
        run_benchmark(job(tmp_path, record=True), "caption.py")
    assert measured == []
    run_benchmark(job(tmp_path, record=True, anyway="no other machine"), "caption.py")
    (note,) = Figure.load(tmp_path / "records", "decoding").runs[0].notes
    assert note.startswith("recorded although ")
    assert note.endswith(": no other machine")
    assert note in (tmp_path / "page.md").read_text()


def test_a_command_with_a_path_of_this_machine_is_not_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = fake(monkeypatch, tmp_path)
    monkeypatch.setattr("sys.argv", ["benchmark.py", "pairs=/home/me/pairs", "record=true"])
    with pytest.raises(ValueError, match="pairs=/home/me/pairs"):
        run_benchmark(job(tmp_path, record=True), "caption.py")
    assert measured == []


def test_parts_without_their_inputs_are_skipped_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = fake(monkeypatch, tmp_path)
    settings = {"parts": ["train_overhead", "decoding"], "procedures": str(tmp_path / "no"), "skip_missing": True}
    result = run_benchmark(job(tmp_path, **settings), "caption.py")
    assert measured == ["decoding"]
    assert "procedures: no such file or folder" in result.skipped["train_overhead"][0]


def test_one_device_goes_to_all_parts_that_have_one(tmp_path: Path) -> None:
    adapted = benchmark_job.on_device(job(tmp_path, device="cpu", **{"decoding.device": "cuda"}))
    assert (adapted.decoding.device, adapted.captioning.device, adapted.pretraining.device) == ("cpu", "cpu", "cpu")


def test_a_reason_without_a_recording_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="record=true"):
        job(tmp_path, anyway="because")


def test_worse_and_unrecorded_rows_are_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(monkeypatch, tmp_path)
    first = run_benchmark(job(tmp_path, compare=True), "caption.py")
    assert (first.compared, first.unknown) == ([], 1)
    old = made([8.0, 8.1, 8.2], [2.0, 2.0, 2.0], unit="tokens/s", commit="old")
    Figure(figure="decoding", runs=[old]).save(tmp_path / "records")
    result: BenchmarkResult = run_benchmark(job(tmp_path, compare=True), "caption.py")
    assert [(compared.what, compared.outcome) for compared in result.compared] == [
        ("ratio", "worse"),
        ("tokens/s", "worse"),
    ]
    assert result.unknown == 0


# -- the comparison -----------------------------------------------------------------------------------------------


def outcomes(new: Run, *old: Run) -> list[str]:
    return [
        f"{compared.what} {compared.outcome}"
        for compared in compare_with_record(new, Figure(figure="f", runs=list(old)))
    ]


def test_what_became_worse_by_more_than_the_spread_is_flagged() -> None:
    recorded = made([1.9, 2.0, 2.1], [1.0, 1.0, 1.0])
    assert outcomes(made([1.55, 1.6, 1.65], [1.0, 1.0, 1.0]), recorded) == ["ratio worse", "pairs/s same"]
    assert outcomes(made([2.4, 2.5, 2.6], [1.0, 1.0, 1.0]), recorded) == ["ratio better", "pairs/s same"]
    assert outcomes(made([1.85, 1.95, 2.0], [1.0, 1.0, 1.0]), recorded) == ["ratio same", "pairs/s same"]
    # the whole machine is slower today: the ratio is as before
    assert outcomes(made([1.5, 1.6, 1.7], [0.8, 0.8, 0.8]), recorded) == ["ratio same", "pairs/s same"]
    # both became slower by half: the ratio does not show it
    assert outcomes(made([0.95, 1.0, 1.05], [0.5, 0.5, 0.5]), recorded) == ["ratio same", "pairs/s worse"]


def test_a_wide_spread_on_either_side_excuses() -> None:
    noisy = made([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    steady = made([1.39, 1.4, 1.41], [1.0, 1.0, 1.0])
    assert outcomes(steady, noisy)[0] == "ratio same"
    assert outcomes(noisy, steady)[0] == "ratio same"


def test_seconds_and_memory_are_worse_when_they_grow() -> None:
    recorded = made([100.0, 101.0, 102.0], unit="MiB")
    assert outcomes(made([190.0, 200.0, 210.0], unit="MiB"), recorded) == ["MiB worse"]
    assert outcomes(made([50.0, 51.0, 52.0], unit="MiB"), recorded) == ["MiB better"]
    assert outcomes(made([50.0, 51.0, 52.0], unit="captions"), made([99.0], unit="captions")) == []


def test_one_value_says_little() -> None:
    recorded = made([2.0], [1.0])
    assert outcomes(made([1.6], [1.0]), recorded)[0] == "ratio same"
    assert outcomes(made([1.4], [1.0]), recorded)[0] == "ratio worse"


def test_of_another_machine_only_ratios_are_compared_and_do_not_count() -> None:
    recorded = made([8.0, 8.1, 8.2], [1.0, 1.0, 1.0], machine=ELSEWHERE)
    compared = list(compare_with_record(made([2.0, 2.1, 2.2], [1.0, 1.0, 1.0]), Figure(figure="f", runs=[recorded])))
    assert [(row.what, row.outcome, row.counts) for row in compared] == [("ratio", "worse", False)]
    assert "not counted" in comparison_summary(compared, 0)
    assert "0 worse" in comparison_summary(compared, 0)


def test_the_newest_run_of_this_kind_of_machine_is_compared_with() -> None:
    runs = [made([1.0] * 3, [1.0] * 3), made([2.0] * 3, [1.0] * 3, commit="d"),
            made([9.0] * 3, [1.0] * 3, machine=ELSEWHERE)]  # fmt: skip
    (ratio, _) = compare_with_record(made([2.0] * 3, [1.0] * 3), Figure(figure="f", runs=runs))
    assert (ratio.recorded.commit, ratio.outcome) == ("d", "same")


def test_a_record_of_medians_and_ranges_is_compared_too() -> None:
    row = MeasuredRow(
        title="a over b",
        unit="pairs/s",
        above=[],
        known=KnownStats(ratio=Stats(2.0, 1.9, 2.1, 3), above=2.0, below=1.0),
    )
    recorded = made([1.0]).model_copy(update={"rows": [row]})
    assert outcomes(made([1.5, 1.6, 1.7], [1.0, 1.0, 1.0]), recorded) == ["ratio worse", "pairs/s same"]
    assert row.cells()[1] == "**2.00** (1.90 to 2.10, n = 3)"


def test_noise_is_seldom_flagged_and_a_loss_of_a_third_nearly_always() -> None:
    rng = np.random.default_rng(0)

    def share(factor: float, count: int) -> float:
        draws = np.exp(rng.normal(0, 0.05, (1000, 2, count)))
        worse = [
            judge(Stats.of((new * factor).tolist()), Stats.of(old.tolist()), "higher", 0.05)[0] == "worse"
            for new, old in draws
        ]
        return float(np.mean(worse))

    for count, alarms in ((3, 0.05), (5, 0.01)):
        assert share(1.0, count) < alarms
        assert share(0.67, count) > 0.95


# -- the page -----------------------------------------------------------------------------------------------------


def test_the_tracked_page_is_the_one_that_its_records_and_its_template_make() -> None:
    made_now = page.render_page(page.TEMPLATE.read_text(encoding="utf-8"), recorded_figures(RECORDS))
    assert page.PAGE.read_text(encoding="utf-8") == made_now, "run `make benchmarks-page`"


def test_the_tracked_records_hold_raw_numbers_or_say_that_they_are_not_known() -> None:
    for figure in recorded_figures(RECORDS).values():
        assert not [run.commit for run in figure.runs if run.commit.endswith("+") and not run.notes]
        for row in (row for run in figure.runs for row in run.rows):
            assert row.above if row.known is None else not row.above and not row.below, (figure.figure, row.title)
        text = (RECORDS / f"{figure.figure}.json").read_text(encoding="utf-8")
        assert not re.findall(r"[ =\"'\[](/[a-z]+/[^\"]*)", text), f"{figure.figure}: a path of a machine"


def test_the_page_shows_rows_with_an_aim_of_the_newest_run_and_names_other_machines() -> None:
    newest = made([4.0], [2.0], commit="new", date="2026-01-03T00:00Z")
    aside = measurement(title="aside", aim="", more={"steps": 3})
    named = {
        "here": Figure(figure="here", runs=[
            made([1.0], [2.0], commit="old", date="2026-01-01"),
            newest.model_copy(update={"rows": [*newest.rows, aside.row()]}),
        ]),
        "there": Figure(figure="there", runs=[made([7.0], machine=ELSEWHERE, title="a | b")]),
    }  # fmt: skip
    text = page.render_page(
        "{{ machine }}\n{{ table('here') }}\n--\n{{ table('none') }}\n--\n{{ table('there') }}\n", named
    )
    here, none, there = text.split("\n--\n")
    assert here.startswith("P (avx2), 2 cores, 24 GiB; torch 2 (AVX2), mkl, oneDNN 3")
    assert "Another machine" not in here
    assert "1 thread, commit new, 2026-01-03: `$ python x`" in here
    assert "| a over b | **2.00** (n = 1) | at most 1 | 4 / 2 pairs/s |" in here
    assert "aside" not in here
    assert none == "Not measured yet."
    assert "**Another machine: P (avx2, avx512f), 2 cores, 24 GiB.**" in there
    assert "| what | aim | medians |" in there
    assert "a \\| b" in there


def test_the_page_of_no_record_says_so() -> None:
    assert page.render_page("{{ machine }}", {}) == "none yet\n"


def test_a_stored_figure_is_plain_json_of_one_schema() -> None:
    for path in RECORDS.glob("*.json"):
        value = json.loads(path.read_text(encoding="utf-8"))
        assert value["figure"] == path.stem
        assert [run["date"] for run in value["runs"]] == sorted(run["date"] for run in value["runs"])
