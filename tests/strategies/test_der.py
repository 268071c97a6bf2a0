"""DER++: its loss by hand, what records keep, growing heads, and what it learns."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from avalanche.benchmarks.scenarios import split_online_stream
from avalanche.models import IncrementalClassifier, MTSimpleMLP
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from carousel.errors import BadInputError, SchemaMismatchError
from carousel.storage import LMDBTier, MemoryTier
from carousel.strategies import CarMPlugin, DERPlusPlus, make_strategy


def der(helpers, model=None, *, lr=0.05, plugins=(), size=40, tier=None, memory=None, **options):
    model = helpers.model() if model is None else model
    memory = {"sync": True, "seed": 0, **(memory or {})}
    return DERPlusPlus(
        model=model,
        optimizer=helpers.sgd(model, lr),
        memory=CarMPlugin(size, tier or MemoryTier(), **memory),
        plugins=plugins,
        **{"train_mb_size": 16, **options},
    )


def train(strategy, stream):
    for experience in stream:
        strategy.train(experience, eval_streams=[])
    return strategy


def normed(helpers):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(32, 10),
    )  # fmt: skip


def growing(helpers):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), IncrementalClassifier(32, 2))


class Steps(SupervisedPlugin):
    """What every step trained on, and its loss."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def before_backward(self, strategy, **kwargs):
        parts = [
            (r.ids.copy(), rows, {k: v.clone() for k, v in r.fields.items()})
            for r, rows in strategy.memory.parts
        ]
        output, y = strategy.mb_output.detach().clone(), strategy.mb_y.clone()
        step = (strategy.memory.stream_rows, parts, output, y, strategy.loss.item())
        self.steps.append((*step, strategy.clock.train_exp_counter))


class Presented(SupervisedPlugin):
    """The logits of each sample's presentations, by id, in order."""

    def __init__(self):
        super().__init__()
        self.logits = {}

    def after_update(self, strategy, **kwargs):
        memory = strategy.memory
        ids = memory.ids_of(strategy.dataloader.rows)
        rows = strategy.mb_output[: memory.stream_rows].detach().clone()
        for id_, row in zip(ids.tolist(), rows, strict=True):
            self.logits.setdefault(id_, []).append(row)


def records(strategy):
    strategy.memory.carousel.flush()
    tier = strategy.memory.carousel.tier
    return {record.id: record for record in tier.get_many(tier.entries().ids)}


def slots(strategy):
    memory = strategy.memory.carousel
    residents = memory.residents()
    return residents, memory.peek(residents.slots)


