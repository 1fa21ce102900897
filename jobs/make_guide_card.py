"""Put ChangeVG's guide with its figures and a card that states them into a folder: the weights for satellite images
that come with the program.

    python jobs/make_guide_card.py --config jobs/configs/card/satellite_guide.yaml
    python jobs/make_guide_card.py --config jobs/configs/card/satellite_guide.yaml out=/tmp/weights

Takes the figures from an evaluation and from notes of the guide, renders the pairs of the check, scores the guide's
notes on them, and writes the artifact with `scores.json` and `README.md`. Runs in this process.
"""

from __future__ import annotations

from idc.config import cli
from idc.systems.changevg.guide_card_config import GuideCardJob as Job


def main() -> None:
    args = cli(Job, __doc__, local=False, overwrite=False)
    from idc.systems.changevg.guide_card import make_guide_card

    try:
        print(f"written: {make_guide_card(args.config)}")
    except (OSError, ValueError) as error:
        raise SystemExit(f"make_guide_card: {error}") from None


if __name__ == "__main__":
    main()
