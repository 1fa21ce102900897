"""A pickle in every place where a file of others is read: refused with a reason, and not executed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from idc.captioning.sources import ModelSources
from idc.config import ConfigError, ConfigModel, load
from idc.data.config import ImportConfig
from idc.data.mapped_rows import MappedRows
from idc.data.readers import open_reader
from idc.data.rows import open_rows
from idc.data.store import iter_rows, read_table
from idc.data.stored_rows import refuse_objects
from idc.data.text import Vocabulary
from idc.training.artifact import read_artifact, write_artifact
from idc.training.config import TrainConfig
from idc.training.context import LocalContext
from idc.training.engines import make_engine, param_groups
from idc.training.foreign import read_checkpoint
from idc.vision.pretrained import load_pretrained
from tests.faults.canary import Canary
from tests.mining.descriptions.small_pairs import write_pairs
from tests.training import toy
from tests.training.test_loop import TRAIN


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    return Canary(tmp_path)


# -- tables ---------------------------------------------------------------------------------------------------------


def object_column(canary: Canary, rows: int) -> pa.Array:
    """A column as Ray Data writes Python objects, whose type it registers with pyarrow for the whole process."""
    import ray.data  # noqa: F401
    from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType

    storage = pa.array([canary.pickled()] * rows, pa.large_binary())
    return pa.ExtensionArray.from_storage(ArrowPythonObjectType(), storage)


@pytest.fixture
def table(canary: Canary, tmp_path: Path) -> Path:
    """Parquet with a column of objects where images are expected."""
    images = object_column(canary, 2)
    columns = {
        "pair_id": ["a", "b"],
        "before": images,
        "after": images,
        "captions": [["x"], ["y"]],
        "split": ["test"] * 2,
    }
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "table" / "pairs.parquet")
    return tmp_path / "table" / "pairs.parquet"


def test_a_column_of_objects_is_executed_by_pyarrow_itself_where_ray_data_is_loaded(
    table: Path, canary: Canary
) -> None:
    """The reason for all of the following."""
    pq.read_table(table)["before"][0].as_py()
    assert canary.mark.exists()


READ_TABLES: dict[str, Callable[[Path], object]] = {
    "import": lambda path: open_reader("parquet", path.parent, ImportConfig()),
    "captions of a table": lambda path: open_rows(path),
}


@pytest.mark.parametrize("how", READ_TABLES)
def test_a_table_with_objects_is_refused(how: str, table: Path, canary: Canary) -> None:
    with pytest.raises(ValueError, match=r"pairs\.parquet is refused: .* before \(ray.data.arrow_pickled_object\)"):
        READ_TABLES[how](table)
    canary.check()


@pytest.mark.parametrize("nested", ["list", "struct", "dictionary", "unregistered"])
def test_objects_are_found_within_other_types(nested: str, canary: Canary, tmp_path: Path) -> None:
    column = object_column(canary, 1)
    if nested == "list":
        column = pa.ListArray.from_arrays([0, 1], column)
    elif nested == "struct":
        column = pa.StructArray.from_arrays([column], names=["inner"])
    elif nested == "dictionary":
        column = pa.DictionaryArray.from_arrays(pa.array([0]), column)
    field = pa.field("x", column.type)
    if nested == "unregistered":
        column = column.storage
        field = pa.field("x", column.type, metadata={b"ARROW:extension:name": b"ray.data.arrow_pickled_object"})
    schema = pa.schema([field])
    with pytest.raises(ValueError, match=r"x .ray\.data\.arrow_pickled_object"):
        refuse_objects(schema, "the file")


READ_FOLDERS: dict[str, Callable[[Path], object]] = {
    "rows": lambda path: list(iter_rows(path)),
    "table": lambda path: read_table(path),
    "training": lambda path: MappedRows(path, ["pair_id", "captions"]),
}


@pytest.mark.parametrize("how", READ_FOLDERS)
def test_a_folder_of_pairs_with_objects_is_refused(how: str, canary: Canary, tmp_path: Path) -> None:
    folder = Path(write_pairs(tmp_path / "pairs", 4))
    (part,) = folder.glob("part-*.parquet")
    rows = pq.read_table(part)
    name = "meta" if "meta" in rows.schema.names else rows.schema.names[-1]
    rows = rows.set_column(rows.schema.names.index(name), name, object_column(canary, rows.num_rows))
    pq.write_table(rows, part)
    with pytest.raises(ValueError, match=r"is refused: .*ray.data.arrow_pickled_object"):
        READ_FOLDERS[how](folder)
    canary.check()


def test_the_rows_that_a_training_maps_into_memory_are_refused(canary: Canary, tmp_path: Path) -> None:
    folder = Path(write_pairs(tmp_path / "pairs", 4))
    MappedRows(folder, ["pair_id", "captions"])
    (file,) = (folder / "_rows").glob("*.arrow")
    evil = pa.table({"pair_id": ["a"], "captions": object_column(canary, 1)})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, evil.schema) as writer:
        writer.write_table(evil)
    with pytest.raises(ValueError, match=r"captions .ray\.data\.arrow_pickled_object"):
        MappedRows(folder, ["pair_id", "captions"])
    canary.check()


# -- weights --------------------------------------------------------------------------------------------------------


def torch_zip(path: Path, canary: Canary) -> None:
    torch.save({"state_dict": {"w": torch.ones(2), "x": canary}}, path)


def torch_old(path: Path, canary: Canary) -> None:
    torch.save({"state_dict": canary}, path, _use_new_zipfile_serialization=False)


def bare(path: Path, canary: Canary) -> None:
    path.write_bytes(canary.pickled())


def in_a_placeholder(path: Path, canary: Canary) -> None:
    """Within an object of a class that is read as an inert placeholder."""
    torch.save({"callbacks": argparse.Namespace(x=canary), "w": torch.ones(1)}, path)


def script(path: Path, canary: Canary) -> None:
    """A TorchScript archive holds code by design."""
    torch.jit.save(torch.jit.script(nn.Linear(1, 1)), str(path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("write", [torch_zip, torch_old, bare, in_a_placeholder, script], ids=lambda f: f.__name__)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_official_weights(write: Callable[[Path, Canary], None], suffix: str, canary: Canary, tmp_path: Path) -> None:
    path = tmp_path / f"official{suffix}"
    write(path, canary)
    with pytest.raises(ValueError, match=r"not a checkpoint that can be read safely|cannot be read"):
        read_checkpoint(path)
    canary.check()


def test_weights_of_a_transformers_model(canary: Canary, tmp_path: Path) -> None:
    """Also its code: a folder may name classes of its own, which are files next to its weights."""
    from transformers import CLIPModel

    folder = tmp_path / "model"
    CLIPModel.config_class().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "evil.CLIPModel", "AutoConfig": "evil.Config"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(canary.mark)!r})\n")
    torch.save({"w": canary}, folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"model='.*' cannot be loaded as CLIPModel"):
        load_pretrained(CLIPModel, folder, "model")
    canary.check()


# -- checkpoints of a run, artifacts --------------------------------------------------------------------------------


def test_a_checkpoint_of_a_run(canary: Canary, tmp_path: Path) -> None:
    """Of the torch engine."""
    task = toy.ToyTask()
    engine = make_engine(task, param_groups(task)[0], LocalContext(tmp_path), TrainConfig.model_validate(TRAIN))
    engine.save(tmp_path)
    engine.load(tmp_path, 1)
    for content in ({"task": task.state_dict(), "optimizer": canary}, canary):
        torch.save(content, tmp_path / "torch.pt")
        with pytest.raises(ValueError, match=r"the checkpoint .* cannot be read \(Weights only load failed"):
            engine.load(tmp_path, 1)
        canary.check()


FILES = ["model.safetensors", "config.json", "vocabulary.json", "preprocess.json", "metrics.json"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_an_artifact(name: str, canary: Canary, tmp_path: Path) -> None:
    folder = write_artifact(
        tmp_path / "artifact", system="toy", config={}, state_dict={"w": torch.ones(2)}, vocabulary=Vocabulary(["a"])
    )
    (folder / name).write_bytes(canary.pickled())
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        read_artifact(folder).state_dict()
    canary.check()


def test_a_model_of_mlflow_is_no_artifact(canary: Canary, tmp_path: Path) -> None:
    """The registry can hold a model whose loader is a pickle; serving takes artifacts only."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "MLmodel").write_text(
        "flavors:\n  python_function:\n    loader_module: mlflow.pyfunc.model\n    python_model: python_model.pkl\n"
    )
    (folder / "python_model.pkl").write_bytes(canary.pickled())
    with pytest.raises(ValueError, match="is not an artifact"):
        ModelSources().version(str(folder))
    canary.check()


# -- settings -------------------------------------------------------------------------------------------------------


class Settings(ConfigModel):
    name: str = ""
    """A name."""


def test_yaml_makes_no_objects(canary: Canary, tmp_path: Path) -> None:
    evil = f"!!python/object/apply:os.mkdir [{canary.mark}]"
    (tmp_path / "evil.yaml").write_text(f"name: {evil}\n")
    with pytest.raises(ConfigError, match="is not YAML"):
        load(Settings, str(tmp_path / "evil.yaml"))
    canary.check()
