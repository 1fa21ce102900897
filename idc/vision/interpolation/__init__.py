"""Frames between two images: optical flow, VFIformer, and what they are trained on and compared by."""
