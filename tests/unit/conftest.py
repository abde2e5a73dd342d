"""Hypothesis without deadlines (shared cores) and without a database in the tree."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unit", deadline=None, database=None, print_blob=True)
settings.load_profile("unit")
