"""Real files, where there are any: `REAL` is the folder that `WHALE_REAL_DATA` names."""

from __future__ import annotations

import os

import pytest

REAL = os.environ.get("WHALE_REAL_DATA", "")
needs_real_data = pytest.mark.skipif(not REAL, reason="WHALE_REAL_DATA is not set: no real files to try")
