"""Tiers that are a medium and little more: RAM, and one file a sample."""
