"""The image tokenizer."""
