"""What an audit finds."""

from __future__ import annotations

from typing import Literal

import msgspec

#: The layers of the audit, in order of cost. "contract" and "isolation" are what playing an episode shows besides:
#: that it fails, and that it goes otherwise when it is played again in other company.
Layer = Literal["static", "contract", "provenance", "null model", "canary", "isolation"]


class Finding(msgspec.Struct, frozen=True):
    """Why a harness is no honest one: the layer that saw it, what it saw, and where (a line of source, a task)."""

    layer: Layer
    reason: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.layer}: {self.reason}" + (f" ({self.where})" if self.where else "")
