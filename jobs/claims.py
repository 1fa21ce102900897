"""What the papers claim, tested small: for each claim the control, the effect with its interval over seeds and pairs,
and the verdict: seen, not seen, contradicted, or not testable here and why. Reads what jobs/sweep.py has trained.

    python jobs/claims.py --config jobs/configs/claims/small.yaml
    python jobs/claims.py --config jobs/configs/claims/small.yaml "sweeps=[runs/sweeps, other/sweeps]" out=runs/claims

Also computes from the measured spread how many seeds and pairs an effect takes to be seen. Runs in this process. Writes
<out>/claims.html, its picture claims.svg, claims.md and claims.json.
"""

from __future__ import annotations

from pathlib import Path

from idc.config import cli
from idc.report.paper_claims.config import ClaimsJob as Job


def main() -> None:
    job = cli(Job, __doc__, local=False, overwrite=False).config
    from idc.report.paper_claims.claims_page import write_claims
    from idc.report.paper_claims.gathering import gather_claims

    page = write_claims(job, gather_claims(job))
    print(f"{(Path(job.out) / 'claims.md').read_text(encoding='utf-8')}\n{page}")


if __name__ == "__main__":
    main()
