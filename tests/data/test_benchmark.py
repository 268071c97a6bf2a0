import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from carousel.data import load_stream, to_benchmark


@pytest.fixture(scope="module")
def stream():
    return load_stream("split-digits", experiences=3, limit=20)


def test_experiences_line_up_and_know_their_classes(stream):
    benchmark = to_benchmark(stream)
    assert len(benchmark.train_stream) == len(benchmark.test_stream) == 3
    seen = set()
    for number, (train, test) in enumerate(
        zip(benchmark.train_stream, benchmark.test_stream, strict=True)
    ):
        assert train.current_experience == test.current_experience == number
        classes = set(stream.train[number].classes)
        assert train.classes_in_this_experience == test.classes_in_this_experience == classes
        assert train.previous_classes == seen
        seen |= classes
        assert train.classes_seen_so_far == seen
        assert train.dataset.targets.uniques == classes


def test_the_tensors_inside_are_raw_and_shared(stream):
    dataset = to_benchmark(stream).train_stream[0].dataset
    leaf = dataset._flat_data
    while not isinstance(leaf, TensorDataset):
        (leaf,) = leaf._datasets
    assert leaf.tensors[0].data_ptr() == stream.train[0].x.data_ptr()
    assert leaf.tensors[0].dtype == torch.uint8


@pytest.mark.parametrize("group", ["train", "eval"])
def test_plain_avalanche_loading_gives_model_input(stream, group):
    dataset = getattr(to_benchmark(stream).train_stream[1].dataset, group)()
    x, y = next(iter(DataLoader(dataset, batch_size=16, collate_fn=dataset.collate_fn)))
    assert torch.equal(x, stream.transform(stream.train[1].x[:16]))
    assert torch.equal(y, stream.train[1].y[:16])


def test_task_labels_on_request(stream):
    experience = to_benchmark(stream, task_labels=True).train_stream[2]
    assert experience.task_label == 2
    assert experience.dataset[0][2] == 2
    assert len(to_benchmark(stream).train_stream[2].dataset[0]) == 2


def test_a_strategy_of_avalanche_trains_and_evaluates(stream):
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.supervised import Naive

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.5),
        train_mb_size=16,
        train_epochs=3,
        eval_mb_size=64,
        plugins=[ReplayPlugin(mem_size=60)],
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
    )
    benchmark = to_benchmark(stream)
    for experience in benchmark.train_stream:
        strategy.train(experience)
    result = strategy.eval(benchmark.test_stream)
    assert next(value for name, value in result.items() if "Acc_Stream" in name) > 0.5


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("LwFPlugin", {}),
        ("EWCPlugin", {"ewc_lambda": 1.0}),
        ("GEMPlugin", {"patterns_per_experience": 8, "memory_strength": 0.5}),
        ("ReplayPlugin", {"mem_size": 20}),
    ],
)
@pytest.mark.parametrize("carousel", [False, True])
@pytest.mark.filterwarnings("ignore:Call to deprecated")
def test_other_methods_learn_it_alone_and_with_a_carousel(stream, method, options, carousel):
    from avalanche.training import plugins
    from avalanche.training.supervised import Naive

    from carousel.storage import MemoryTier
    from carousel.strategies import CarMPlugin

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    memory = CarMPlugin(20, MemoryTier(), seed=0)
    other = getattr(plugins, method)(**options)
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.01),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=16,
        evaluator=None,
        plugins=[memory, other] if carousel else [other],
    )
    benchmark = to_benchmark(stream)
    with memory:
        for experience in benchmark.train_stream:
            strategy.train(experience)
        strategy.eval(benchmark.test_stream)
    assert strategy.clock.train_exp_counter == 3
