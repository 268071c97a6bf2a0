"""What `CarMPlugin` offers methods: rules, draws, held-out samples, epochs on the memory."""

import numpy as np
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin

from carousel.errors import BadInputError, SchemaMismatchError
from carousel.storage import MemoryTier
from carousel.strategies import CarMPlugin
from carousel.strategies.rules import Rules
from carousel.strategies.update import ByBatch, ByExperience


def memory(tier=None, size=60, **options):
    return CarMPlugin(size, tier or MemoryTier(), **{"sync": True, "seed": 0, **options})


class Watch(SupervisedPlugin):
    """Notes what each step trains on."""

    def __init__(self, plugin):
        super().__init__()
        self.plugin = plugin
        self.steps = []

    def before_forward(self, strategy, **_):
        plugin = self.plugin
        self.steps.append(
            {
                "rows": len(strategy.mb_y),
                "stream": plugin.stream_rows,
                "parts": [(replay.ids.copy(), rows) for replay, rows in plugin.parts],
                "labels": strategy.mb_y.clone(),
                "exp": strategy.clock.train_exp_counter,
            }
        )


def run(plugin, stream, helpers, **options):
    watch = Watch(plugin)
    strategy = helpers.naive([plugin, watch], **options)
    for experience in stream:
        strategy.train(experience, eval_streams=[])
    return strategy, watch


def test_a_method_decides_what_the_user_left_open():
    with memory(gate="random") as plugin:
        plugin.suit(Rules(update="batch", admission="reservoir", gate="score", batch_size_mem=10))
        rules = plugin.rules
        assert (rules.gate, rules.update, rules.admission) == ("random", "batch", "reservoir")
        assert isinstance(plugin._update, ByBatch)


def test_a_method_refuses_what_it_cannot_work_with():
    with memory(update="experience") as plugin, pytest.raises(BadInputError, match="TinyER"):
        plugin.suit(Rules(update="batch", only=("update",)), method="TinyER")


@pytest.mark.parametrize("fast_loader", ["auto", False])
def test_two_draws_are_independent_and_follow_the_stream(helpers, stream, fast_loader):
    with memory(fast_loader=fast_loader) as plugin:
        plugin.suit(Rules(batch_size_mem=7, draws=2))
        _, watch = run(plugin, stream, helpers)
    replayed = [step for step in watch.steps if step["parts"]]
    assert replayed
    for step in replayed:
        (first, rows), (second, more) = step["parts"]
        start = step["stream"]
        assert (rows, more) == (slice(start, start + 7), slice(start + 7, start + 14))
        assert step["rows"] == start + 14
        assert len(set(first)) == len(set(second)) == 7
    assert any(set(s["parts"][0][0]) != set(s["parts"][1][0]) for s in replayed)


