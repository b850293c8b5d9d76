"""Prints the table of settings for docs/configuration.md: `python -m ditto_tasks.config`."""

import sys

from ditto_tasks.config.reference import markdown_table

if __name__ == "__main__":
    sys.stdout.write(markdown_table() + "\n")
