"""Models that the command line and the benchmarks name; each takes (N, C, H, W) float images."""

from __future__ import annotations

from carousel.models.registry import MODELS, ModelFactory, list_models, make_model

__all__ = ["MODELS", "ModelFactory", "list_models", "make_model"]
