"""Opening image and audio files, and the table of modalities."""
