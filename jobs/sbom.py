"""Write the software bill of materials: every locked package with its version and licence, as CycloneDX JSON.

    python jobs/sbom.py
    python jobs/sbom.py out=/tmp/sbom.json
"""

from idc.config import cli
from idc.sbom import SbomJob, write_sbom

if __name__ == "__main__":
    print(write_sbom(cli(SbomJob, __doc__, local=False, overwrite=False).config))
