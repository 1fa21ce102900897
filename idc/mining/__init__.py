"""Similar image pairs from an unsorted image collection (NAMC, appendix D.1)."""
