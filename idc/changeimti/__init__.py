"""ChangeIMTI (Xue et al. 2026, section III): questions and answers about satellite pairs, of captions, flags and masks.

The rules are those of the notebook that the authors released (``deal_data/deal_data.ipynb`` in Quan-zzx/ChangeVG),
which the numbers of the paper's table I follow from; where it is wrong, a setting has the reason and the other way.

Modules: ``change_regions`` (masks, polygons, centroids, positions), ``questions`` (prompts and answers),
``changeimti_job`` (the folder), ``changeimti_counts`` (what is in it, next to table I). The command is
``jobs/build_changeimti.py``.
"""
