"""Opening image, video and audio files, and the table of modalities."""
