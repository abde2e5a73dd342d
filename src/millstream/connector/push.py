"""The old place of the pushing client. Import it from `millstream.connector`."""

from __future__ import annotations

import warnings

from millstream.connector.source.push import PushClient, Waiting

__all__ = ["PushClient", "Waiting"]

warnings.warn("millstream.connector.push has moved: use `from millstream.connector import PushClient`", DeprecationWarning, stacklevel=2)
