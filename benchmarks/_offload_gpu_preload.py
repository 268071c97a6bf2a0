"""What every part of `benchmarks.offload_gpu` imports, imported once; nothing here uses a GPU."""

import torch._dynamo  # noqa: F401 - by the first optimizer of a process

import benchmarks._offload
import benchmarks._offload_gpu
import benchmarks._offload_gpu_link  # noqa: F401
