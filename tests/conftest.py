"""What all tests share."""

from hypothesis import settings

# a loaded machine is slow, which says nothing of the property
settings.register_profile("whale", deadline=None)
settings.load_profile("whale")
