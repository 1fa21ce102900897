"""Check pairs: counts, unreadable files, duplicate ids, leaks between splits, captions.

    python jobs/validate.py pairs=data/pairs
    python jobs/validate.py pairs=my_pairs.csv report=my_pairs_report.json

Takes a data set folder, or pairs that are still to be imported. Leaves with status 1 if something is wrong.
"""

from __future__ import annotations

from idc.config import cli
from idc.data.config import ValidateJob


def main() -> None:
    job = cli(ValidateJob, __doc__).config
    from idc.data.validate import report_path, table, validate, write_report

    try:
        result = validate(job)
    except ValueError as error:
        raise SystemExit(f"validate: {error}") from None
    print(table(result))
    path = report_path(job)
    try:
        write_report(result, path)
    except OSError as error:
        raise SystemExit(f"validate: cannot write {path} ({error}); give report=FILE") from None
    print(f"written to {path}")
    raise SystemExit(0 if result.ok else 1)


if __name__ == "__main__":
    main()
