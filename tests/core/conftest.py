"""Properties are judged by what they say, and not by how long a busy machine takes to say it."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("leasehold", settings.default, deadline=None)
settings.load_profile("leasehold")
