"""Measures against the truth of drawn pairs: agreement, planted errors, judges, what is kept, what is refused."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idc.data.rendered.planted_errors import ERRORS, planted
from idc.data.rendered.sentences import several_captions
from idc.evaluation import judged_differences as jd
from idc.evaluation import measure_scores
from idc.evaluation import record as ev
from idc.evaluation.agreement import Estimate
from idc.evaluation.config import CompareMeasuresJob, EvaluateJob
from idc.evaluation.job import run_evaluation as evaluate
from idc.evaluation.judge import MODEL, JudgeResult
from idc.evaluation.judge import RESULT as COVERAGE
from idc.evaluation.measure_inputs import captions_of_systems, plant, read_inputs
from idc.evaluation.measured import WORDS, Agreement, MeasuresRecord, Planted, PlantedError, sentences
from idc.evaluation.measures import compare_measures
from idc.metrics.difference_lists import F1, match_caption
from tests.data.descriptions.small_pairs import write_pairs
from tests.data.rendered.drawn_differences import Drawn, drawn_pairs
from tests.report.html_page import HtmlPage

TESTED, TRAINED = 14, 3


def captions(pair: Drawn, count: int, seed: int) -> list[str]:
    return several_captions(pair.differences, pair.before, pair.after, pair.views, count, np.random.default_rng(seed))


@pytest.fixture(scope="module")
def drawn() -> dict[str, Drawn]:
    return {f"p{number:02}": pair for number, pair in enumerate(drawn_pairs(TESTED + TRAINED, seed=5))}


@pytest.fixture(scope="module")
def root(drawn: dict[str, Drawn], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, and evaluations of three systems: one is right, one makes an error where it can, one is of other pairs."""
    folder = tmp_path_factory.mktemp("measures")
    changed = {}
    for number, (name, pair) in enumerate(drawn.items()):
        places = [
            {"kind": one.kind, "before": [pair.before.index(dict(thing)) for thing in one.before],
             "after": [pair.after.index(dict(thing)) for thing in one.after]}
            for one in pair.differences
        ]  # fmt: skip
        meta = {
            "before": pair.before, "after": pair.after, "differences": places,
            "views": [view.record() for view in pair.views],
        }  # fmt: skip
        changed[name] = {
            "captions": tuple(captions(pair, 3, 1)), "meta": meta, "source": "rendered:several",
            "split": "test" if number < TESTED else "train",
        }  # fmt: skip
    write_pairs(folder / "pairs", len(drawn), **changed)
    tested = list(drawn)[:TESTED]
    said = {
        "right": {name: captions(drawn[name], 1, 2)[0] for name in tested},
        "other": {name: captions(drawn[other], 1, 3)[0] for name, other in zip(tested, reversed(tested), strict=True)},
        "wrong": {name: error(drawn[name]) for name in tested},
    }
    for system, own in said.items():
        evaluated(folder, system, own)
    return folder


def error(pair: Drawn) -> str:
    scene = pair.differences, pair.before, pair.after, pair.views
    return planted("wrong attribute", *scene, np.random.default_rng(4)) or captions(pair, 1, 4)[0]


def evaluated(root: Path, system: str, said: Mapping[str, str], **more: Any) -> None:
    (root / f"{system}.json").write_text(json.dumps(said))
    evaluate(EvaluateJob(pairs=str(root / "pairs"), predictions=str(root / f"{system}.json"),
                         out=str(root / system), resamples=0, spice=False, **more))  # fmt: skip


def job(root: Path, out: Path, systems: tuple[str, ...] = ("right", "other", "wrong"), **more: Any) -> Any:
    folders = {name: str(root / name) for name in systems}
    return CompareMeasuresJob(**{
        "pairs": str(root / "pairs"), "evaluations": folders, "out": str(out), "resamples": 40, **more,
    })  # fmt: skip


