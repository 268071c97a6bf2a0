from __future__ import annotations

import json

from carousel.runs.folder import RunFolder
from carousel.runs.study.watch import Follower, Standing


def test_a_run_is_followed_line_by_line(tmp_path):
    folder = RunFolder(tmp_path)
    follower = Follower(folder)
    assert follower.look() == Standing()

    def say(**line):
        with folder.metrics_file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    say(event="start", iteration=0)
    say(event="progress", experience=0)
    assert follower.look() == Standing(0, 0, None)
    say(event="experience", experience=0, accuracy_seen=0.5, accuracies=[0.5, 0.0, 0.0])
    assert follower.look() == Standing(1, 3, 0.5)
    assert follower.look() == Standing(1, 3, 0.5)
    with folder.metrics_file.open("a") as file:
        file.write('{"event": "progress", "exper')
    assert follower.look() == Standing(1, 3, 0.5)
    with folder.metrics_file.open("a") as file:
        file.write('ience": 2}\n{"event": "prog\n')
    assert follower.look() == Standing(2, 3, 0.5)
