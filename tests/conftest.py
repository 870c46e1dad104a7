"""One torch thread: two beside a busy neighbour cost up to eight times in wall time."""

import torch

torch.set_num_threads(1)