@pytest.fixture(scope="module")
def found(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[MeasuresRecord, Path]:
    out = tmp_path_factory.mktemp("out")
    return compare_measures(job(root, out)), out


def test_systems_and_baselines_with_their_truth(found: tuple[MeasuresRecord, Path], root: Path) -> None:
    result, out = found
    assert list(result.systems) == ["right", "other", "wrong", "constant", "nearest"]
    assert result.baselines == ["constant", "nearest"]
    assert result.systems["right"][F1] == 1
    assert result.systems["other"][F1] < result.systems["wrong"][F1] < 1
    own = ev.load_evaluation(root / "wrong")
    assert own.differences is not None
    assert result.systems["wrong"][F1] == pytest.approx(own.differences.f1), "as the evaluation has it"
    assert result.systems["wrong"]["CIDEr"] == own.scores["CIDEr"]
    assert result.systems["constant"]["METEOR"] == own.baselines["constant"].scores["METEOR"]
    assert MeasuresRecord.model_validate_json((out / "measures.json").read_text()) == result


def test_agreement_is_that_of_the_captions(found: tuple[MeasuresRecord, Path], root: Path) -> None:
    result, _ = found
    rows = {name: ev.load_predictions(root / name) for name in ("right", "other", "wrong")}
    truth = {name: [row.differences.scores[F1] for row in own if row.differences] for name, own in rows.items()}
    inputs = read_inputs(job(root, Path("unused"), baselines=False))
    assert captions_of_systems(inputs, False).keys() == rows.keys()
    right = total = 0.0
    for place in range(TESTED):
        for one, other in (("right", "other"), ("right", "wrong"), ("other", "wrong")):
            if (true := truth[one][place] - truth[other][place]) != 0:
                total += 1
                measured = rows[one][place].scores["ROUGE-L"] - rows[other][place].scores["ROUGE-L"]
                right += 0.5 if measured == 0 else measured * true > 0
    assert result.comparisons > total, "with the baselines"
    alone = compare_measures(job(root, root / "alone", baselines=False, resamples=0))
    assert alone.comparisons == total
    assert alone.agreement["ROUGE-L"].accuracy == Estimate(value=right / total)
    assert list(alone.agreement) == sorted(alone.agreement, key=lambda name: -alone.agreement[name].accuracy.value)
    assert set(alone.agreement) == {"BLEU-4", "METEOR", "ROUGE-L", "CIDEr", WORDS}


def test_planted_errors_are_in_captions_that_are_true_without_them(
    root: Path, found: tuple[MeasuresRecord, Path]
) -> None:
    result, out = found
    inputs = read_inputs(job(root, out))
    errors = plant(inputs, 0)
    assert set(errors) == set(result.errors) == set(ERRORS)
    for name, own in errors.items():
        for pair, true in own.true.items():
            assert true not in inputs.references[pair]
            assert match_caption(true, inputs.truths[pair]).scores[F1] == 1, true
            assert match_caption(own.wrong[pair], inputs.truths[pair]).scores[F1] < 1, (name, own.wrong[pair])
        files = {kind: lines(out / "planted" / f"{name.replace(' ', '_')}.{kind}.jsonl") for kind in
                 ("true", "wrong", "references")}  # fmt: skip
        assert {pair: row["caption"] for pair, row in files["wrong"].items()} == own.wrong
        assert {pair: row["caption"] for pair, row in files["true"].items()} == own.true
        assert files["references"].keys() == own.true.keys()
        assert result.errors[name].true_f1[0] == 1
        assert result.errors[name].pairs == len(own.true)
        assert result.errors[name].example in zip(own.true.values(), own.wrong.values(), strict=True)
    assert errors["missing"].true.keys() == {pair for pair in inputs.ids if len(inputs.truths[pair].differences) > 1}
    for pair, true in errors["missing"].true.items():
        more = words(true) - words(errors["missing"].wrong[pair])
        assert words(errors["missing"].wrong[pair]) <= words(true), "but for the clause that is missing"
        assert more
    # The clauses without error are the same: of several differences most words are
    several = [pair for pair, truth in inputs.truths.items() if len(truth.differences) > 3]
    shared = [len(words(own.true[pair]) & words(own.wrong[pair])) / len(words(own.true[pair]))
              for own in errors.values() for pair in several if pair in own.true]  # fmt: skip
    assert several
    assert min(shared) > 0.6
    assert plant(inputs, 1) != errors
    assert plant(inputs, 0) == errors


def lines(path: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["pair_id"]: row for row in rows}


def words(text: str) -> set[str]:
    return set(text.replace(",", "").replace(";", "").split()) - {"and"}


def test_what_is_scored_is_kept(
    root: Path, found: tuple[MeasuresRecord, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored_again(*_: Any) -> None:
        raise AssertionError("scored again")

    monkeypatch.setattr(measure_scores, "CocoScorer", scored_again)
    assert compare_measures(job(root, tmp_path)) == found[0]
    with pytest.raises(AssertionError, match="scored again"):
        compare_measures(job(root, tmp_path, seed=1))


# ------------------------------------------------------------------------------------------------------------- judges


def judged(root: Path, system: str, said: Mapping[str, str], baselines: Mapping[str, Mapping[str, str]]) -> Path:
    """The result of a judge that matches as the rules do."""
    inputs = read_inputs(job(root, Path("unused")))
    true = {pair: [one.kind for one in inputs.truths[pair].differences] for pair in said}

    def matched(own: Mapping[str, str]) -> jd.JudgedSystem:
        pairs = {}
        for pair, caption in own.items():
            match = match_caption(caption, inputs.truths[pair])
            claims = [
                jd.JudgedClaim(claim="it", number=place + 1 if place is not None and verdict == "right" else None)
                for place, verdict in zip(match.assigned, match.verdicts, strict=True)
            ]
            pairs[pair] = jd.JudgedCaption(caption=caption, claims=claims)
        return jd.system_of(pairs, true, 0)

    result = jd.DifferencesJudged(
        protocol={"name": "difference-lists-judge-1", "judge": "oracle"}, answered_by=[], evaluation=system,
        evaluation_fingerprint="", split="test", from_record=0, true=true, unusable={}, asked=0,
        systems={name: matched(own) for name, own in {MODEL: said, **baselines}.items()},
    )  # fmt: skip
    folder = root / f"judged-{system}-{len(baselines)}"
    folder.mkdir(exist_ok=True)
    (folder / jd.RESULT).write_text(result.model_dump_json())
    return folder


def test_a_judge_that_knows_the_truth_is_the_one_to_trust(root: Path, found: tuple[MeasuresRecord, Path]) -> None:
    out = root / "with-judge"
    said = captions_of_systems(read_inputs(job(root, out)), True)
    baselines = {name: said.pop(name) for name in ("constant", "nearest")}
    folders = [judged(root, name, own, baselines) for name, own in said.items()]
    planted_captions = plant(read_inputs(job(root, out)), 0)["invented"]
    folders += [judged(root, "invented", planted_captions.wrong, {}), judged(root, "true", planted_captions.true, {})]
    result = compare_measures(job(root, out, judged=tuple(map(str, folders))))
    oracle = "oracle, differences"
    assert next(iter(result.agreement)) == oracle
    assert result.agreement[oracle].accuracy.value == 1
    assert result.agreement[oracle].spearman.value == pytest.approx(1)
    assert result.agreement[oracle].lead is None
    assert result.agreement["CIDEr"].lead is not None
    assert result.sentences[0].startswith("Trust oracle, differences")
    assert result.comparisons == found[0].comparisons
    judged_errors = [name for name, one in result.errors.items() if oracle in one.measures]
    assert judged_errors == ["invented"], "only these captions are judged"
    assert result.errors["invented"].measures[oracle].preferred.value == 1

    without = [judged(root, name, own, {}) for name, own in said.items()]
    less = compare_measures(job(root, out, judged=tuple(map(str, without))))
    assert (less.baselines, less.agreement[oracle].accuracy.value) == ([], 1), "it has not judged them"
    with pytest.raises(ValueError, match=f"oracle, differences has not judged {TESTED} captions of {root / 'wrong'}"):
        compare_measures(job(root, out, judged=tuple(map(str, without[:2]))))


def test_a_judge_of_coverage(root: Path) -> None:
    folders = []
    for system in ("right", "wrong"):
        rows = ev.load_predictions(root / system)
        result = JudgeResult(
            judge="j", answered_by=["j"], prompt="p", prompt_sha256="0", endpoint="http://x", temperature=0,
            references="first", evaluation=str(root / system), split="test", unreadable={}, asked=0, scores={},
            evaluation_fingerprint=ev.load_evaluation(root / system).fingerprint,
            per_pair={row.pair_id: 100 * row.differences.scores[F1] for row in rows if row.differences},
            baselines_per_pair={"nearest": {row.pair_id: 5.0 for row in rows}},
        )  # fmt: skip
        folders.append(root / f"coverage-{system}")
        folders[-1].mkdir()
        (folders[-1] / COVERAGE).write_text(result.model_dump_json())
    two = ("right", "wrong")
    found = compare_measures(job(root, root / "coverage", two, judged=tuple(map(str, folders))))
    assert found.agreement["j, coverage"].accuracy.value == 1
    assert found.baselines == [], "of which it has judged one alone"
    other = JudgeResult.model_validate_json((folders[1] / COVERAGE).read_text())
    (folders[1] / COVERAGE).write_text(other.model_copy(update={"prompt_sha256": "1"}).model_dump_json())
    with pytest.raises(ValueError, match=f"{folders[1]} is by j, coverage with other settings than {folders[0]}"):
        compare_measures(job(root, root / "coverage", two, judged=tuple(map(str, folders))))
    with pytest.raises(ValueError, match=f"judged: {root / 'right'} has neither judge.json nor"):
        compare_measures(job(root, root / "coverage", two, judged=(str(root / "right"),)))


# ------------------------------------------------------------------------------------------------------------ refusals


def test_fewer_than_two_systems_and_missing_folders_are_named(root: Path) -> None:
    with pytest.raises(ValueError, match=f"evaluations: only '{root / 'right'}'; .* at least two systems"):
        job(root, root / "x", ("right",))
    lost = [*job(root, root / "x", ("right", "lost")).preflight()]
    assert len(lost) == 1
    assert lost[0].startswith(f"evaluations.lost: no such file or folder: '{root / 'lost'}'")


def test_what_cannot_be_compared_is_named(root: Path, tmp_path: Path, drawn: dict[str, Drawn]) -> None:
    for name in ("right", "wrong"):
        shutil.copytree(root / name, tmp_path / name)
    shutil.copytree(root / "pairs", tmp_path / "pairs")
    rows = ev.load_predictions(root / "wrong")
    record = ev.load_evaluation(root / "wrong")
    moved = rows[0].model_copy(update={"references": ["a bird"]})
    for changed, own, fault in (
        (record, rows[1:], f"{tmp_path / 'wrong'} is not of the same pairs as {tmp_path / 'right'}"),
        (record, [moved, *rows[1:]], f"{tmp_path / 'wrong'} has other references of 1 pairs than"),
        (record.model_copy(update={"protocol": {"name": "levir_ids"}}), rows, f"{tmp_path / 'wrong'} follows the"),
        (record.model_copy(update={"scores": {"CIDEr": 1.0}}), rows, f"{tmp_path / 'wrong'} has no BLEU-4, METEOR"),
    ):
        ev.save(tmp_path / "wrong", changed, own)
        with pytest.raises(ValueError, match=fault):
            compare_measures(job(tmp_path, tmp_path / "x", ("right", "wrong")))
    ev.save(tmp_path / "wrong", record, rows)
    plain = {name: {"captions": tuple(row.references), "split": "test"} for row in rows for name in [row.pair_id]}
    unknown = write_pairs(tmp_path / "unknown", TESTED, **plain)
    with pytest.raises(ValueError, match=f"{unknown} has no truth: the objects and cameras of p00"):
        compare_measures(job(tmp_path, tmp_path / "x", ("right", "wrong"), pairs=unknown))
    other = write_pairs(tmp_path / "other", TESTED)
    with pytest.raises(ValueError, match=f"{other} has other references of p00"):
        compare_measures(job(tmp_path, tmp_path / "x", ("right", "wrong"), pairs=other))
    shutil.copytree(tmp_path / "right", tmp_path / "again")
    with pytest.raises(ValueError, match=f"{tmp_path / 'pairs'}: no two captions of a pair differ in true F1"):
        compare_measures(job(tmp_path, tmp_path / "x", ("right", "again"), baselines=False))


# ------------------------------------------------------------------------------------------------- sentences and page


def about(value: float, half: float = 0.02) -> Estimate:
    return Estimate(value=value, interval=ev.Interval(low=value - half, high=value + half))


def agreeing(accuracy: Estimate, lead: Estimate | None, spearman: float = 0.5) -> Agreement:
    return Agreement(
        accuracy=accuracy, lead=lead, spearman=about(spearman), kendall=about(0.4), spearman_in_pair=about(0.3),
        kendall_in_pair=about(0.3), with_precision=0.5, with_recall=0.5, with_invented=-0.5, systems=1.0,
    )  # fmt: skip


def test_the_sentence_follows_from_the_numbers() -> None:
    words_ = agreeing(about(0.55), about(0.35))
    agreement = {
        "A": agreeing(about(0.9), None), "B": agreeing(about(0.89), about(0.01), spearman=0.7),
        "C": agreeing(about(0.7), about(0.2)), WORDS: words_,
    }  # fmt: skip
    errors = {
        name: PlantedError(
            pairs=9, example=("t", "w"), true_f1=(1, 0), measures={"A": Planted(preferred=share, fall=share)}
        )
        for name, share in (("missing", about(0.8)), ("swapped order", about(0.51)))
    }
    text = sentences(agreement, errors, 1234)
    assert text[0] == (
        "Trust A (or B, not distinguishable from it on these pairs): of two captions of a pair that differ in true F1, "
        "A prefers the better one in 90.0 % (88.0 to 92.0) of 1,234 comparisons (chance 50 %, the longer caption 55.0 "
        "%)."
    )
    assert text[1] == (
        "The others: B 89.0 % (1.0 points less, -1.0 to 3.0); C 70.0 % (20.0 points less, 18.0 to 22.0)."
    )
    assert "B has the highest rank correlation with the truth (Spearman 0.70 (0.68 to 0.72); A 0.50" in text[2]
    assert text[3] == (
        "How often A prefers a true caption to the same with an error: missing 80.0 % (78.0 to 82.0); swapped order "
        "51.0 % (49.0 to 53.0)."
    )
    assert text[4] == (
        "Errors that a measure does not see (not distinguishable from chance, or worse): A: swapped order 51.0 % (49.0 "
        "to 53.0)."
    )
    close = {**agreement, "B": agreeing(about(0.89), about(0.01), spearman=0.53)}
    assert not any("rank correlation" in one for one in sentences(close, errors, 1234)), "their intervals overlap"
    by_chance = sentences({"A": agreeing(about(0.51), None), WORDS: words_}, {}, 10)
    assert by_chance == [
        "No measure here is to be trusted: the best one, A, prefers the better of two captions in 51.0 % (49.0 to "
        "53.0) of 10 comparisons, not distinguishable from chance (50 %)."
    ]
    no_better = {"A": agreeing(about(0.6), None), WORDS: agreeing(about(0.59), about(0.01))}
    assert "not distinguishable from the longer caption (59.0 %)" in sentences(no_better, {}, 10)[0]


def test_the_command_writes_a_page(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = importlib.import_module("jobs.compare_measures").main
    monkeypatch.delenv("IDC_ROOT", raising=False)
    own = [f"evaluations.{name}={root / name}" for name in ("right", "other", "wrong")]
    asked = ["compare_measures.py", f"pairs={root / 'pairs'}", *own, f"out={tmp_path}", "resamples=40"]
    monkeypatch.setattr(sys, "argv", asked)
    main()
    said = capsys.readouterr().out
    result = MeasuresRecord.model_validate_json((tmp_path / "measures.json").read_text())
    assert result.sentences[0] in said
    page = HtmlPage((tmp_path / "measures.html").read_text())
    text = " ".join(page.text.split())
    for expected in (
        *result.sentences,
        *result.limits,
        *(f"{name} ({one.pairs} pairs)" for name, one in result.errors.items()),
    ):
        assert " ".join(expected.split()) in text
    assert "baseline: constant" in text
    assert len(page.with_class("chart")) == 1 + len(ERRORS)
    assert len(page.with_class("interval")) == 5 * (1 + len(ERRORS)), "a measure's interval in every chart"

    monkeypatch.setattr(sys, "argv", [*asked[:-2], f"out={tmp_path}", f"judged=[{root / 'right'}]"])
    with pytest.raises(SystemExit, match=r"compare_measures: judged: .* has neither judge\.json"):
        main()
