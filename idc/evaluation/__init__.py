"""The evaluation of a captioner: the job, its record, baselines, and comparisons."""
