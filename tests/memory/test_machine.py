"""Reading the limits of control groups, from files that the test writes."""

from __future__ import annotations

import psutil
import pytest

from carousel.memory.machine import read_memory

MIB = 2**20


def write(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(content))


def test_without_control_groups_it_is_the_machine(tmp_path):
    memory = read_memory(tmp_path)
    assert memory.total == psutil.virtual_memory().total
    assert 0 < memory.available <= memory.total


@pytest.mark.parametrize("place", ["box/inner", "box"])
def test_version_2_the_tightest_group_counts_and_file_pages_are_free(tmp_path, place):
    group = f"sys/fs/cgroup/{place}"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/box/inner\n",
            "sys/fs/cgroup/box/inner/memory.max": "max\n",
            "sys/fs/cgroup/box/inner/memory.current": 1,
            f"{group}/memory.max": 64 * MIB,
            f"{group}/memory.current": 40 * MIB,
            f"{group}/memory.stat": f"anon 1\nactive_file {3 * MIB}\ninactive_file {7 * MIB}\n",
        },
    )
    memory = read_memory(tmp_path)
    assert (memory.total, memory.available) == (64 * MIB, 34 * MIB)


def test_version_1_and_a_path_of_the_host(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,memory:/docker/abc\n2:pids:/x\n0::/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 32 * MIB,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 30 * MIB,
            "sys/fs/cgroup/memory/memory.stat": (
                f"active_file 1\ninactive_file 1\n"
                f"total_active_file {MIB}\ntotal_inactive_file {MIB}\n"
            ),
        },
    )
    memory = read_memory(tmp_path)
    assert (memory.total, memory.available) == (32 * MIB, 4 * MIB)


def test_no_limit_is_no_limit(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/memory/memory.usage_in_bytes": 5,
        },
    )
    assert read_memory(tmp_path).total == psutil.virtual_memory().total


def test_a_group_over_its_limit_has_nothing_left(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": MIB,
            "sys/fs/cgroup/a/memory.current": 2 * MIB,
        },
    )
    assert read_memory(tmp_path).available == 0
