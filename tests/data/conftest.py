import pytest


@pytest.fixture(autouse=True)
def _own_data_root(tmp_path, monkeypatch):
    """No test reads or writes the cache of the user."""
    monkeypatch.setenv("CAROUSEL_DATA", str(tmp_path / "data"))
