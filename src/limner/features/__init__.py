"""Features of images and audio files: computed once by a frozen backbone, stored in tables, read during training."""
