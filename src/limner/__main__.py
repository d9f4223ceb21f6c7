"""`python -m limner`: the command line."""

from limner.apps.cli import main

main()
