"""The tracker of live tensor bytes, against sums that are known."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import linear

from purerl.system.tensor_tracker import MemoryTracker


def test_a_chain_of_operations_has_two_tensors_at_a_time() -> None:
    with MemoryTracker() as tracker, tracker.phase("chain"):
        x = torch.zeros(1000)
        for _ in range(5):
            x = x + 1
    assert (tracker.peak("chain"), tracker.total) == (2 * 4000, 4000)
    del x
    assert tracker.total == 0


def test_views_and_operations_in_place_need_nothing() -> None:
    x = torch.zeros(10, 100)
    with MemoryTracker() as tracker, tracker.phase("views"):
        x.view(-1)[:500].add_(1)
        x.T.mul_(2)
    assert tracker.peak("views") == 4000


def test_phases_have_peaks_of_their_own_and_the_outer_one_has_the_largest() -> None:
    with MemoryTracker() as tracker, tracker.phase("both"):
        with tracker.phase("first"):
            torch.zeros(100)
        with tracker.phase("second"):
            torch.zeros(300)
    assert [tracker.peak(name) for name in ("first", "second", "both", "none")] == [400, 1200, 1200, 0]


def test_a_backward_pass_keeps_what_it_needs() -> None:
    """loss = sum((x W^T)^2): x and W stay, and the product h until the gradient of the square; then 2h and W's."""
    x, weight = torch.ones(8, 16), torch.ones(32, 16, requires_grad=True)
    with MemoryTracker() as tracker:
        tracker.label("weight", [weight])
        with tracker.phase("forward"):
            hidden = linear(x, weight)
            loss = hidden.square().sum()
        with tracker.phase("backward"):
            loss.backward()
    sizes = {"x": 8 * 16 * 4, "weight": 32 * 16 * 4, "hidden": 8 * 32 * 4}
    assert tracker.peak("forward") == sum(sizes.values()) + sizes["hidden"] + 4
    assert tracker.peaks["backward"]["weight"] == sizes["weight"]
    assert tracker.total == sum(sizes.values()) + sizes["weight"] + 4
    del loss, hidden


def test_labels_and_bytes_of_tensors_that_do_not_exist() -> None:
    x = torch.zeros(100)
    with MemoryTracker() as tracker, tracker.phase("all"):
        tracker.label("parameters", [x])
        y = x + 1
        tracker.hold("gathered", 50)
        tracker.hold("gathered", -50)
    assert tracker.peaks["all"] == {"parameters": 400, "other": 400, "gathered": 50}
    assert len(y) == 100


def test_a_storage_that_is_resized_has_its_new_size() -> None:
    with MemoryTracker() as tracker, tracker.phase("all"):
        x = torch.zeros(100)
        x.untyped_storage().resize_(0)
        assert tracker.total == 0
        x.untyped_storage().resize_(800)
    assert tracker.total == 800
    assert torch.UntypedStorage.resize_.__qualname__.endswith("resize_")


def test_fake_tensors_count_as_ordinary_ones() -> None:
    peaks = []
    for mode in (FakeTensorMode(), None):
        with MemoryTracker() as tracker, tracker.phase("all"):
            if mode is None:
                torch.ones(64, 64).softmax(-1).sum()
            else:
                with mode:
                    torch.ones(64, 64).softmax(-1).sum()
        peaks.append(tracker.peak("all"))
    assert peaks[0] == peaks[1] == 2 * 64 * 64 * 4
