"""Rendered satellite pairs: top-down scenes at two dates in LEVIR-CC's and LEVIR-MCI's manner, without a download.

A *site* (:mod:`.site`) is drawn by :mod:`.siting` in one of five :mod:`.landscapes`. Half of the pairs have no change;
in the others houses, roads or large buildings are built, or buildings are removed or extended. Season, sun, haze,
camera, registration, and trees, cars and the land around what is built (:mod:`.grounds`) differ too; these are
distractors and no change. :mod:`.aerial` draws reflectance and heights on a :mod:`.canvas`, computes the sun's shadows
and the shading of roofs and crowns from the heights, so that shadows fall over roofs, walls and trees alike, and
develops the image; :mod:`.satellite_pairs` makes the rows, and :mod:`.levir_sentences` their captions.

Pair n of seed s (``s{s}-{n:06d}``) depends on (s, n) alone. Its columns:

- ``captions``: five, in LEVIR-CC's manner; without a change its five sentences;
- ``mask``: grey PNG: 128 where a road, 255 where a building has changed, 0 elsewhere, as LEVIR-MCI's labels;
- ``change_type``: ``none`` without a change, else null, as :mod:`idc.data.readers.captioned_sets` reads LEVIR;
- ``meta``: ``changeflag``; ``changes``, one entry for each connected changed road or building (``class``, ``kind``:
  built, removed or extended, ``noun``, ``place`` of its pixels' mean in ChangeIMTI's 3x3 grid, outer ``polygon`` and
  number of ``pixels``); ``counts`` and ``places`` by class; ``words`` (what captions may name), ``conditions`` of both
  dates, ``landscape``, ``metres_per_pixel``, ``scene`` (n).

Guarantees: every change shows ``min_visible_pixels``, is one piece, and touches no other of its class; there is a
change exactly if the flag is 1. A draw that violates one is repeated.
"""
