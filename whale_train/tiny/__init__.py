"""The bundled tiny models, one a domain: how they are built, and their weights in `models/<domain>/`."""

from pathlib import Path

MODELS = Path(__file__).parent / "models"
