from __future__ import annotations

import hashlib
from pathlib import Path

from idc.training.hashing import combined_hash, content_or_id


def test_a_path_is_identified_by_its_content_and_a_name_that_is_no_path_by_itself(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"x")
    digest = hashlib.sha256(b"x").hexdigest()
    assert content_or_id("facebook/dinov2-large") == "facebook/dinov2-large"
    assert content_or_id(str(tmp_path)) == combined_hash({"folder/a": digest})
    assert content_or_id(str(tmp_path / "folder" / "a")) == combined_hash({".": digest})
    (tmp_path / "folder" / "a").write_bytes(b"y")
    assert content_or_id(str(tmp_path)) != combined_hash({"folder/a": digest})
