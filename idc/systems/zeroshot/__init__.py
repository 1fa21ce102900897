"""Zero-shot: a vision-language model of others as a captioner, without training."""
