"""Descriptions of image pairs in NAMC's template (Guo et al., section 3.1.2 and appendix D.2), by an endpoint or an
oracle.

The result is a folder of pairs with one caption per pair, "The difference between the two images is that the first
image ..., while the second image ...", which :func:`template.parse` takes apart again. Modules: ``template`` (the
sentence), ``prompts`` (the instructions), ``oracle`` (rendered pairs, with known noise), ``answers`` (the log of an
endpoint's answers), ``build`` (the job), ``statistics`` (table 14).
"""
