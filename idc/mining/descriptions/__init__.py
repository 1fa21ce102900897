"""Descriptions of image pairs in NAMC's template (Guo et al., section 3.1.2 and appendix D.2), by a model or an oracle:
a folder of pairs with one caption each, "The difference between the two images is that the first image ..., while the
second image ...", which :func:`idc.mining.descriptions.template.parse_description` takes apart."""
