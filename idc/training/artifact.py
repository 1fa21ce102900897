"""The artifact: the product of a training run. One folder that evaluation, captioning, the registry and serving take.

config.json         system, format version, resolved config, names of all files, training data; in version 2: the base
model.safetensors   weights, without those of the base
adapter/            version 2: PEFT's files of an adapter of the base
processor/          version 2: the base's tokenizer, image processor and chat template
vocabulary.json     words, if the system has its own
preprocess.json     how the two images are prepared
metrics.json        validation metrics of these weights
README.md           generated model card
calibration.json    the probability that anything changed, if it was calibrated (idc/captioning/calibration.py)
familiarity.safetensors  distance from the training images, likewise (idc/captioning/familiarity.py)
<extras>            further files and folders, e.g. tokenizer/ of a captioner that reads image tokens

An artifact without base, adapter and processor is written as version 1, which earlier versions of the program read.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ValidationError

from idc.data.text import Vocabulary
from idc.data.textfiles import decode_text, parse_json
from idc.training.base import BaseName, refuse_damaged
from idc.training.hashing import combined_hash, contents, file_hash
from idc.util.atomic import take_umask, write_bytes, write_text
from idc.util.model_faults import first_error
from idc.util.units import metric_text

if TYPE_CHECKING:
    from torch import Tensor, nn

CONFIG, WEIGHTS, VOCABULARY = "config.json", "model.safetensors", "vocabulary.json"
PREPROCESS, METRICS, CARD = "preprocess.json", "metrics.json", "README.md"
CALIBRATION, FAMILIARITY = "calibration.json", "familiarity.safetensors"
ADAPTER, PROCESSOR = "adapter", "processor"
_ADDED_LATER = {CALIBRATION, FAMILIARITY}
"""Files that jobs/calibrate.py adds; captions do not depend on them."""
_ADAPTER_FILES = (f"{ADAPTER}/adapter_config.json", f"{ADAPTER}/adapter_model.safetensors")

MAX_JSON_BYTES = 32 * 2**20
"""JSON files of an artifact above this size are refused unread."""

ModelT = TypeVar("ModelT", bound=BaseModel)

IDENTITY_TAG = "idc.artifact"
"""Tag of a version in the registry: the :func:`artifact_identity` of its artifact."""


def _inside(name: str) -> str:
    parts = PurePosixPath(name)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"{name!r} is no name below the folder")
    return name


class _Description(BaseModel):
    system: str
    format_version: Literal[1, 2]
    config: dict[str, Any]
    files: tuple[Annotated[str, AfterValidator(_inside)], ...]
    trained_on: str | None = None
    base: BaseName | None = None


@dataclass(frozen=True)
class Artifact:
    """The description of an artifact; :meth:`state_dict` reads the weights.

    Attributes:
        files: names of all files but config.json, relative to ``path``.
        trained_on: what the model was trained on, in short English; None if the artifact does not record it.
        base: the model of others that it needs.
    """

    path: Path
    system: str
    config: dict[str, Any]
    preprocess: dict[str, Any]
    metrics: dict[str, Any]
    vocabulary: Vocabulary | None
    files: tuple[str, ...]
    trained_on: str | None = None
    base: BaseName | None = None

    def state_dict(self) -> dict[str, Tensor]:
        """All stored weights, on the CPU."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(self.path / WEIGHTS)
        except SafetensorError as error:
            raise ValueError(f"{self.path / WEIGHTS} is damaged ({error}); copy the artifact again") from None

    def load_into(self, module: nn.Module) -> None:
        """Load the weights into ``module``, all of it.

        Raises:
            ValueError: naming missing, surplus and misshapen tensors.
        """
        from idc.training.foreign import layout_faults, refuse_faults

        state = self.state_dict()
        faults = layout_faults(state, module.state_dict(), "the model")
        refuse_faults(faults, self.path / WEIGHTS, f"the model of {self.path / CONFIG}")
        module.load_state_dict(state)

    def settings(self, kind: type[ModelT], section: str = "job") -> ModelT:
        """A section of the config.

        Raises:
            ValueError: naming the folder and the field: another version of the program wrote it.
        """
        try:
            return kind.model_validate(self.config[section])
        except ValidationError as error:
            fault = f"artifact {self.path}: {section}.{first_error(error, self.config[section])}"
            raise ValueError(f"{fault}; another version of this program wrote it: train again") from None

    def folder(self, name: str) -> Path:
        """The path of a folder of the artifact (:data:`ADAPTER`, :data:`PROCESSOR`), of which some file is listed."""
        if not any(file.startswith(f"{name}/") for file in self.files):
            raise ValueError(f"artifact {self.path} has no {name}/; train the run again, or copy the artifact again")
        return self.path / name

    def extra(self, name: str) -> Path:
        """The path of a further file or folder of the artifact."""
        path = self.path / name
        if not path.exists():
            raise ValueError(f"artifact {self.path} has no {name}; train the run again, or copy the artifact again")
        return path