class TestLoss:
    def terms(self, stream, parts, output, y):
        (_, one, fields), (_, two, _) = parts
        width = int(fields["width"][0])
        return (
            cross_entropy(output[:stream], y[:stream]).item(),
            mse_loss(output[one], fields["logits"][:, :width]).item(),
            cross_entropy(output[two], y[two]).item(),
        )

    def test_two_terms_beside_the_streams(self, helpers, stream):
        steps = Steps()
        strategy = train(der(helpers, plugins=[steps], alpha=0.3, beta=0.7), stream[:2])
        assert steps.steps[0][1] == []
        for rows, parts, output, y, loss, _ in steps.steps[1:]:
            ce, mse, replayed = self.terms(rows, parts, output, y)
            assert loss == pytest.approx(ce + 0.3 * mse + 0.7 * replayed, rel=1e-5)
            (ids, one, _), (others, two, _) = parts
            assert one.stop == two.start
            assert one.start == rows
            assert len(ids) == len(others) == one.stop - one.start
            assert len(set(ids.tolist())) == len(ids)
        differ = [set(p[0][0].tolist()) != set(p[1][0].tolist()) for _, p, *_ in steps.steps[5:]]
        assert sum(differ) > 0.9 * len(differ)
        strategy.memory.close()

    @pytest.mark.parametrize(
        ("weight", "factors"),
        [
            ("original", [(0.2, 0.5)] * 3),
            (0.25, [(0.25, 0.75)] * 3),
            ("incremental", [(0, 1), (2 / 4, 2 / 4), (4 / 6, 2 / 6)]),
        ],
    )
    def test_the_distillation_weight(self, helpers, weight, factors):
        stream, steps = helpers.new_family(helpers.ToFloat()).train_stream, Steps()
        train(der(helpers, plugins=[steps], distill_weight=weight), stream[:3]).memory.close()
        for rows, parts, output, y, loss, experience in steps.steps[1:]:
            ce, mse, replayed = self.terms(rows, parts, output, y)
            a, b = factors[experience]
            assert loss == pytest.approx(ce + a * mse + b * replayed, rel=1e-5)

    def test_by_hand(self, helpers):
        """One sample of each batch: -ln .5 + .2 * ((1-0)^2 + (1-3)^2) / 2 + .5 * -ln .25."""
        strategy = der(helpers)
        strategy.is_training = True
        ln3 = float(np.log(3))
        strategy.mb_output = torch.tensor([[0.0, 0.0], [1.0, 1.0], [ln3, 0.0]])
        strategy.mbatch = [torch.zeros(3, 1), torch.tensor([0, 1, 1])]

        width = torch.tensor([2], dtype=torch.int32)
        batch = SimpleNamespace(fields={"logits": torch.tensor([[0.0, 3.0, 0.0]]), "width": width})
        memory = strategy.memory
        memory.stream_rows, memory.parts = 1, [(batch, slice(1, 2)), (batch, slice(2, 3))]
        strategy._unused = ()
        expected = np.log(2) + 0.2 * (1 + 4) / 2 + 0.5 * np.log(4)
        assert strategy.criterion().item() == pytest.approx(expected, rel=1e-6)
        memory.close()

    def test_each_batch_has_its_own_forward_pass(self, helpers):
        """Three calls of the model a step, so that batch normalisation sees them apart."""
        stream, calls = helpers.new_family(helpers.ToFloat()).train_stream, []
        model = normed(helpers)
        model[0].register_forward_hook(lambda _m, inputs, _o: calls.append(len(inputs[0])))
        strategy = train(der(helpers, model, size=200), stream[:1])
        assert calls[:4] == [16, 16, 16, 16]
        assert int(model[2].num_batches_tracked) == 3 * -(-len(stream[0].dataset) // 16) - 2
        strategy.memory.close()

    def test_an_evaluation_is_one_plain_pass(self, helpers, stream):
        strategy = train(der(helpers), stream[:2])
        values = strategy.eval(stream[:2])
        assert all(np.isfinite(value) for value in values.values())
        strategy.memory.close()


class TestRecords:
    def test_the_first_logits_bit_for_bit(self, helpers):
        """In storage and in slots, whatever was swapped and however often it was seen."""
        stream, presented = helpers.new_family(helpers.ToFloat()).train_stream, Presented()
        strategy = der(helpers, normed(helpers), plugins=[presented], train_epochs=2)
        train(strategy, stream)
        stored = records(strategy)
        assert stored.keys() == presented.logits.keys()
        assert len(stored) == 600
        for id_, record in stored.items():
            assert np.array_equal(record.fields["logits"], presented.logits[id_][0].numpy())
            assert record.fields["width"] == 10
        residents, fields = slots(strategy)
        for place, id_ in enumerate(residents.ids.tolist()):
            assert torch.equal(fields["logits"][place], presented.logits[id_][0])
            assert np.array_equal(fields["x"][place].numpy(), stored[id_].fields["x"])
        assert strategy.memory.carousel.stats().swaps.done > 0
        strategy.memory.close()

    def test_sample_label_and_logits_never_part(self, helpers, tmp_path):
        """Asynchronous swaps from LMDB, seen at every replay: all three are of one record."""
        stream = helpers.new_family(helpers.ToFloat()).train_stream
        presented, steps = Presented(), Steps()
        strategy = der(
            helpers, plugins=[presented, steps], tier=tmp_path / "db", size=30,
            memory={"sync": False, "swap_ratio": 1.0, "gate": "all"}, train_epochs=2,
        )  # fmt: skip
        train(strategy, stream)
        stored = records(strategy)
        for _, parts, _, y, _, _ in steps.steps:
            for ids, rows, fields in parts:
                for place, id_ in enumerate(ids.tolist()):
                    assert torch.equal(fields["logits"][place], presented.logits[id_][0])
                    assert np.array_equal(fields["x"][place].numpy(), stored[id_].fields["x"])
                    assert int(y[rows][place]) == stored[id_].label
        assert strategy.memory.carousel.stats().swaps.done > 100
        strategy.memory.close()

    def test_a_full_storage_takes_both_or_neither(self, helpers, tmp_path):
        stream = helpers.new_family(helpers.ToFloat()).train_stream
        strategy = der(
            helpers, tier=tmp_path / "db", memory={"storage_budget": 100}, train_epochs=2
        )
        train(strategy, stream)
        stored = records(strategy)
        assert 80 <= len(stored) <= 100
        assert all(set(r.fields) == {"x", "logits", "width"} for r in stored.values())
        assert all(np.any(r.fields["logits"]) for r in stored.values())
        strategy.memory.close()

    def test_the_latest_logits(self, helpers):
        stream, presented = helpers.new_family(helpers.ToFloat()).train_stream, Presented()
        strategy = der(helpers, plugins=[presented], train_epochs=3, logits="latest")
        train(strategy, stream[:3])
        residents, fields = slots(strategy)
        for id_, record in records(strategy).items():
            assert len(presented.logits[id_]) == 3
            assert np.array_equal(record.fields["logits"], presented.logits[id_][-1].numpy())
        for place, id_ in enumerate(residents.ids.tolist()):
            assert torch.equal(fields["logits"][place], presented.logits[id_][-1])
        strategy.memory.close()

    def test_refreshed_logits(self, helpers, digits):
        """Those of the model at the end of the experience, for some of each of its classes."""
        stream, presented = helpers.new_family(helpers.ToFloat()).train_stream, Presented()
        model = normed(helpers)
        options = {"logits": "refresh", "refresh_per_class": 20, "plugins": [presented]}
        strategy = der(helpers, model, **options)
        for number, experience in enumerate(stream[:3]):
            before = {} if number == 0 else records(strategy)
            statistics = model[2].running_mean.clone()
            strategy.train(experience, eval_streams=[])
            after = records(strategy)
            model.eval()
            now = model(torch.from_numpy(np.stack([r.fields["x"] for r in after.values()])) / 255)
            model.train()
            refreshed = {}
            for record, logits in zip(after.values(), now.detach(), strict=True):
                stored = torch.from_numpy(record.fields["logits"])
                if record.id in before:
                    assert np.array_equal(
                        record.fields["logits"], before[record.id].fields["logits"]
                    )
                elif not torch.equal(stored, presented.logits[record.id][0]):
                    torch.testing.assert_close(stored, logits, rtol=1e-4, atol=1e-5)
                    refreshed[record.label] = refreshed.get(record.label, 0) + 1
            assert refreshed == dict.fromkeys(experience.classes_in_this_experience, 20)
            assert not torch.equal(model[2].running_mean, statistics)
        residents, fields = slots(strategy)
        for place, id_ in enumerate(residents.ids.tolist()):
            assert np.array_equal(fields["logits"][place].numpy(), after[id_].fields["logits"])
        strategy.memory.close()

    def test_the_reservoir_counts_each_sample_once(self, helpers):
        """Further epochs offer nothing, so early and late samples have the same odds."""
        x, y = torch.zeros(40, 1, 8, 8), torch.arange(40) % 2
        stream = helpers.new_family(x=x, y=y, experiences=1).train_stream
        counts = np.zeros(40)
        for seed in range(40):
            memory = {"seed": seed, "swap": False}
            strategy = der(helpers, size=10, memory=memory, train_epochs=2, train_mb_size=8)
            train(strategy, stream)
            counts[strategy.memory.carousel.residents().ids] += 1
            strategy.memory.close()
        assert counts.sum() == 400
        assert abs(counts - 10).max() < 5 * (40 * 0.25 * 0.75) ** 0.5


class TestHeads:
    def test_a_growing_head_is_compared_in_the_stored_width(self, helpers):
        """No output that a head had not learned yet pulls it to what the head fills in."""
        stream, steps = helpers.new_family(helpers.ToFloat()).train_stream, Steps()
        strategy = train(der(helpers, growing(helpers), n_classes=12, plugins=[steps]), stream)
        widths = {r.fields["width"].item() for r in records(strategy).values()}
        assert len(widths) > 1
        for experience in range(5):
            rows = [s for s in steps.steps if s[5] == experience]
            assert {s[2].shape[1] for s in rows} == {max(s[2].shape[1] for s in rows)}
        assert max(loss for *_, loss, _ in steps.steps) < 20
        for rows, parts, output, y, loss, _ in steps.steps[1:]:
            (_, one, fields), (_, two, _) = parts
            squares = [
                (now - then).square()
                for now, then, width in zip(
                    output[one], fields["logits"], fields["width"].tolist(), strict=True
                )
                for now, then in zip(now[:width], then[:width], strict=True)
                if then != -1000
            ]
            expected = cross_entropy(output[:rows], y[:rows]) + 0.2 * torch.stack(squares).mean()
            expected += 0.5 * cross_entropy(output[two], y[two])
            assert loss == pytest.approx(expected.item(), rel=1e-4)
        strategy.memory.close()

    def test_a_head_that_outgrows_the_records_is_refused(self, helpers):
        strategy = der(helpers, growing(helpers), n_classes=4)
        stream = helpers.new_family(helpers.ToFloat()).train_stream
        with pytest.raises(BadInputError, match="a record has room") as caught:
            train(strategy, sorted(stream, key=lambda e: max(e.classes_in_this_experience)))
        assert "n_classes=" in caught.value.fix
        strategy.memory.close()

    def test_fewer_classes_than_outputs_are_refused_at_the_first_step(self, helpers, stream):
        strategy = der(helpers, n_classes=9)
        with pytest.raises(BadInputError, match="and a record has room for 9"):
            train(strategy, stream[:1])
        assert len(strategy.memory.carousel.tier.entries()) == 0
        strategy.memory.close()

    def test_online_streams(self, helpers, digits):
        benchmark = helpers.new_family(helpers.ToFloat())
        online = split_online_stream(benchmark.train_stream, experience_size=10, drop_last=False)
        strategy = train(der(helpers, lr=0.1, train_mb_size=10), online)
        assert len(records(strategy)) == 600
        strategy.memory.close()


class TestBadInput:
    @pytest.mark.parametrize(
        "options",
        [
            {"alpha": -1},
            {"beta": float("nan")},
            {"logits": "last"},
            {"refresh_per_class": 0},
            {"n_classes": 0},
            {"distill_weight": 1.5},
        ],
    )
    def test_values_out_of_range(self, helpers, options):
        with pytest.raises(BadInputError, match=next(iter(options))):
            der(helpers, **options)

    @pytest.mark.parametrize(
        "rules", [{"update": "experience"}, {"update": "batch"}, {"replay": "mixed"}]
    )
    def test_rules_that_do_not_fit(self, helpers, rules):
        with pytest.raises(BadInputError, match=r"DER\+\+"):
            der(helpers, memory=rules)

    def test_a_storage_without_logits(self, helpers, stream):
        tier = MemoryTier()
        with CarMPlugin(40, tier, sync=True, seed=0) as memory:
            train(helpers.naive([memory]), stream[:1])
        with pytest.raises(SchemaMismatchError, match="x uint8") as caught:
            der(helpers, tier=tier, n_classes=10)
        assert "--schema logits:float32:10=0 --schema width:int32:=0" in caught.value.fix
        assert "carousel forget" in caught.value.fix

    def test_a_storage_with_fewer_logits(self, helpers, stream):
        tier = MemoryTier()
        train(der(helpers, helpers.model(10), tier=tier), stream[:1]).memory.close()
        with pytest.raises(SchemaMismatchError, match=r"logits float32 \(10,\)"):
            der(helpers, tier=tier, n_classes=11)
        wider = der(helpers, helpers.model(11), tier=tier)
        with pytest.raises(BadInputError, match="11 outputs"):
            train(wider, stream[:1])


def test_the_named_commands_upgrade_a_storage(helpers, stream, tmp_path):
    """Samples of another method, with no logits: nothing is compared, and swapping goes on."""
    from typer.testing import CliRunner

    from carousel.cli.app import app

    with CarMPlugin(40, tmp_path / "old", sync=True, seed=0) as memory:
        train(helpers.naive([memory]), stream[:2])
    with LMDBTier(tmp_path / "old") as tier:
        count = len(tier.entries())
    flags = ["--schema", "logits:float32:10=0", "--schema", "width:int32:=0"]
    for command in (
        ["export", str(tmp_path / "old"), str(tmp_path / "files")],
        ["import", str(tmp_path / "files"), str(tmp_path / "new"), *flags],
        ["forget", str(tmp_path / "old"), "--all", "--yes"],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 0, result.output
    for name, before in (("new", count), ("old", 0)):
        steps = Steps()
        strategy = der(helpers, tier=tmp_path / name, memory={"run": "second"}, plugins=[steps])
        train(strategy, stream[:1])
        assert len(records(strategy)) == before + len(stream[0].dataset)
        strategy.memory.close()


@pytest.mark.parametrize("swap", [True, False])
def test_it_remembers_and_trains_the_head(helpers, digits, swap):
    x, y = digits
    stream = helpers.new_family(helpers.ToFloat()).train_stream
    model = helpers.model()
    head = model[3].weight.clone()
    strategy = der(helpers, model, lr=0.1, memory={"swap": swap}, train_epochs=8)
    train(strategy, stream)
    model.eval()
    right = model(x.float() / 255).argmax(1) == y
    assert not torch.equal(model[3].weight, head)
    assert right.float().mean() > 0.75
    assert (strategy.memory.carousel.stats().swaps.done > 0) == swap
    strategy.memory.close()


@pytest.mark.parametrize(
    ("swap", "logits", "kill", "every"),
    [
        (True, "first", 7, 5),  # samples come again that are stored
        (True, "latest", 13, 7),  # and whose logits were revised since the checkpoint
        (True, "refresh", 27, 5),
        (False, "latest", 20, 6),
    ],
)
def test_a_run_resumes_within_an_experience(helpers, tmp_path, swap, logits, kill, every):
    """Steps behind the checkpoint are done again, on a storage that knows them."""
    stream = helpers.new_family(helpers.ToFloat()).train_stream

    def make(storage, plugins):
        model = normed(helpers)
        return make_strategy(
            "der++",
            {"logits": logits, "distill_weight": "incremental"},
            model=model,
            optimizer=helpers.sgd(model, 0.05, momentum=0.9),
            storage=storage,
            memory_size=20,
            sync=True,
            swap=swap,
            train_mb_size=16,
            train_epochs=2,
            plugins=plugins,
        )

    whole, parts = helpers.stop_and_go(make, tmp_path, stream[:2], kill=kill, every=every)
    assert helpers.same(whole, parts)
    assert (whole["swaps"].done > 0) == swap


def test_a_killed_asynchronous_run_goes_on(helpers, tmp_path):
    """Its later samples come with other logits the second time, which is no conflict."""
    stream = helpers.new_family(helpers.ToFloat()).train_stream

    def make(storage, plugins):
        model = normed(helpers)
        return make_strategy(
            "der++",
            model=model,
            optimizer=helpers.sgd(model, 0.05),
            storage=storage,
            memory_size=20,
            train_mb_size=16,
            plugins=plugins,
        )

    _, parts = helpers.stop_and_go(make, tmp_path, stream[:2], kill=6, every=4)
    assert len(parts["records"]) == sum(len(experience.dataset) for experience in stream[:2])


def test_multi_head_models_refresh_by_task(helpers):
    stream = helpers.old_family(helpers.ToFloat(), task_labels=True).train_stream
    model = MTSimpleMLP(input_size=64, hidden_size=16)
    strategy = train(der(helpers, model, logits="refresh", n_classes=10), stream[:2])
    carousel = strategy.memory.carousel
    here = carousel.residents()
    late = here.tasks == 1
    fields, _ = carousel.read(here.ids[late])
    with torch.no_grad():
        x = helpers.ToFloat()(fields["x"])
        now = model.eval()(x, torch.ones(len(x), dtype=torch.int64))
    assert torch.allclose(fields["logits"][:, : now.shape[1]], now, atol=1e-5)
    strategy.memory.close()


def test_records_have_room_for_the_classes_of_the_stream(helpers, stream):
    strategy = train(der(helpers, growing(helpers)), stream)
    (logits,) = (f for f in strategy.memory.carousel.schema.fields if f.name == "logits")
    assert logits.shape == (10,)
    strategy.memory.close()
