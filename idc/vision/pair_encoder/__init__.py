"""The encoder of image pairs and captions into one space."""