def write_artifact(
    path: Path | str,
    *,
    system: str,
    config: dict[str, Any],
    state_dict: Mapping[str, Tensor],
    vocabulary: Vocabulary | None = None,
    preprocess: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    card: str = "",
    extras: Mapping[str, Path | str] | None = None,
    purpose: str = "Describes in words what changed between two images.",
    use: str = "python jobs/caption.py --artifact <this folder> before.png after.png",
    trained_on: str | None = None,
    base: BaseName | None = None,
) -> Path:
    """Write an artifact into the folder ``path``, atomically; it replaces one that is there.

    Args:
        system: its name in ``idc.systems.SYSTEMS``.
        config, preprocess, metrics: JSON-able.
        state_dict: the stored weights (tied ones may share memory); with a base it may be empty.
        vocabulary: the words of the captions, if the system has its own.
        card: Markdown for the model card: the training data, what the model is for.
        extras: name in the artifact -> file or folder, or its URI, that is copied there, also :data:`ADAPTER` and
            :data:`PROCESSOR`.
        purpose, use: the model card's first sentence, and how to use the artifact.
        trained_on: what the model was trained on, as in "This model has only seen {trained_on}.".
        base: the model of others that it needs.
    """
    # Without weights nothing of torch is needed, whose import takes seconds.
    save_file = importlib.import_module(f"safetensors.{'torch' if state_dict else 'numpy'}").save_file
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state_dict.items()}
    save_file(tensors, partial / WEIGHTS)
    if vocabulary is not None:
        vocabulary.save(partial / VOCABULARY)
    _write_json(partial / PREPROCESS, preprocess or {})
    _write_json(partial / METRICS, metrics or {})
    for name, origin in (extras or {}).items():
        source = _local(origin)
        if source.is_dir():
            shutil.copytree(source, partial / name)
        else:
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, partial / name)
    parameters = sum(tensor.numel() for tensor in state_dict.values())
    head = f"{purpose} {parameters:,} stored weights."
    if base is not None:
        head += f" Needs the base model {base}, which is not in this folder."
    if trained_on is not None:
        card = f"Trained on {trained_on}. Do not trust it on other images.\n\n{card}"
    (partial / CARD).write_text(_card(system, config, metrics or {}, head, card, use), encoding="utf-8")
    files = sorted(p.relative_to(partial).as_posix() for p in partial.rglob("*") if p.is_file())
    version = 2 if base is not None or (extras or {}).keys() & {ADAPTER, PROCESSOR} else 1
    description = {"system": system, "format_version": version, "config": config, "files": files}
    if trained_on is not None:
        description["trained_on"] = trained_on
    if base is not None:
        description["base"] = base.to_dict()
    if fault := _adapter_fault(files, base):
        raise AssertionError(f"{path}: {fault}")
    _write_json(partial / CONFIG, description)
    take_umask(partial)
    put_in_place(partial, path)
    return path


