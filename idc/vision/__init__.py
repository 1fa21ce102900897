"""Frozen vision parts that work before any system is trained: interpolators, the image tokenizer, similarities."""
