"""ProCap's procedures: frames between the images of a pair, their tokens and their key frames."""
