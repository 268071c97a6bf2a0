"""verify and inspect on a folder of optimizer states."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import pytest
import torch

from carousel.offload import TieredAdamW


@pytest.fixture
def states(tmp_path):
    """Three steps of a parameter in ten chunks, of which most are streamed."""
    folder = tmp_path / "states"
    weight = torch.nn.Parameter(torch.randn(40_960))
    with TieredAdamW(
        [weight], storage=folder, ram_budget="300KiB", chunk_numel=4096, durability="process"
    ) as optimizer:
        for _ in range(3):
            weight.grad = torch.randn(40_960)
            optimizer.step()
    return folder


def states_file(folder):
    (file,) = folder.glob("states-*.bin")
    return file


def tear(folder, chunk, offset):
    """Flip bytes of both places of a chunk."""
    with states_file(folder).open("r+b") as file:
        for place in range(2):
            at = 4096 + (2 * chunk + place) * (3 * 16384 + 4096) + offset
            file.seek(at)
            content = file.read(64)
            file.seek(at)
            file.write(bytes(byte ^ 0x5A for byte in content))


def test_intact_states_are_said_to_be(carousel, states):
    before = states_file(states).read_bytes()
    result = carousel("verify", states)
    assert result.exit_code == 0
    assert "10 chunks of optimizer states checked: all intact" in result.output
    assert states_file(states).read_bytes() == before


@pytest.mark.parametrize("offset", [0, 16384 + 100, 3 * 16384])
def test_a_torn_chunk_is_named(carousel, states, offset):
    tear(states, 7, offset)
    result = carousel("verify", states, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert found["ok"] is False
    assert found["checked"] == 10
    assert list(found["corrupt"]) == ["7"]
    assert "torn" in found["corrupt"]["7"]
    shown = carousel("verify", states, width=200)
    assert shown.exit_code == 1
    assert "chunk 7: " in shown.output


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.unlink(), "missing"),
        (lambda file: file.write_bytes(file.read_bytes()[:5000]), "bytes of"),
        (lambda file: file.write_bytes(b"x" * file.stat().st_size), "no file of optimizer states"),
    ],
    ids=["missing", "short", "foreign"],
)
def test_a_damaged_file_is_a_problem(carousel, states, damage, words):
    damage(states_file(states))
    result = carousel("verify", states, width=300)
    assert result.exit_code == 1
    assert words in result.output


def test_verifying_beside_a_run_that_goes_on(carousel, states):
    weight = torch.nn.Parameter(torch.zeros(40_960))
    with TieredAdamW.resume([weight], states, durability="process") as optimizer:
        for _ in range(3):
            weight.grad = torch.randn(40_960)
            optimizer.step()
            assert carousel("verify", states).exit_code == 0


TRAIN = """
import sys, torch
from carousel.offload import TieredAdamW
weight = torch.nn.Parameter(torch.zeros(40_960))
with TieredAdamW.resume([weight], sys.argv[1], durability="process") as optimizer:
    while True:
        weight.grad = torch.randn(40_960)
        optimizer.step()
        print(optimizer.stats().steps, flush=True)
"""


def test_verifying_beside_another_process_that_goes_on(carousel, states):
    with subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(states)], stdout=subprocess.PIPE, text=True
    ) as other:
        try:
            other.stdout.readline()
            drain = threading.Thread(target=other.stdout.read)
            drain.start()
            steps = []
            for _ in range(5):
                assert carousel("verify", states).exit_code == 0
                steps.append(json.loads(carousel("inspect", states, "--json").stdout)["step"])
            assert other.poll() is None
        finally:
            other.kill()
            drain.join()
    assert steps == sorted(set(steps))


def test_inspect_tells_what_was_committed(carousel, states):
    result = carousel("inspect", states, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (found["kind"], found["step"], found["parameters"]) == ("states", 3, 1)
    assert (found["elements"], found["chunks"], found["written_chunks"]) == (40_960, 10, 10)
    assert found["state_bytes"] == 10 * (3 * 16384 + 4096)
    assert found["file_bytes"] == 4096 + 2 * found["state_bytes"]
    assert found["durability"] == "process"
    shown = carousel("inspect", states, width=120)
    assert shown.exit_code == 0
    assert "Optimizer states" in shown.output
    assert "40,960 elements" in shown.output


def test_a_storage_of_samples_is_still_one(carousel, store):
    assert "60 samples checked: all intact" in carousel("verify", store).output
    assert json.loads(carousel("inspect", store, "--json").stdout)["kind"] == "lmdb"
