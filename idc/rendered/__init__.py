"""Rendered pairs: CLEVR-Change-style images and captions, made by Mitsuba 3, the data set that needs no download.

A *scene* has some objects (cube, sphere, cylinder; eight colours; rubber or metal; large or small) on a grey ground
under three lamps, and three images, by CLEVR-Change's names:

- ``default``: the before image of both pairs;
- ``semantic``: one object changed: ``color``, ``material``, ``add``, ``drop`` or ``move``, in turn by the scene's
  number; camera and lamps are jittered too;
- ``nonsemantic``: nothing changed, camera and lamps jittered (the distractors).

Scene n of seed s gives the pairs ``r{s}-{n:06d}-s`` (default, semantic) and ``r{s}-{n:06d}-n`` (default,
nonsemantic; change type ``none``), always in the same split. With ``ordered_pairs``, a scene of the train split gives
six more: back (``-sd``, ``-nd``), between the after images (``-sn``, ``-ns``), and an image with itself (``-dd``,
``-ss``). Every random draw of a scene comes from a generator seeded by (s, n), of a further pair by (s, n, its number),
so pixels, captions and masks do not depend on the number or the order of workers.

Guarantees: no two objects are nearer than ``min_gap``; every object shows ``min_visible_pixels`` in every image it is
in; the changed object has an unambiguous description in every pair of the scene. A draw that violates one is repeated.

With ``several``, scene n gives instead one pair ``r{s}-{n:06d}`` with none to several changes of ten kinds
(:mod:`idc.rendered.differences`); :mod:`idc.rendered.draw` has its guarantees. Its ``change_type`` is the
kind if there is one difference, ``none`` if there is none, null if there are several; ``meta`` has in addition
``differences``, ``types`` (OmniDiff's names), ``changeflag`` and ``distractors`` (how far camera and lamps moved, the
lamps' power after over before).

With ``satellite``, scene n gives one satellite pair ``s{s}-{n:06d}`` instead: :mod:`idc.rendered.satellite`.

The columns of a pair that need explanation:

- ``captions``: several true references from varied templates; descriptions by attributes, and by a relation ("... that
  is left of the red cube") if attributes are ambiguous and in ``relation_share`` of the other cases;
- ``mask``: grey PNG of the images' size; 85 where the changed object is visible in the before image, 170 in the after
  image, 255 in both (each in its own image's pixels); all zero for a pair without a change;
- ``meta``: ``before`` and ``after`` (the scene graphs), ``views`` (of both images: ``origin`` and ``target`` of the
  camera, and ``zoom`` of its lens if that varies; :meth:`scene.View.of_record` reads them), ``scene`` (n) and
  ``viewpoint_iou``: the mean over unchanged objects of the intersection over union of the object's visible pixels in
  the two images; 1 if the camera did not move. With ``jitter: moderate`` it has CLEVR-Change's mean (0.51).

Modules: ``config`` (settings), ``scene`` (objects, views, pairs), ``differences`` (the list of what changes), ``views``
(cameras and lamps), ``look`` (the rest of the appearance), ``draw`` (random scenes; numpy only), ``captions`` (words
and descriptions), ``sentences`` (references), ``render`` (pixels, the data stage, the build). The command is
``jobs/render.py``, its presets ``jobs/configs/render``.
"""
