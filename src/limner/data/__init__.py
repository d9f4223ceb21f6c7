"""Collections of images, audio files and sentences, and the examples and batches made from them."""
