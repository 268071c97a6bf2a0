"""``python -m carousel`` is the ``carousel`` command."""

from carousel.cli import main

if __name__ == "__main__":
    main()
