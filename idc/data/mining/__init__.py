"""Similar image pairs from an unsorted heap of images (NAMC, appendix D.1)."""
