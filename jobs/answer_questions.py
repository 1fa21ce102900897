"""Put the questions of a data set to a captioner: yes or no, counts, positions; and score its answers.

    python jobs/build_changeimti.py pairs=data/levir-mci/pairs out=data/changeimti-test splits=[test]
    python jobs/answer_questions.py artifact=runs/changevg/artifact instructions=data/changeimti-test \\
        out=runs/changevg/answers
    python jobs/import_dataset.py source=QAG-360K out=data/qag360k format=qag360k
    python jobs/answer_questions.py artifact=runs/changevg/artifact instructions=data/qag360k \\
        out=runs/changevg/qag360k data_set=qag360k types=[change_or_not]

Writes OUT/answers.jsonl and OUT/answers.json, those of dialogues below OUT/dialogues. Answers that no rule can parse
count as wrong. Captions are scored by jobs/evaluate.py. The same command continues an interrupted job.
"""

from __future__ import annotations

from idc.config import cli
from idc.evaluation.config import AskJob


def main() -> None:
    args = cli(AskJob, __doc__, local=False)
    from idc.evaluation.answers import answers_table
    from idc.evaluation.asking import ask_questions

    try:
        scores = ask_questions(args.config, overwrite=args.overwrite)
    except ValueError as error:
        raise SystemExit(f"answer_questions: {error}") from None
    for title, result in (("single questions", scores.single), ("in dialogues", scores.dialogues)):
        if result is not None:
            print(f"{title}: {answers_table(result)}")


if __name__ == "__main__":
    main()
