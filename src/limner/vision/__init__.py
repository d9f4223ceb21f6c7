"""Pictures: opening them safely, pre-trained networks that look at them, and the tables of what they saw."""
