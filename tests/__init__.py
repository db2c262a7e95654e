"""The tests; see README.md in this folder."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
