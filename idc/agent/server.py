"""A server of the Model Context Protocol with the tools ``compare_images`` and ``compare_folders``, by the official SDK
(the extra ``mcp``).

An answer is a sentence for the model that reads it, and the same as data. Nothing is written, and nothing read but
images, documents and masks below the folders that were given at the start.
"""

from __future__ import annotations

import base64
import filecmp
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations
from pydantic import BaseModel, Field

from idc.agent.config import AgentJob
from idc.api import Caption, LoadedCaptioner
from idc.captioning.boxes import boxes_of, draw_boxes
from idc.captioning.claims import Claim
from idc.captioning.contract import Verdict
from idc.captioning.counts import counts_of
from idc.captioning.folder_pairs import FilePair, State, file_pairs
from idc.captioning.loading import CaptionerLoader
from idc.data.images import encode_png
from idc.report.folder_report import states_in_words
from idc.report.page import reduced
from idc.util.redaction import for_terminal, redacted

_SIDE = 1024
"""Longer side of a picture, in pixels."""
_MOST_PAIRS = 1000
"""Files of two folders."""
_INSTRUCTIONS = (
    "Compares two images, PDF documents or folders of images, and says what changed: objects by name, words, layout, "
    "colours. Boxes of claims are [left, top, right, bottom] in pixels; 'verdict' is changed, unchanged or unsure."
)
PartOfImage = tuple[float, float, float, float] | str
FilePath = Annotated[str, Field(description="Path of an image or PDF file, absolute or below a folder of the server")]
FolderPath = Annotated[str, Field(description="Path of a folder of images, absolute or below a folder of the server")]
Parts = Annotated[
    list[PartOfImage],
    Field(
        description="Boxes [left, top, right, bottom] of the image after, in pixels, or as shares from 0 to 1; or "
        "paths of mask images, which are white there"
    ),
]
CountsNames = Annotated[
    list[str],
    Field(
        description="What counts as a change, all by default: presets (scene, traffic, content, layout, design, "
        "document), kinds (objects, people, vehicles, words, numbers, timestamps, style, colour, images, light, "
        "camera), classes of objects (car), the smallest size (0.5% or 20px)"
    ),
]
Criteria = Annotated[
    str | None, Field(description="What counts in own words, for captioners that are vision-language models")
]


class ImageComparison(BaseModel):
    """What changed between two images or documents."""

    sentence: str
    verdict: Verdict
    reason: str | None
    """Why it is "unsure"."""
    warning: str | None
    captioner: str | None
    claims: list[Claim] | None
    """The same as data; null where the captioner has sentences alone."""


class FileComparison(BaseModel):
    """What changed in a file of two folders."""

    name: str
    state: State
    sentence: str
    claims: list[Claim] | None


class FolderComparison(BaseModel):
    """What changed between the images of two folders, paired by name; files that did not are counted alone."""

    summary: str
    files: list[FileComparison]


