"""An unfinished text shows just what no continuation can take back."""

from __future__ import annotations

from itertools import product

import pytest

from idc.endpoint.stop_texts import before, settled


@pytest.mark.parametrize("stops", [[], ["b"], ["aab"], ["ab", "ba"], ["bcd", "abcde"], ["aba", "abab"], ["aa", "caab"]])
def test_settled_is_the_shortest_that_a_continuation_leaves(stops: list[str]) -> None:
    ends = ["".join(letters) for size in range(5) for letters in product("abcde", repeat=size)]
    for text in ["".join(letters) for size in range(5) for letters in product("abc", repeat=size)]:
        assert settled(text, stops) == min((before(text + end, stops) for end in ends), key=len)
