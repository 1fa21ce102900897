"""Write the negatives that DPO or ADPO would draw, in the columns of TRL or LLaMA-Factory, for other trainers.

    python jobs/export_preferences.py --config jobs/configs/adpo/lora.yaml pairs=data/mine/pairs base.source=merged \\
        retriever.encoder=runs/adpo/retriever out=data/negatives
    python jobs/export_preferences.py objective=dpo pairs=data/mine/pairs base.source=merged tune.lora.dropout=0 \\
        scorer=runs/mine-sft/artifact columns=llama_factory out=data/negatives

The settings are those of jobs/train_adpo.py, and so are the draws: what a run with them and with the same seed would
draw in its first pass over the training pairs, if the retriever did not learn on the way. scorer= leaves out negatives
that may be true of their pair. jobs/import_preferences.py reads the file again.
"""

from __future__ import annotations

from idc.config import cli
from idc.systems.adpo.config import ExportPreferencesJob as Job


def main() -> None:
    args = cli(Job, __doc__, local=False)
    from idc.systems.adpo.export import ROWS, export_preferences

    try:
        exported = export_preferences(args.config, args.overwrite)
    except (OSError, ValueError) as error:
        raise SystemExit(f"export_preferences: {error}") from None
    print(f"{args.config.out}/{ROWS}: {exported.text()}")


if __name__ == "__main__":
    main()
