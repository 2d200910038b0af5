"""Policies: whatever answers asks."""
