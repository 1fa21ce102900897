"""Write the software bill of materials: every locked package with its version and licence, as CycloneDX JSON.

python jobs/sbom.py
python jobs/sbom.py out=/tmp/sbom.json
"""

from __future__ import annotations

from idc.config import cli, refuse
from idc.sbom import SbomJob, write_sbom


def main() -> None:
    job = cli(SbomJob, __doc__, local=False, overwrite=False).config
    try:
        print(write_sbom(job))
    except ValueError as error:
        refuse([str(error)])


if __name__ == "__main__":
    main()
