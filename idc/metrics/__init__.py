"""Scoring captions: the field's metrics, the floors they must be read against, and the change types they name."""
