"""What every service with a model behind it has in common: keys from the environment, and which refusals are whose."""

from __future__ import annotations

import os
from typing import Any

from whale_envs.errors import UserError

#: HTTP statuses that asking again can mend, besides 5xx.
TRANSIENT = (408, 409, 429)
#: HTTP statuses that the user must mend, with what is wrong; {key} and {url} name environment variables.
USERS = {
    401: "it does not accept the key in {key}: set a valid one",
    402: "it wants to be paid: see the account's billing",
    403: "the key in {key} may not do that: set another",
    404: "it does not know that address or model: see {url}",
}


def read_key(name: str, otherwise: str) -> str:
    """The key in an environment variable; `UserError` if it is missing or malformed, with what to do `otherwise`."""
    key = os.environ.get(name, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        wrong = "holds characters that no key has" if key else "is not set"
        raise UserError(f"{name} {wrong}: set it to a key, or {otherwise}")
    return key


def retry_after(response: Any) -> float:
    """The seconds that a service asks to wait, 0 for none: the header may be a date too."""
    asked = response.headers.get("retry-after", "")
    return float(asked) if asked.isdecimal() else 0.0
