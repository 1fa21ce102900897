"""Regions: where two images differ, how much and in which colours, without a trained model."""
