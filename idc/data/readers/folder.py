"""The user's own pairs in a folder of images.

The two images of a pair have the same name in two folders, or ``before`` and ``after`` (or ``A`` and ``B``) at the end
of their names, in capitals or not, after ``_``, ``-``, a dot or a space; the words also at the beginning, or alone in a
folder of the pair. Sub-folders ``train``, ``val`` and ``test`` at the top give the split and begin the pair ids
(``train/x``)::

    before/x.png  after/x.png  mask/x.png        x_before.png  x_after.png  x_mask.png        A/x.png  B/x.png
    x/before.png  x/after.png                    x_A.png  x_B.png  x (before).JPG  x (after).JPG  before x.png
    x.txt  (or before/x.txt, captions/x.txt)     one caption per line
    captions.json                                {"x": "text" | ["text", ...] | {"captions": ..., "change_type": ...}}

An image whose format is not supported is a reject if no other image has its role. Every other file that is not used
is counted and named in ``extra["notes"]``; a ``mask`` that ``captions.json`` names lies below the folder.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePosixPath
from typing import Any

from idc.data import files
from idc.data.images import IMAGE_SUFFIXES, OTHER_IMAGE_SUFFIXES
from idc.data.pipeline import Batch
from idc.data.readers.base import SPLIT_NAMES, outside_rows, rows_to_batch, unread, unread_images
from idc.data.readers.table import record_captions, record_row, split_name
from idc.data.store import fingerprint
from idc.data.textfiles import composed, decode_text, parse_json, split_lines

_ROLES = {"before": "before", "a": "before", "after": "after", "b": "after", "mask": "mask", "label": "mask"}
_TEXT_FOLDERS = ("captions", "text")
_OURS = ("validation.json", "validation.html")
"""Files that jobs/validate.py writes next to the pairs."""
_ENDING = re.compile(r"(?P<key>.+?)(?: - |[ ._-])\(?(?P<role>before|after|mask|label|a|b)\)?", re.IGNORECASE)
_BEGINNING = re.compile(r"\(?(?P<role>before|after)\)?(?: - |[ ._-])(?P<key>.+)", re.IGNORECASE)


class FolderReader:
    """Pairs in a folder; see the module's text.

    Raises:
        ValueError: the folder has no before or after image, or ``captions.json`` is not JSON.
    """

    def __init__(self, folder: files.Location, *, chunk_size: int = 64, access: files.Access = files.BELOW) -> None:
        self.reader = files.Reader(folder, access)
        self._chunk_size = chunk_size
        tree = folder.scan(access.links)
        listed = _Listed(tree, folder)
        self._rejects = outside_rows(tree, folder)
        notes = [*(f"{row['pair_id']} is {row['error']}" for row in self._rejects), *listed.notes()]
        hashed = hashlib.sha256()
        for name, size in listed.used:
            hashed.update(f"{name} {size}\n".encode("utf-8", "surrogateescape"))
        self._caption_files = listed.caption_files
        for name in self._caption_files:
            hashed.update(self._caption_bytes(name))
        if not listed.images:
            raise ValueError(
                f"{folder} has no pairs: put the images into before/ and after/ under the same names, "
                f"or name them x_before.png and x_after.png{''.join('; ' + note for note in notes)}"
            )
        self._pairs = [(key, roles, listed.texts.pop(key, [])) for key, roles in sorted(listed.images.items())]
        self._rejects += [
            {"pair_id": name, "error": "unplaced image: it is neither a before nor an after image"}
            for name in listed.unplaced
        ]
        self._entries: dict[str, list[tuple[str, Any]]] | None = None
        unused = sorted(name for names in listed.texts.values() for name in names)
        notes += unread(unused, "captions of no pair")
        strangers = sorted(set(self._captions()) - {n for key, roles, _ in self._pairs for n in _names(key, roles)})
        if strangers:
            notes.append(f"captions.json has {len(strangers)} names that match no pair, first {strangers[0]!r}")
        self.extra: dict[str, Any] = {"captions_without_pair": len(strangers) + len(unused), "notes": notes}
        self.fingerprint = fingerprint("folder", chunk_size, hashed.hexdigest())

    @property
    def num_rows(self) -> int:
        """The pairs, and the rejected images that belong to none."""
        return len(self._pairs) + len(self._rejects)

    @property
    def num_chunks(self) -> int:
        return -(-self.num_rows // self._chunk_size)

    def read(self, chunk_id: int) -> Batch:
        first, count = chunk_id * self._chunk_size, len(self._pairs)
        rows = [self._row(i) for i in range(first, min(first + self._chunk_size, count))]
        rows += self._rejects[max(0, first - count) : max(0, first + self._chunk_size - count)]
        return rows_to_batch(rows)

    def _row(self, i: int) -> dict[str, Any]:
        key, roles, texts = self._pairs[i]
        entries = [entry for name in _names(key, roles) for entry in self._captions().get(name, ())]
        value = entries[0][1] if entries else {}
        record = dict(value) if isinstance(value, dict) else {"captions": value}
        record = {**record, "pair_id": key, **{role: names[0] for role, names in roles.items()}}
        split = SPLIT_NAMES.get(key.partition("/")[0].lower()) if "/" in key else None
        named, record["split"] = record.get("split"), record.get("split") or split
        caption_sources = [file for file, _ in entries if len(entries) > 1 or record_captions(record)] + texts
        error = None
        if texts and len(caption_sources) == 1:
            try:
                lines = split_lines(decode_text(self.reader.read(texts[0]), "surrogateescape"))
                record["captions"] = [line for line in lines if line.strip()]
            except OSError as exc:
                error = f"unreadable file: captions, {texts[0]}, {exc}"
            except files.OutsideSource as exc:
                error = f"outside the source: captions, {texts[0]}, {exc}"
        row = record_row([record], self.reader.folder.name + "/" + key)
        double = [names for names in roles.values() if len(names) > 1]
        absent = [role for role in ("before", "after") if role not in roles]
        if double:
            row["error"] = f"duplicate pair id: {', '.join(double[0])}"
        elif absent:
            there = ", ".join(names[0] for names in roles.values())
            row["error"] = f"missing partner: there is no {' and no '.join(absent)} image for {there}"
        elif error is not None:
            row["error"] = error
        elif len(caption_sources) > 1:
            row["error"] = f"bad row: captions in {' and in '.join(caption_sources)}; keep one of them"
        elif split is not None and named and split_name(named) != split:
            row["error"] = f"bad split: {key} is in the folder of {split}, but captions.json gives {named!r}"
        return row

    def _captions(self) -> dict[str, list[tuple[str, Any]]]:
        """``captions.json`` of the folder and of its split folders: name -> its entries with their positions. Each
        worker reads them when it first needs them."""
        if self._entries is None:
            self._entries = {}
            for file in self._caption_files:
                folder, data = file.rpartition("/")[0], self._caption_bytes(file)
                try:
                    content = parse_json(decode_text(data, "surrogateescape"), keep_surrogates=True)
                except ValueError as exc:
                    raise ValueError(f"{file}: {exc}") from exc
                if not isinstance(content, dict):
                    raise ValueError(f"{file} holds a {type(content).__name__}, not an object of names and captions")
                for key, value in content.items():
                    self._entries.setdefault(composed(files.join(folder, key)), []).append((f"{file}:{key}", value))
        return self._entries

    def _caption_bytes(self, name: str) -> bytes:
        try:
            return self.reader.read(name)
        except (OSError, files.OutsideSource) as exc:
            raise ValueError(f"{name} cannot be read: {exc}") from exc

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_entries": None}


class _Listed:
    """The files of a folder, sorted by their purpose.

    Attributes:
        images: pair -> role -> names of its images.
        unplaced: images that are neither a before nor an after image.
        texts: pair -> text files with its captions.
        used: names and sizes of all of these.
    """

    def __init__(self, tree: files.Tree, root: files.Location) -> None:
        self.images: dict[str, dict[str, list[str]]] = {}
        self.unplaced: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.caption_files: list[str] = []
        self.used: list[tuple[str, int]] = []
        self._hidden: list[str] = []
        self._other_images: list[str] = []
        self._strangers: list[str] = []
        other_images: list[tuple[str, int]] = []
        for path, size in sorted([*tree.files, *((path, 0) for path in tree.special)]):
            name = root.relative(path)
            relative = PurePosixPath(name)
            suffix = relative.suffix.lower()
            if any(part.startswith((".", "_")) for part in relative.parts[:-1]) or relative.name.startswith("."):
                self._hidden.append(name)
            elif relative.name == "captions.json":
                self.caption_files.append(name)
                self.used.append((name, size))
            elif suffix in IMAGE_SUFFIXES:
                self._add_image(name, size)
            elif suffix in OTHER_IMAGE_SUFFIXES:
                other_images.append((name, size))
            elif suffix == ".txt":
                self.texts.setdefault(role_and_key(relative)[1], []).append(name)
                self.used.append((name, size))
            elif name not in _OURS:
                self._strangers.append(name)
        for name, size in other_images:
            role, key = role_and_key(PurePosixPath(name))
            if role is None or role in self.images.get(key, {}):
                self._other_images.append(name)
            else:  # the loading stage rejects it, and with it the pair
                self._add_image(name, size)

    def _add_image(self, name: str, size: int) -> None:
        role, key = role_and_key(PurePosixPath(name))
        if role is None:
            self.unplaced.append(name)
        else:
            self.images.setdefault(key, {}).setdefault(role, []).append(name)
        self.used.append((name, size))

    def notes(self) -> list[str]:
        """Notes about the files that are not read, except captions."""
        return [
            *unread_images(self._other_images),
            *unread(self._strangers, "neither images nor captions"),
            *unread(
                self._hidden, "hidden (a name that begins with a dot, or in a folder whose name begins with . or _)"
            ),
        ]


def role_and_key(path: PurePosixPath) -> tuple[str | None, str]:
    """The role of a file and the key of its pair: ``train/before/x.png`` is before of ``train/x``. Keys are composed
    (NFC), since the two images may be spelled differently."""
    path = PurePosixPath(composed(str(path)))
    folders = list(path.parts[:-1])
    for i, folder in enumerate(folders):
        role = _ROLES.get(folder.lower())
        if role is not None or folder.lower() in _TEXT_FOLDERS:
            return role, "/".join([*folders[:i], *folders[i + 1 :], path.stem])
    if match := _ENDING.fullmatch(path.stem) or _BEGINNING.fullmatch(path.stem):
        return _ROLES[match["role"].lower()], "/".join([*folders, match["key"]])
    if folders and path.stem.lower() in ("before", "after", "mask"):
        return _ROLES[path.stem.lower()], "/".join(folders)
    return None, "/".join([*folders, path.stem])


def _names(key: str, roles: dict[str, list[str]]) -> list[str]:
    """The names that ``captions.json`` may use for a pair: its id, or the file name of its before or after image."""
    folder = key.rpartition("/")[0]
    images = [name for role in ("before", "after") for name in roles.get(role, [])]
    return list(
        dict.fromkeys(
            [key, *map(composed, images), *(composed(files.join(folder, name.rpartition("/")[2])) for name in images)]
        )
    )
