"""Run directories: recipes, trained models, logs and evaluation records."""
