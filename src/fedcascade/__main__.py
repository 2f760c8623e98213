"""``python -m fedcascade``."""

from fedcascade.cli import main

main()
