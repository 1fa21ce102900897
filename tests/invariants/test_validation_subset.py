"""Every system's validation split names the change types of its pairs, so that a part of it holds all of them."""

from __future__ import annotations

from idc.config import load
from idc.data.mapped_rows import MappedRows
from idc.data.store import iter_rows
from idc.data.text import Vocabulary
from idc.nn.captioned_rows import ImageStore
from idc.systems.namc.data import CaptionedPairs
from idc.systems.procap.data import FinetuneDataset, ProcedureInfo
from idc.systems.twincap.config import ModelConfig
from idc.systems.twincap.data import PairSamples
from idc.training.data import Dataset, EvalLoader
from idc.vision.pair_encoder.task import PairCaptions
from idc.vlm.chat import Chat
from idc.vlm.config import PromptConfig
from idc.vlm.samples import DialogueSamples
from tests.systems.procap.world import World
from tests.systems.twincap.tiny import MODEL
from tests.vlm.models import found


def validation_splits(world: World, split: str) -> dict[str, Dataset]:
    vocabulary = Vocabulary.build(text for row in iter_rows(world.pairs, ["captions"]) for text in row["captions"])
    columns = ["before", "after", "captions", "change_type"]
    chat = Chat(found("internvl").family)
    return {
        "twincap": PairSamples(world.pairs, split, load(ModelConfig, None, MODEL), vocabulary, 0),
        "procap": FinetuneDataset(
            world.procedures,
            ProcedureInfo.of(world.procedures),
            split,
            captions="first",
            max_length=20,
            seed=0,
            validation=True,
        ),
        "namc": CaptionedPairs(
            world.pairs, split, images=ImageStore(64, 8), vocabulary=vocabulary, length=20, seed=0, training=False
        ),
        "pair encoder": PairCaptions(MappedRows(world.pairs, columns, split), 32, changed_only=False, draw=False),
        "vlm": DialogueSamples(world.pairs, split, chat, PromptConfig(), 0, validation=True),
    }


def test_all_systems_validate_on_the_same_pairs_of_every_change_type(world: World) -> None:
    kinds = [row["change_type"] for row in iter_rows(world.pairs, ["change_type"], "train")]
    assert len(set(kinds)) > 2
    chosen = {}
    for name, dataset in validation_splits(world, "train").items():
        assert list(dataset.strata()) == kinds, name  # type: ignore[attr-defined]
        chosen[name] = EvalLoader(dataset, 4, 0, 1, list, limit=8).indices
    assert len(set(map(tuple, chosen.values()))) == 1, chosen
    assert [kinds[index] for index in chosen["vlm"]].count("none") == 4, "half of the pairs are unchanged"
