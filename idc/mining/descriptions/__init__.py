"""Descriptions of image pairs in NAMC's template (Guo et al., section 3.1.2 and appendix D.2), by a model or an oracle.

The result is a folder of pairs with one caption per pair, "The difference between the two images is that the first
image ..., while the second image ...", which :func:`idc.mining.descriptions.template.parse_description` takes apart.

Modules: ``template`` (the sentence), ``instructions`` (to a model), ``asking`` (rounds, refusals, the log of answers),
``oracle`` (rendered pairs, with known noise), ``describing`` (the job),
``description_statistics`` (counts, tokens, table 14). The command is ``jobs/describe_pairs.py``.
"""