@pytest.mark.parametrize("fast_loader", ["auto", False])
def test_held_out_samples_are_neither_trained_on_nor_kept(helpers, stream, fast_loader):
    tier, held = MemoryTier(), {}

    def hold_out(source, number):
        rows = torch.arange(0, len(source), 3)
        held[number] = (plugin, source.rows(rows))
        return rows

    with memory(tier, fast_loader=fast_loader) as plugin:
        plugin.hold_out = hold_out
        counts = []
        watch = Watch(plugin)
        strategy = helpers.naive([plugin, watch])
        for experience in stream:
            strategy.train(experience, eval_streams=[])
            left = len(experience.dataset) - -(-len(experience.dataset) // 3)
            counts.append(left)
            rows = np.arange(0, len(experience.dataset), 3)
            assert not tier.contains(plugin.first_id + rows).any()
            assert not np.isin(plugin.first_id + rows, plugin.carousel.residents().ids).any()
            assert tier.contains(plugin.ids_of(torch.arange(left))).all()
        seen = [0] * len(counts)
        for step in watch.steps:
            seen[step["exp"]] += step["stream"]
        assert seen == counts
    assert len(held) == len(counts)


def test_epochs_on_the_memory_alone(helpers, stream):
    class BeforeTraining(ByExperience):
        def begin(self, source, ids):
            super().begin(source, ids)
            super().end()

        def end(self):
            pass

    with memory(size=20) as plugin:
        plugin.suit(Rules(update=BeforeTraining, replay="memory"))
        _, watch = run(plugin, stream, helpers, train_mb_size=8, train_epochs=2)
        swaps = plugin.carousel.stats().swaps
    assert {step["stream"] for step in watch.steps} == {0}
    first = [step for step in watch.steps if step["exp"] == 0]
    assert [step["rows"] for step in first] == [8, 8, 4] * 2
    assert len(set(np.concatenate([s["parts"][0][0] for s in first[:3]]))) == 20
    assert swaps.done > 0


def test_switching_to_the_memory_between_epochs(helpers, stream):
    class Switch(SupervisedPlugin):
        def before_training_epoch(self, strategy, **_):
            if strategy.clock.train_exp_epochs == 1:
                plugin.train_on_memory(strategy)

    with memory(size=20) as plugin:
        watch = Watch(plugin)
        strategy = helpers.naive([Switch(), plugin, watch], train_mb_size=16, train_epochs=2)
        for experience in stream[:2]:
            strategy.train(experience, eval_streams=[])
    second = [step for step in watch.steps if step["exp"] == 1]
    memory_steps = [step for step in second if step["stream"] == 0]
    assert [step["rows"] for step in memory_steps] == [16, 4]
    assert len(memory_steps) < len(second)


def test_further_fields_are_stored_with_the_sample(helpers, stream):
    tier, given = MemoryTier(), {}

    class Marked(SupervisedPlugin):
        def after_forward(self, strategy, **_):
            self.outputs = strategy.mb_output[: plugin.stream_rows].detach().clone()
            self.rows = plugin._rows

    def extra(first):
        logits = marked.outputs[first]
        ids = plugin.ids_of(marked.rows[first])
        given.update(dict(zip(ids.tolist(), logits, strict=True)))
        return {"logits": logits}

    with memory(tier) as plugin:
        plugin.suit(Rules(update=lambda carousel: ByBatch(carousel, extra, ("logits",))))
        marked = Marked()
        strategy = helpers.naive([plugin, marked])
        for experience in stream[:2]:
            strategy.train(experience, eval_streams=[])
        ids = np.array(sorted(given))
        fields, found = plugin.carousel.read(ids)
    assert found.all()
    assert torch.equal(fields["logits"], torch.stack([given[i] for i in ids.tolist()]))


def test_a_storage_without_the_methods_fields_is_refused(helpers, stream):
    tier = MemoryTier()
    with memory(tier) as plugin:
        run(plugin, stream[:1], helpers)
    before = len(tier.entries())
    with memory(tier) as plugin:
        plugin.suit(Rules(update=lambda carousel: ByBatch(carousel, dict, ("logits",))))
        with pytest.raises(SchemaMismatchError, match="lack the field logits") as error:
            run(plugin, stream[:1], helpers)
    assert "carousel import" in str(error.value)
    assert len(tier.entries()) == before


@pytest.mark.parametrize("choice", ["given", "skipped"])
def test_the_method_may_say_what_is_judged(helpers, stream, choice):
    judged = []

    def gate(batch):
        judged.append(batch.logits.clone())
        return np.arange(0)

    class Decide(SupervisedPlugin):
        def after_forward(self, strategy, **_):
            if plugin.memory_rows is not None:
                rows = sum(len(replay) for replay, _ in plugin.parts)
                plugin.skip_gate = choice == "skipped"
                plugin.logits_to_judge = torch.full((rows, 10), 7.0)

    with CarMPlugin(60, MemoryTier(), swap_ratio=0.5, gate=gate, sync=True, seed=0) as plugin:
        strategy = helpers.naive([plugin, Decide()])
        for experience in stream[:2]:
            strategy.train(experience, eval_streams=[])
    if choice == "skipped":
        assert judged == []
    else:
        assert judged
        assert all((logits == 7).all() for logits in judged)
