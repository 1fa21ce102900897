"""Score short answers about changes by ChangeIMTI's measures: yes or no, counts, positions.

    python jobs/score_answers.py answers=answers.jsonl out=runs/answers

Each line of the file is a question: {"type": "binary", "answer": "Yes", "prediction": "yes."}; type count and location
also have "class": "road". Other types (CDVQA, QAG-360K) are scored by equal texts. All faulty lines are named.
"""

from __future__ import annotations

from idc.config import cli, refuse
from idc.evaluation.answers import AnswersJob


def main() -> None:
    args = cli(AnswersJob, __doc__, local=False, overwrite=False)
    from idc.evaluation.answers import answers_table, run_answers

    try:
        result = run_answers(args.config)
    except ValueError as error:
        refuse(str(error).split("\n"))
    print(answers_table(result))


if __name__ == "__main__":
    main()
