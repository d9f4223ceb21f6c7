"""`python -m limner`: the command line."""

from limner.cli import main

main()