class AgentTools:
    """The tools. A call waits for the one before: a captioner describes one pair at a time.

    Raises:
        ValueError: the captioner cannot be loaded.
    """

    def __init__(self, job: AgentJob) -> None:
        self._roots = [Path(folder).resolve() for folder in job.root]
        self._captioner = LoadedCaptioner(CaptionerLoader(job.artifact, job)(), job.artifact, job.objects)
        self._turn = Lock()

    def compare_images(
        self,
        before: FilePath,
        after: FilePath,
        ignore: Parts = [],  # noqa: B006
        only: Parts = [],  # noqa: B006
        counts: CountsNames = [],  # noqa: B006
        criteria: Criteria = None,
        picture: Annotated[bool, Field(description="Also return both images with the boxes of what changed")] = False,
    ) -> Annotated[CallToolResult, ImageComparison]:
        """Say what changed between two images, or two PDF documents page by page: a sentence, the verdict, and claims
        with boxes."""
        with _refusals():
            files = [self._path(name) for name in (before, after)]
            caption = self._described(files, [self._parts(parts) for parts in (ignore, only)], counts, criteria)
        result = ImageComparison(
            sentence=caption.caption, verdict=caption.verdict, reason=caption.verdict_text, warning=caption.warning,
            captioner=caption.captioner, claims=_listed(caption),
        )  # fmt: skip
        lines = [result.sentence, f"Verdict: {result.verdict}{f' ({result.reason})' if result.reason else ''}."]
        return _answer([*lines, result.warning or ""], result, _pictures(caption) if picture else [])

    def compare_folders(
        self, before: FolderPath, after: FolderPath, counts: CountsNames = [], criteria: Criteria = None  # noqa: B006
    ) -> Annotated[CallToolResult, FolderComparison]:  # fmt: skip
        """Say what changed between the images of two folders, such as screenshots of two versions: images of the same
        relative name are compared; new and missing ones are named."""
        with _refusals():
            folders = [str(self._path(name, folder=True)) for name in (before, after)]
            pairs = file_pairs(folders[0], folders[1])
            if len(pairs) > _MOST_PAIRS:
                raise ValueError(
                    f"{len(pairs):,} images; at most {_MOST_PAIRS:,} are compared, so name folders in them"
                )
            pairs = [self._captioned(pair, counts, criteria) for pair in pairs]
        files = [
            FileComparison(name=pair.name, state=pair.state, sentence=pair.text, claims=(pair.row or {}).get("claims"))
            for pair in pairs
            if pair.state != "unchanged"
        ]
        result = FolderComparison(summary=states_in_words(pairs) or "no images", files=files)
        return _answer([result.summary, *(f"{file.name}: {file.sentence}" for file in files)], result)

    def _captioned(self, pair: FilePair, counts: Sequence[str], criteria: str | None) -> FilePair:
        """The pair with what a table's row has of it, if both files are there and differ."""
        if pair.before is None or pair.after is None or filecmp.cmp(pair.before, pair.after, shallow=False):
            return pair
        row: dict[str, Any] = {"verdict": None, "caption": None, "error": None}
        try:
            caption = self._described([pair.before, pair.after], [[], []], counts, criteria)
            row |= {"verdict": caption.verdict, "caption": caption.caption, "claims": _listed(caption)}
        except (ValueError, OSError) as error:
            row["error"] = str(error)
        return FilePair(pair.name, pair.before, pair.after, row)

    def _described(
        self, files: Sequence[Path], parts: Sequence[list[PartOfImage]], counts: Sequence[str], criteria: str | None
    ) -> Caption:
        counts_of(counts, self._captioner.objects.names, files=False)  # which names no file outside the folders
        with self._turn:
            return self._captioner(files[0], files[1], ignore=parts[0], only=parts[1], counts=counts, criteria=criteria)

    def _parts(self, parts: Sequence[PartOfImage]) -> list[PartOfImage]:
        return [str(self._path(part)) if isinstance(part, str) else part for part in parts]

    def _path(self, name: str, folder: bool = False) -> Path:
        """The file or folder of a name, with its links resolved. ValueError: it is not below the folders, whether it is
        there or not, or it is not there."""
        paths = [Path(root, name).resolve() for root in self._roots]
        inside = [path for path in paths if any(path.is_relative_to(root) for root in self._roots)]
        if not inside:
            listed = ", ".join(map(str, self._roots))
            raise ValueError(f"{name}: not below the folders of this server ({listed})")
        for path in inside:
            if path.is_dir() if folder else path.is_file():
                return path
        raise ValueError(f"{name}: no such {'folder' if folder else 'file'}")


def agent_server(job: AgentJob) -> MCPServer[Any]:
    """The server with its tools. ValueError: the captioner cannot be loaded."""
    tools = AgentTools(job)
    server: MCPServer[Any] = MCPServer("idc", instructions=_INSTRUCTIONS, log_level="WARNING")
    for tool in (tools.compare_images, tools.compare_folders):
        server.add_tool(tool, annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
    return server


@contextmanager
def _refusals() -> Iterator[None]:
    """Errors that the caller can mend are errors of the tool."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ToolError(for_terminal(redacted(str(error)))) from None


def _answer(lines: Sequence[str], result: BaseModel, pictures: Sequence[ImageContent] = ()) -> CallToolResult:
    text = TextContent(type="text", text="\n".join(filter(None, lines)))
    return CallToolResult(content=[text, *pictures], structured_content=result.model_dump(mode="json"))


def _listed(caption: Caption) -> list[Claim] | None:
    return None if caption.claims is None else list(caption.claims)


def _pictures(caption: Caption) -> list[ImageContent]:
    """The image before and the one after with their boxes, as PNG."""
    pictures = []
    for image, boxes in zip((caption.before, caption.after), boxes_of(caption.to_dict()), strict=True):
        drawn = encode_png(draw_boxes(reduced(image, _SIDE), boxes, image.shape, font_size=16))
        data = base64.b64encode(drawn).decode("ascii")
        pictures.append(ImageContent(type="image", data=data, mime_type="image/png"))
    return pictures
