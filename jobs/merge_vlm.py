"""Merge a tuned vision-language model into its base: a plain hub folder, for transformers, vLLM and the hub.

python jobs/merge_vlm.py artifact=runs/sft/artifact out=merged
python jobs/merge_vlm.py artifact=runs/sft/artifact out=merged push=me/my-captioner
"""

from __future__ import annotations

from idc.config import cli
from idc.vlm.config import MergeJob as Job


def main() -> None:
    args = cli(Job, __doc__, local=False)
    from idc.vlm.merging import merge

    try:
        merge(args.config, overwrite=args.overwrite)
    except ValueError as error:
        raise SystemExit(f"merge: {error}") from None


if __name__ == "__main__":
    main()
