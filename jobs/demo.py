"""Run everything on one machine: pairs, several systems, scores and baselines, a page and a leaderboard (`make demo`).

    python jobs/demo.py
    python jobs/demo.py --systems procap      which systems (default: twincap procap)
    python jobs/demo.py --seeds 0 1 2

Runs the project's own jobs, the systems' side by side. Finished steps are skipped. Prints one line per step, with the
output in runs/demo/logs, and at the end: the scores of the captioners, the page, the leaderboard that compares them,
how to serve and how to caption with the one that is best on the validation split, and the file with all figures.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def main() -> None:
    from idc.demo.run import DEFAULT, demo_steps

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="train and evaluate with each (default: 0)")
    parser.add_argument(
        "--systems", nargs="+", default=DEFAULT, metavar="NAME", help=f"which systems (default: {' '.join(DEFAULT)})"
    )
    parser.add_argument("--no-robustness", action="store_true", help="leave out the evaluations on corrupted images")
    parser.add_argument("--folder", default="demo", help="the demo's folder under data/ and runs/ (default: demo)")
    args = parser.parse_args()
    from cluster.commands import run_commands
    from idc.config import enter_root, refuse
    from idc.demo.summary import advice, closing, demo_summary

    enter_root()
    try:
        wanted = demo_steps(args.folder, args.seeds, systems=args.systems, robustness=not args.no_robustness)
        commands = [(step.title, step.command, step.queue) for step in wanted]
    except ValueError as error:
        refuse([str(error)])
    runs = Path("runs") / args.folder
    try:
        used = run_commands(commands, runs / "logs")
    except RuntimeError as error:
        raise SystemExit(f"demo: {error}\n{advice(args.folder)}") from None
    result = demo_summary(args.folder, args.seeds, args.systems) | used._asdict()
    (runs / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n".join(closing(result, args.folder)))


if __name__ == "__main__":
    main()
