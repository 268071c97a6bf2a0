from __future__ import annotations

import os
import threading

import pytest

from carousel.errors import BadInputError
from carousel.runs.folder import RunFolder
from carousel.runs.study import pool as pools
from carousel.runs.study.pool import LocalPool, RayPool, usable_processors
from carousel.runs.study.worker import Job, Verdict


def jobs_of(tmp_path, count):
    settings = {"strategy": "er", "limit": 20, "model": "mlp", "epochs": 1, "device": "cpu"}
    return [
        Job(
            {**settings, "seed": seed},
            str(tmp_path / f"run{seed}"),
            str(tmp_path / f"{seed}.txt"),
            os.getcwd(),
        )
        for seed in range(count)
    ]


def all_verdicts(pool, jobs):
    waiting = {pool.submit(job) for job in jobs}
    verdicts = []
    while waiting:
        found = pool.ready(waiting, 1.0)
        waiting -= found.keys()
        verdicts += found.values()
    return verdicts


def test_runs_under_way_at_a_time_are_limited(monkeypatch, tmp_path):
    under_way, most = [], []

    def run(job, asked_to_stop):
        under_way.append(job)
        most.append(len(under_way))
        threading.Event().wait(0.05)
        under_way.remove(job)
        return Verdict("done")

    monkeypatch.setattr(pools, "run_job", run)
    pool = LocalPool(2)
    assert all_verdicts(pool, jobs_of(tmp_path, 5)) == [Verdict("done")] * 5
    assert max(most) == 2
    pool.close()


def test_stopping_asks_runs_and_waits_for_them(monkeypatch, tmp_path):
    ended = []

    def run(job, asked_to_stop):
        while not asked_to_stop():
            threading.Event().wait(0.01)
        ended.append(job)
        return Verdict("stopped")

    monkeypatch.setattr(pools, "run_job", run)
    pool = LocalPool(1)
    for job in jobs_of(tmp_path, 2):
        pool.submit(job)
    pool.stop()
    assert len(ended) <= 1


def test_a_cluster_that_is_not_there_is_refused_at_once():
    pytest.importorskip("ray")
    with pytest.raises(BadInputError, match=r"no Ray cluster at 127.0.0.1:9 .*ray start"):
        RayPool("127.0.0.1:9")


def test_ray_that_is_not_installed_is_refused_with_the_command(monkeypatch):
    monkeypatch.setattr(pools, "find_spec", lambda name: None)
    with pytest.raises(BadInputError, match=r'pip install "carousel-memory\[ray\]"'):
        RayPool("local")


def test_processors_are_those_of_the_process():
    assert 1 <= usable_processors() <= os.cpu_count()


@pytest.mark.timeout(300)
def test_a_local_ray_cluster_of_two_workers_makes_the_same_runs(tmp_path):
    pytest.importorskip("ray")
    jobs = jobs_of(tmp_path, 2)
    pool = RayPool("local", 2)
    try:
        assert pool.slots == 2
        assert all_verdicts(pool, jobs) == [Verdict("done")] * 2
        bad = Job(
            {"strategy": "er", "lr": -1.0},
            str(tmp_path / "bad"),
            str(tmp_path / "bad.txt"),
            os.getcwd(),
        )
        assert all_verdicts(pool, [bad])[0].error.startswith("lr is -1.0")
    finally:
        pool.close()
    assert all(RunFolder(tmp_path / f"run{seed}").finished for seed in range(2))
