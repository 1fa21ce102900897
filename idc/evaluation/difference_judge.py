"""A language model takes captions apart into differences and matches them with the true ones; the counting is ours.

After DiffCap-Bench (arXiv 2605.04503, May 2026), which scores difference captions by a language model that is grounded
in lists of differences, because word overlap neither sees meaning nor punishes invention. Only its abstract was at
hand: prompts, matching rules and scores below are our own (:data:`DEVIATIONS`).

1. The true differences of a rendered pair are those of its ``meta``, stated in words by
   :func:`idc.data.rendered.stated.stated`; of other pairs the judge takes them from the references, once.
2. For every caption the judge lists the differences that it claims, each with the number of the true difference that it
   states, or null. The answer is read strictly: one JSON object, numbers of the list, none of them twice.
3. Precision, recall, F1 and the invented share are counted here, as :mod:`idc.metrics.difference_lists` defines them
   for captions that are read by rules.

An unusable answer is returned to the judge once, with its fault. If the second one is unusable too it is named, is not
kept, and the job fails; the same command asks again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from idc.answer_log import AnswerLog
from idc.atomic import write_text
from idc.chat_endpoint import Reply, without_credentials
from idc.data.rendered.stated import stated
from idc.data.store import iter_rows
from idc.data.textfiles import parse_json_at
from idc.evaluation.judge import JudgeJob, ask_all, captions_of, filled_prompt, key_of_prompt
from idc.evaluation.judged_differences import RESULT, DifferencesJudged, JudgedCaption, JudgedClaim, system_of
from idc.evaluation.record import ScoredCaption, load_evaluation, load_predictions
from idc.metrics.difference_lists import true_differences

PROTOCOL = "difference-lists-judge-1"
"""Name and version of the protocol; it changes with the prompts and with how answers are read or counted."""

DEVIATIONS = (
    "only the abstract of DiffCap-Bench was at hand: prompts, matching rules and counting are our own",
    "the judge sees no image: the true differences are the list that a rendered pair was made from, else what the same "
    "judge takes from the references, once a pair",
    "matching is one to one; a claim that says less than the truth matches, one with a wrong detail does not",
    "a caption that claims nothing counts as one that says that nothing changed",
)

TAKE = """\
Several people looked at the same two images and wrote what differs between them. Their texts are true, but none has \
to be complete.

{references}

Merge the texts into one list of single differences: one entry for each thing of which something changed, with all \
that is said of it. What two people say of the same difference is one entry. Statements that nothing changed, and \
descriptions of what stayed, are no differences.

Answer with one JSON object and nothing else, of the form
{"differences": ["...", "..."]}
The list is empty if all of them say that nothing changed.
"""

MATCH = """\
Two images differ as follows. The list is true and complete.

{true}

People who saw both images wrote, which may help to find which thing is meant:

{references}

A program that saw both images wrote:

{caption}

Take the program's text apart into the single differences that it claims: one entry for each thing of which it says \
that something changed. A difference that it states twice is one entry. Statements that nothing changed, and \
descriptions of what stayed, are no claims.

Give each entry the number of the difference in the list that it states. A claim states a difference if it is about \
the same thing and the same kind of change, and nothing that it says (which thing, colour, size, material, number, \
place, what it became) contradicts the list. It may say less than the list. Use each number once at most. A claim that \
states no difference of the list has null.

