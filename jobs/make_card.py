"""Put an artifact with its figures and a card that states them into a folder: the weights that come with the program.

    python jobs/make_card.py --config jobs/configs/card/clevr_like.yaml
    python jobs/make_card.py --config jobs/configs/card/clevr_like.yaml out=/tmp/weights

Takes the figures from evaluations of the artifact, renders the scenes of the check, scores the captioner on them, and
writes the artifact with `scores.json` and `README.md`. Runs in this process.
"""

from __future__ import annotations

from idc.config import cli
from idc.evaluation.card_config import CardJob as Job


def main() -> None:
    args = cli(Job, __doc__, local=False, overwrite=False)
    from idc.evaluation.card import make_card

    try:
        print(f"written: {make_card(args.config)}")
    except (OSError, ValueError) as error:
        raise SystemExit(f"make_card: {error}") from None


if __name__ == "__main__":
    main()
