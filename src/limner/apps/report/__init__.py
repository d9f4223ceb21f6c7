"""Reports, plots and contact sheets."""
