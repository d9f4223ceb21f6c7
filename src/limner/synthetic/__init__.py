"""Generated collections: drawn scenes and synthesised sounds."""
