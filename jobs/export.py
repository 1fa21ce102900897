"""Export pairs as a task of lmms-eval or VLMEvalKit: images, prompt, references and scores.

    python jobs/export.py pairs=data/demo/pairs to=lmms_eval out=tasks name=changes
    python jobs/export.py pairs=data/demo/pairs to=vlmevalkit out=LMUData name=changes max_pairs=200

It prints the harness's command. lmms-eval computes CIDEr, and difference F1 of rendered pairs, by the scorer of
jobs/evaluate.py, for which this project is installed there (pip install .). VLMEvalKit writes predictions, which
jobs/evaluate.py scores. Neither harness is needed for the export.
"""

from __future__ import annotations

from idc.config import cli, command
from idc.evaluation.export import ExportJob


@command
def main() -> None:
    job = cli(ExportJob, __doc__, local=False, overwrite=False).config
    from idc.evaluation.export import run_export

    print(run_export(job))


if __name__ == "__main__":
    main()
