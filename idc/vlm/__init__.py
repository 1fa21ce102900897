"""The vision-language stack: base models of three families and more, chat, images, tuning, generation, artifacts."""
