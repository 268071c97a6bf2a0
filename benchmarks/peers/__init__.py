"""The seven methods once more, as plain loops written from their papers, to compare ours with.

Nothing here uses the memory, the plugin or the strategies of Carousel: samples are kept in
tensors, and a step is what the paper says. All are without swapping.
"""

from benchmarks.peers.distilling import BiCLoop, ICaRLLoop
from benchmarks.peers.learner import Learner, Options
from benchmarks.peers.memory_only import GDumbLoop, RainbowLoop
from benchmarks.peers.replaying import DERLoop, ERLoop, TinyERLoop

__all__ = ["PEERS", "Learner", "Options"]

PEERS: dict[str, type[Learner]] = {
    "er": ERLoop,
    "tiny-er": TinyERLoop,
    "icarl": ICaRLLoop,
    "bic": BiCLoop,
    "gdumb": GDumbLoop,
    "der++": DERLoop,
    "rm": RainbowLoop,
}
"""A learner by the name of the strategy it is compared with."""
