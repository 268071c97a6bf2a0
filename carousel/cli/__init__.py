"""The ``carousel`` command; every sub-command imports what it needs when it runs."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of the console script."""
    from carousel.cli.app import app

    app(prog_name="carousel")
