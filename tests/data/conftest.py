import socket

import pytest


@pytest.fixture(autouse=True)
def _own_data_root(tmp_path, monkeypatch):
    """No test reads or writes the cache of the user, and none uses a network."""
    monkeypatch.setenv("CAROUSEL_DATA", str(tmp_path / "data"))

    def refuse(*args):
        raise AssertionError("a test of data used the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
