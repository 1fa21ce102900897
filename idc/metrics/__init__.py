"""Scoring captions: the field's metrics, the baselines they must be read against, and the change types they name."""