def put_in_place(partial: Path, path: Path) -> None:
    """Give a folder that is whole its name, in place of the one that may have it. A kill leaves a whole folder or none
    of that name."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    partial.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def add_file(path: Path | str, name: str, content: str | bytes) -> None:
    """Add a file to an artifact, or replace one that was added; the file and the list of files are written atomically.

    Raises:
        ValueError: ``path`` is not an artifact, or a URI, which is only read.
    """
    if "://" in str(path):
        raise ValueError(f"{path} is not on this machine; copy the artifact here, and back when {name} is in it")
    artifact = read_artifact(path).path
    write_bytes(artifact / name, content.encode() if isinstance(content, str) else content)
    head = _read_json(artifact / CONFIG)
    if name not in head["files"]:
        write_text(artifact / CONFIG, _json({**head, "files": sorted([*head["files"], name])}))


def read_artifact(path: Path | str, system: str | None = None) -> Artifact:
    """Read an artifact's description; check that all its files exist. The base is not looked for.

    Args:
        path: its folder; a URI is copied to the local cache (:func:`idc.data.remote_copies.local_folder`).

    Raises:
        ValueError: it is not an artifact, incomplete, of an unknown format or of another system than ``system``.
    """
    path = _local(path)
    if not (path / CONFIG).is_file():
        near = next((p.parent for p in sorted(path.glob(f"*/{CONFIG}")) if (p.parent / WEIGHTS).exists()), None)
        hint = f"did you mean {near}?" if near else "a training run writes it to <run>/artifact"
        raise ValueError(f"{path} is not an artifact (it has no {CONFIG}); {hint}")
    content = _read_json(path / CONFIG)
    if not {"system", "format_version", "config", "files"} <= content.keys():
        hint = f"did you mean {path / 'artifact'}?" if (path / "artifact").is_dir() else "it is another program's"
        if "model_type" in content:
            hint = f"a model of transformers becomes one by: python jobs/wrap_vlm.py base.source={path} out=FOLDER"
        raise ValueError(f"{path / CONFIG} does not describe an artifact; {hint}")
    try:
        head = _Description.model_validate(content)
    except ValidationError as error:
        raise ValueError(
            f"{path / CONFIG}: {first_error(error)}; copy the artifact again, or train again if another version of "
            "this program wrote it"
        ) from None
    if system is not None and head.system != system:
        raise ValueError(f"{path} is an artifact of {head.system!r}, not of {system!r}; give the right folder")
    if lost := [name for name in head.files if not (path / name).is_file()]:
        raise ValueError(
            f"artifact {path} is incomplete, {', '.join(lost[:5])} is missing; copy the whole folder again"
        )
    if fault := _adapter_fault(head.files, head.base):
        raise ValueError(f"artifact {path} is damaged: {fault}; copy the artifact again")
    if has_words := (path / VOCABULARY).exists():
        _refuse_huge(path / VOCABULARY)
    return Artifact(
        path=path,
        system=head.system,
        config=head.config,
        preprocess=_read_json(path / PREPROCESS),
        metrics=_read_json(path / METRICS),
        vocabulary=Vocabulary.load(path / VOCABULARY) if has_words else None,
        trained_on=head.trained_on,
        files=head.files,
        base=head.base,
    )


def _adapter_fault(files: Collection[str], base: BaseName | None) -> str | None:
    """Why an adapter among these files cannot be used."""
    if not any(name.startswith(f"{ADAPTER}/") for name in files):
        return None
    if lost := [name for name in _ADAPTER_FILES if name not in files]:
        return f"its adapter has no {lost[0]}"
    return "it has an adapter, and names no base" if base is None else None


def check_weights(artifact: Artifact) -> None:
    """Check the weights' header against the size of the file; ValueError: it is damaged."""
    refuse_damaged(artifact.path / WEIGHTS, "copy the artifact again")


def artifact_identity(path: Path | str) -> str:
    """SHA-256, in hex, over the contents of all files of an artifact, independent of its path. A base counts by its
    fingerprint, which is in config.json."""
    artifact = read_artifact(path)
    return combined_hash({name: file_hash(artifact.path / name) for name in (CONFIG, *artifact.files)})


def captioning_files(path: Path | str) -> dict[str, str]:
    """Name -> SHA-256 of all files in an artifact's folder that its captions may depend on.

    The files of jobs/calibrate.py are left out, also of the list of files in config.json: they are added later.
    """
    path = _local(path)
    hashes = contents(path)
    if added := hashes.keys() & _ADDED_LATER:
        for name in added:
            del hashes[name]
        head = _read_json(path / CONFIG)
        before = _json({**head, "files": [name for name in head["files"] if name not in added]})
        hashes[CONFIG] = hashlib.sha256(before.encode()).hexdigest()
    return hashes


def captioning_identity(path: Path | str) -> str:
    """A hash over :func:`captioning_files`: an evaluation belongs to the artifact, calibrated or not."""
    return combined_hash(captioning_files(path))


def _card(system: str, config: dict[str, Any], metrics: dict[str, Any], head: str, card: str, use: str) -> str:
    numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
    rows = "\n".join(f"| {name} | {metric_text(name, value)} |" for name, value in numbers.items())
    table = f"\n## Measured on the validation split\n\n| metric | value |\n|---|---|\n{rows}\n" if rows else ""
    settings = json.dumps(config, indent=2, ensure_ascii=False)
    return (
        f"# {system}\n\n{head}\n"
        + (f"\n{card.strip()}\n" if card else "")
        + table
        + f"\n## Use\n\n```\n{use}\n```\n"
        + f"\n## Settings\n\n```json\n{settings}\n```\n"
    )


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _write_json(path: Path, value: Any) -> None:
    write_text(path, _json(value))


def _local(path: Path | str) -> Path:
    """The local folder; a URI is copied to the cache. A local artifact is read without pyarrow."""
    if "://" not in str(path):
        return Path(path)
    from idc.data.remote_copies import local_folder

    return local_folder(path)


def _refuse_huge(path: Path) -> None:
    if (size := path.stat().st_size) > MAX_JSON_BYTES:
        most = MAX_JSON_BYTES / 2**20
        raise ValueError(f"{path} has {size / 2**20:.0f} MiB, an artifact's JSON at most {most:.0f}; copy it again")


def _read_json(path: Path) -> dict[str, Any]:
    _refuse_huge(path)
    try:
        value = parse_json(decode_text(path.read_bytes()))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read as JSON ({error}); copy the artifact again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__} where an object belongs; copy the artifact again")
    return value