Answer with one JSON object and nothing else, of the form
{"claims": [{"claim": "...", "number": 2}, {"claim": "...", "number": null}]}
The list is empty if the text claims no difference.
"""

AGAIN = "This answer cannot be used: {fault}. Answer the question again, with one JSON object of the form asked for."


# ------------------------------------------------------------------------------------------------------------ answers


def read_reply(reply: Reply, key: str) -> list[Any]:
    """The list under ``key`` of the one JSON object in a reply, which may have text around it.

    Raises:
        ValueError: there is not exactly one object, or it has other keys, or the value is not a list.
    """
    if reply.cut_off:
        raise ValueError("it was cut off at max_tokens")
    objects, at = [], reply.text.find("{")
    while at >= 0:
        end = at + 1
        try:
            value, end = parse_json_at(reply.text, at)
            objects.append(value)
        except ValueError:
            pass  # a brace in the text around it
        at = reply.text.find("{", end)
    if len(objects) != 1:
        raise ValueError(f"it has {len(objects) or 'no'} JSON object{'s' * (len(objects) > 1)}")
    if objects[0].keys() != {key} or not isinstance(objects[0][key], list):
        raise ValueError(f'the object is not {{"{key}": [...]}}')
    return list(objects[0][key])


def read_judged_claims(reply: Reply, true: int) -> list[JudgedClaim]:
    """The claims of a caption.

    Args:
        true: number of true differences.

    Raises:
        ValueError: not of the form asked for, a number that is not in the list, or one that two claims have.
    """
    claims = []
    for entry in read_reply(reply, "claims"):
        if not isinstance(entry, dict) or entry.keys() != {"claim", "number"} or not _text(entry["claim"]):
            raise ValueError(f'a claim is not {{"claim": "...", "number": ...}} but {json.dumps(entry)[:120]}')
        number = entry["number"]
        if number is not None and (type(number) is not int or not 1 <= number <= true):
            raise ValueError(f"the number {json.dumps(number)[:40]} is none of the {true} true differences")
        claims.append(JudgedClaim(claim=entry["claim"], number=number))
    numbers = [claim.number for claim in claims if claim.number is not None]
    if twice := sorted({number for number in numbers if numbers.count(number) > 1}):
        raise ValueError(f"the difference {twice[0]} is stated by several claims; each may be used once")
    return claims


def read_differences(reply: Reply) -> list[str]:
    """The true differences that were taken from references.

    Raises:
        ValueError: not of the form asked for.
    """
    differences = read_reply(reply, "differences")
    if not all(map(_text, differences)):
        raise ValueError("a difference is not a text")
    return differences


def _text(value: Any) -> bool:
    """Whether it is a text with words, none of whose characters is half of one (an escape such as ``\\ud83d``)."""
    return (
        isinstance(value, str) and bool(value.split()) and not any("\ud800" <= letter <= "\udfff" for letter in value)
    )


# ---------------------------------------------------------------------------------------------------------------- job


def run_difference_judge(job: JudgeJob) -> DifferencesJudged:
    """Ask what has no answer yet, and write ``judged_differences.json``.

    Raises:
        ValueError: pairs without references; or ``job.pairs`` lacks some of them, or has other references.
        EndpointError: the endpoint fails; the answers so far are kept, and the same command continues.
    """
    evaluation, rows = load_evaluation(job.evaluation), load_predictions(job.evaluation)[: job.max_pairs]
    if bare := [row.pair_id for row in rows if not row.references]:
        raise ValueError(f"{len(bare)} pairs have no reference to judge against: {', '.join(bare[:5])}; leave them out")
    judged = {row.pair_id: row for row in rows if any(text.split() for text in row.references)}
    if empty := len(rows) - len(judged):
        print(f"note: not judged: {empty} of {len(rows)} pairs, whose references are all empty", flush=True)
    asking = _Asking(job)
    recorded = _recorded(job, judged)
    true = {**recorded, **_taken(asking, [row for row in judged.values() if row.pair_id not in recorded])}
    with_truth = [row for pair, row in judged.items() if pair in true]
    systems = {}
    for system, caption_of in captions_of(job, evaluation).items():
        said = [(row, caption) for row in with_truth if (caption := caption_of(row)) is not None]
        if judged_captions := _claims(asking, system, said, true):
            systems[system] = system_of(judged_captions, true, job.resamples)
    result = DifferencesJudged(
        protocol=_protocol(job),
        answered_by=sorted(asking.models),
        evaluation=job.evaluation,
        evaluation_fingerprint=evaluation.fingerprint,
        split=evaluation.split,
        from_record=len(recorded),
        true={row.pair_id: true[row.pair_id] for row in with_truth},
        systems=systems,
        unusable=asking.unusable,
        asked=asking.asked,
    )
    write_text(Path(job.out) / RESULT, result.model_dump_json(indent=1) + "\n")
    return result


class _Asking:
    """Questions of a job and their kept answers.

    Attributes:
        unusable: name of a question -> fault and text of its answer.
        asked: number of questions that had no kept answer.
        models: names under which the model answered.
    """

    def __init__(self, job: JudgeJob) -> None:
        self._job, self._answers = job, AnswerLog(job.answers_file)
        self.unusable: dict[str, str] = {}
        self.asked = 0
        self.models: set[str] = set()

    def answers(
        self, what: str, prompts: Mapping[str, str], field: str, read: Callable[[str, Reply], list[Any]]
    ) -> dict[str, list[Any]]:
        """Name of each question -> its answer, without those that are unusable.

        Args:
            what: is asked for, for the line that is printed.
            prompts: name of each question -> the question.
            field: name of the answer in the file.
            read: name of the question and reply -> answer; ``ValueError`` if it cannot be used.
        """
        if not prompts:
            return {}
        keys = {name: key_of_prompt(self._job, prompt) for name, prompt in prompts.items()}
        names = {key: name for name, key in keys.items()}  # of equal questions one is asked
        records = self._answers.known
        unanswered = {key: prompts[name] for key, name in names.items() if key not in records}
        print(f"{what}: {len(prompts)}, {len(unanswered)} requests to {self._job.judge}", flush=True)
        lost = ask_all(self._job, unanswered, self._answers, lambda key, reply: {field: read(names[key], reply)}, AGAIN)
        self.asked += len(unanswered)
        self.unusable |= {name: lost[key] for name, key in keys.items() if key in lost}
        answered = {name: records[key] for name, key in keys.items() if key not in lost}
        self.models |= {str(record["model"]) for record in answered.values()}
        return {name: list(record[field]) for name, record in answered.items()}


def _taken(asking: _Asking, rows: Sequence[ScoredCaption]) -> dict[str, list[str]]:
    """Pair -> the true differences that the judge takes from its references."""
    names = {f"{row.pair_id} (references)": row.pair_id for row in rows}
    prompts = {f"{row.pair_id} (references)": filled_prompt(TAKE, {"{references}": _listed(row)}) for row in rows}
    answers = asking.answers(
        "true differences from references", prompts, "differences", lambda _, reply: read_differences(reply)
    )
    return {names[name]: differences for name, differences in answers.items()}


def _claims(
    asking: _Asking, system: str, said: Sequence[tuple[ScoredCaption, str]], true: Mapping[str, Sequence[str]]
) -> dict[str, JudgedCaption]:
    """Pair -> what the judge makes of its caption."""
    names = {row.pair_id: f"{row.pair_id} ({system})" for row, _ in said}
    prompts = {
        names[row.pair_id]: filled_prompt(
            MATCH,
            {"{true}": _numbered(true[row.pair_id]), "{references}": _listed(row), "{caption}": caption},
        )
        for row, caption in said
        if caption.split()
    }
    most = {names[row.pair_id]: len(true[row.pair_id]) for row, _ in said}
    answers = asking.answers(
        f"captions to take apart, {system}",
        prompts,
        "claims",
        lambda name, reply: [claim.model_dump() for claim in read_judged_claims(reply, most[name])],
    )
    # A caption without words claims nothing.
    silent: dict[str, list[Any]] = {name: [] for name in names.values() if name not in prompts}
    claims = {**answers, **silent}
    return {
        row.pair_id: JudgedCaption(caption=caption, claims=claims[names[row.pair_id]])
        for row, caption in said
        if names[row.pair_id] in claims
    }


def _recorded(job: JudgeJob, judged: Mapping[str, ScoredCaption]) -> dict[str, list[str]]:
    """Pair -> its true differences in words, of the pairs whose ``meta`` has them."""
    if job.pairs is None:
        return {}
    recorded: dict[str, list[str]] = {}
    seen: set[str] = set()
    for row in iter_rows(job.pairs, ["pair_id", "captions", "change_type", "meta"]):
        if (pair := row["pair_id"]) not in judged:
            continue
        if not {text for text in judged[pair].references if text.split()} <= {*row["captions"]}:
            raise ValueError(f"pairs: {job.pairs!r} has other references of {pair} than {job.evaluation!r}")
        seen.add(pair)
        meta = json.loads(row["meta"] or "{}")
        if (truth := true_differences(row["change_type"], meta)) is not None:
            recorded[pair] = [stated(difference, meta.get("views", ())) for difference in truth.differences]
    if lost := sorted(judged.keys() - seen):
        raise ValueError(f"pairs: {job.pairs!r} lacks {len(lost)} evaluated pairs: {', '.join(lost[:5])}")
    return recorded


def _listed(row: ScoredCaption) -> str:
    return "\n".join(f"- {' '.join(text.split())}" for text in row.references if text.split())


def _numbered(texts: Sequence[str]) -> str:
    return "\n".join(f"{number}. {text}" for number, text in enumerate(texts, start=1)) or "(nothing differs)"


def _protocol(job: JudgeJob) -> dict[str, Any]:
    return {
        "name": PROTOCOL,
        "after": "DiffCap-Bench (arXiv 2605.04503)",
        "deviations": list(DEVIATIONS),
        "judge": job.judge,
        "endpoint": without_credentials(job.url),
        "temperature": job.temperature,
        "max tokens": job.answer_tokens,
        "prompts sha256": hashlib.sha256("\0".join((TAKE, MATCH, AGAIN)).encode()).hexdigest(),
    }
