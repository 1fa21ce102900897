"""Check a data set: published counts, unusable pairs, duplicates, leaks, contradictions, captions.

    python jobs/validate.py pairs=data/pairs
    python jobs/validate.py pairs=spot_the_diff_annotations format=spot_the_diff report=spot.json

Takes a folder of pairs, or a source that is not imported yet. Writes a JSON report and a page with pictures. Status 1:
errors were found.
"""

from __future__ import annotations

from idc.config import cli, command
from idc.data.config import ValidateJob


@command
def main() -> None:
    args = cli(ValidateJob, __doc__, local=False, overwrite=False)
    from idc.data.validation.report import report_path, validation_table, write_validation_report
    from idc.data.validation.run import validate
    from idc.metrics.change_types import says_no_change
    from idc.next_command import after_validation
    from idc.report.validation_page import page_path, write_validation_page
    from idc.util.redaction import for_terminal

    job, path = args.config, report_path(args.config)
    try:
        validation = validate(job, says_no_change=says_no_change)
        print(for_terminal(validation_table(validation.result)))
        write_validation_report(validation.result, path)
        print(f"written to {path}")
        if job.pictures:
            write_validation_page(page_path(path), validation)
            print(f"page: {page_path(path)}")
        print(f"next: {after_validation(validation)}")
    except OSError as error:
        raise SystemExit(f"validate: cannot write the report or the page ({error}); give report=FILE") from None
    raise SystemExit(0 if validation.result.ok else 1)


if __name__ == "__main__":
    main()
