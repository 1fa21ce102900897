"""Write a folder of pairs with class masks in LEVIR-MCI's own layout, for programs that read LEVIR-CC or LEVIR-MCI.

    python jobs/export_levir.py pairs=data/satellite/pairs out=data/satellite/levir
    python jobs/import_dataset.py format=levir source=data/satellite/levir out=data/satellite/again

Masks must have the values 0, 128 (road) and 255 (building), as those of jobs/render.py with render.satellite. Runs in
this process; the file of the captions is written last.
"""

from __future__ import annotations

from idc.config import cli
from idc.data.levir_layout import ExportLevirJob as Job


def main() -> None:
    args = cli(Job, __doc__, local=False)
    from idc.data.levir_layout import export_levir

    try:
        pairs = export_levir(args.config, args.overwrite)
    except (OSError, ValueError) as error:
        raise SystemExit(f"export_levir: {error}") from None
    print(f"{args.config.out}: {sum(pairs.values())} pairs {pairs}")
    print(f"next: python jobs/import_dataset.py format=levir source={args.config.out} out=data/levir/pairs")


if __name__ == "__main__":
    main()
