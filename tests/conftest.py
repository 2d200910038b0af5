"""What all tests share."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# a loaded machine is slow, which says nothing of the property
settings.register_profile("whale", deadline=None)
settings.load_profile("whale")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Indexes of the tests' corpora stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHALE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill leaves what was written to the kernel; waiting for the disk, which a power cut needs, only costs time."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
