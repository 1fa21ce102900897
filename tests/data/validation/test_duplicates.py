"""Which pairs share an image: between splits, within one, and what a clean variant leaves out."""

from __future__ import annotations

from idc.data.validation.duplicates import DuplicatePair, Leak, SharedImages, digest


def shared(*pairs: str) -> SharedImages:
    """Pairs, each ``"id split before after"``."""
    out = SharedImages()
    for pair in pairs:
        pair_id, split, before, after = pair.split()
        out.add(pair_id, split, digest(before), digest(after))
    return out


def test_a_chain_over_three_splits() -> None:
    found = shared("t1 train a b", "t2 train a c", "v1 val d a", "e1 test d e", "t3 train x y")
    assert list(found.leaks()) == [
        Leak(pairs=["t1", "v1"], splits=["train", "val"]), Leak(pairs=["v1", "e1"], splits=["val", "test"])
    ]  # fmt: skip
    assert found.leaked_pairs() == {"train": {"val": 2}, "val": {"test": 1, "train": 1}, "test": {"val": 1}}
    assert found.to_leave_out(["train"]) == dict.fromkeys(("t1", "t2"), "leak: shares an image with v1 of val")
    assert set(found.to_leave_out(["train", "val"])) == {"t1", "t2", "v1"}
    assert found.to_leave_out(["test"]) == {}, "the last split gives way to none"


def test_order_of_the_pairs_does_not_matter_for_what_is_left_out() -> None:
    pairs = ("e1 test a b", "t1 train b c", "t2 train c d", "v1 val d d")
    for found in (shared(*pairs), shared(*reversed(pairs))):
        assert set(found.to_leave_out(["train"])) == {"t1", "t2"}


def test_doubles_and_distinct_pairs() -> None:
    found = shared("p1 train a b", "p2 train a b", "p3 train b a", "p4 test a b")
    assert list(found.duplicate_pairs()) == [DuplicatePair(["p1", "p2", "p4"], ["train", "train", "test"])]
    assert found.distinct_pairs() == {"train": 2, "test": 1}
    assert digest("a.png") != digest(b"a.png"), "a name is not taken for bytes"
