"""Routers that go through the experts of an earlier pass: laws in float64, for every family that was tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from purerl.backends.hf.decoder.backbone import layers_of
from purerl.backends.hf.model import token_model as modules
from purerl.backends.hf.model.packing import pack
from purerl.backends.hf.model.parallel import recompute
from purerl.backends.hf.model.token_model import Extras, TokenModel
from purerl.backends.hf.moe import replay as routes
from purerl.backends.hf.moe.replay import LIVE, ROUTES, changed_choices, hook_routers, probe_routes
from purerl.errors import ConfigError
from tests.backends.routed_models import EXPERTS, FAMILIES, K, causal_model, chosen_experts, routers_in, token_model
from tests.backends.training import make_batch

BATCH = make_batch()
# Routers of transformers compute probabilities in float32, and these two the logits as well.
TOLERANCES = dict.fromkeys(FAMILIES, 1e-6) | dict.fromkeys(("deepseek_v3", "glm4_moe"), 1e-5)
Result = tuple[Tensor, dict[str, Tensor]]


def logp_and_gradients(module: TokenModel, chosen: Tensor | None = None, **options: object) -> Result:
    """The log-probabilities of `BATCH`, and the gradient of a weighted sum of them."""
    module.zero_grad()
    logp = module(
        BATCH["tokens"], BATCH["action"], BATCH["temperature"], ("logp",), extras=Extras(experts=chosen), **options
    )["logp"]
    (logp * torch.linspace(-1, 2, logp.numel(), dtype=logp.dtype).view_as(logp)).sum().backward()
    zeros = {name: torch.zeros_like(parameter) for name, parameter in module.named_parameters()}
    return logp.detach(), zeros | {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


@torch.no_grad()
def live_choices(module: TokenModel, chosen: Tensor | None = None, **options: object) -> Tensor:
    """[rows, time, layers, k] what the routers of `module` choose."""
    names = (ROUTES,)
    return module(
        BATCH["tokens"], BATCH["action"], BATCH["temperature"], names, extras=Extras(experts=chosen), **options
    )[ROUTES]


def others(module: TokenModel) -> Tensor:
    """Choices that are not those of `module`: two different experts for each token and layer."""
    shape = (*BATCH["tokens"].shape, len(routers_in(module)), EXPERTS)
    order = torch.rand(shape, generator=torch.Generator().manual_seed(0)).argsort(-1)
    return order[..., :K].to(routes.DTYPE)


def flat(chosen: Tensor) -> Tensor:
    """`chosen` of the tokens that the padded rectangle reads: all columns before the last action token."""
    last = int(BATCH["action"].any(0).nonzero().max())
    return chosen[:, :last].flatten(0, 1).long()


def assert_equal(first: Result, second: Result, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(first, second, rtol=tolerance, atol=tolerance)


# --- the laws ------------------------------------------------------------------------------------------------------


def replaying_own_choices_changes_nothing(family: str) -> None:
    module = token_model(family)
    assert_equal(logp_and_gradients(module, live_choices(module)), logp_and_gradients(module))


def replaying_others_equals_a_pass_with_these_experts(family: str, chosen_of: Callable = others) -> None:
    module = token_model(family)
    chosen = chosen_of(module)
    replayed = logp_and_gradients(module, chosen)
    with chosen_experts(module, family, flat(chosen)):
        expected = logp_and_gradients(module)
    assert_equal(replayed, expected, TOLERANCES[family])
    assert not torch.allclose(replayed[0], logp_and_gradients(module)[0]), "the choices have an effect"
    assert all(replayed[1][name].any() for name in replayed[1] if name.endswith(("gate.weight", "router.weight")))


def some_live(module: TokenModel) -> Tensor:
    """`others`, with the live choice for every third token."""
    chosen = others(module)
    third = torch.arange(chosen[..., 0, 0].numel()).view(chosen.shape[:2]) % 3 == 0
    return torch.where(third[..., None, None], LIVE, chosen)


def the_load_is_that_of_the_live_router() -> None:
    module = token_model("qwen3_moe")
    chosen, names = others(module), ("router_count", ROUTES)
    outputs = module(BATCH["tokens"], BATCH["action"], BATCH["temperature"], names, extras=Extras(experts=chosen))
    before = BATCH["action"].roll(-1, -1)
    count = torch.stack([(outputs[ROUTES][before] == expert).sum() for expert in range(EXPERTS)])
    replayed = torch.stack([(chosen[before] == expert).sum() for expert in range(EXPERTS)])
    assert count.tolist() != replayed.tolist()
    assert outputs["router_count"].tolist() == count.tolist()


def a_recomputed_pass_uses_the_same_choices(*, is_selective: bool = False, is_hooked_first: bool = True) -> None:
    expected_of = token_model("qwen3_moe")
    chosen = some_live(expected_of)
    module = TokenModel(causal_model("qwen3_moe"), ("logp",), path=modules.Path("nowhere"))
    again = partial(recompute, list(layers_of(module.decoder)), is_selective=is_selective)
    for change in (module.replay_routes, again) if is_hooked_first else (again, module.replay_routes):
        change()
    assert_equal(logp_and_gradients(module, chosen), logp_and_gradients(expected_of, chosen))


def packed_rows_record_and_replay_what_padded_rows_do() -> None:
    module, packed = token_model("qwen3_moe"), token_model("qwen3_moe")
    packed.pack_rows()
    line, chosen = pack(BATCH["action"]).padded(16), some_live(module)
    read = (BATCH["action"].flip(-1).cumsum(-1).flip(-1) > 0).roll(-1, -1)  # a later token is an action token
    read[:, -1] = False
    recorded, live = live_choices(packed, pack=line), live_choices(module)
    torch.testing.assert_close(recorded[read], live[read], rtol=0, atol=0)
    assert (recorded[~read] == LIVE).all()
    assert_equal(logp_and_gradients(packed, chosen, pack=line), logp_and_gradients(module, chosen), 1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_replaying_own_choices_changes_no_bit(family: str) -> None:
    replaying_own_choices_changes_nothing(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_replaying_others_equals_a_pass_with_these_experts(family: str) -> None:
    replaying_others_equals_a_pass_with_these_experts(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_without_a_record_goes_through_the_live_choice(family: str) -> None:
    replaying_others_equals_a_pass_with_these_experts(family, some_live)


def test_only_the_choice_is_live_where_everything_is_live() -> None:
    module = token_model("qwen3_moe")
    assert_equal(logp_and_gradients(module, torch.full_like(others(module), LIVE)), logp_and_gradients(module))


def test_the_load_of_the_auxiliary_loss_is_that_of_the_live_router() -> None:
    the_load_is_that_of_the_live_router()


@pytest.mark.parametrize("is_selective", [False, True])
def test_a_recomputed_pass_uses_the_same_choices(is_selective: bool) -> None:
    a_recomputed_pass_uses_the_same_choices(is_selective=is_selective)


def test_packed_rows_record_and_replay_what_padded_rows_do() -> None:
    packed_rows_record_and_replay_what_padded_rows_do()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_probe_accepts_the_family(family: str) -> None:
    causal = causal_model(family)
    hook_routers(causal.get_decoder())
    probe_routes(causal)


# --- mutants -------------------------------------------------------------------------------------------------------


def _replayed_weights(scores: Tensor, live: Tensor, replayed: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of the experts have no gradient, as if they were recorded, too."""
    values, indices = TOP_K(scores, live, replayed)
    return values.detach(), indices


def _weights_of_live(scores: Tensor, live: Tensor, replayed: Tensor) -> tuple[Tensor, Tensor]:
    """The weights are those of the experts that would have been chosen."""
    return scores.gather(-1, live), TOP_K(scores, live, replayed)[1]


def _nothing_replayed(scores: Tensor, live: Tensor, replayed: Tensor) -> tuple[Tensor, Tensor]:
    return scores.gather(-1, live), live


def _no_sentinel(scores: Tensor, live: Tensor, replayed: Tensor) -> tuple[Tensor, Tensor]:
    return TOP_K(scores, live, replayed.clamp(min=0))


TOP_K = routes.top_k
OWN = partial(replaying_own_choices_changes_nothing, "qwen3_moe")
OTHERS = partial(replaying_others_equals_a_pass_with_these_experts, "qwen3_moe")
SENTINEL = partial(OTHERS, some_live)
PACKED = packed_rows_record_and_replay_what_padded_rows_do


def _rounded(scores: Tensor, live: Tensor, replayed: Tensor) -> tuple[Tensor, Tensor]:
    """The weights differ by rounding."""
    values, indices = TOP_K(scores, live, replayed)
    return values * (1 + 1e-6), indices


@pytest.mark.parametrize(
    ("law", "mutant"),
    [
        (OWN, _replayed_weights),
        (OWN, _rounded),
        (OTHERS, _replayed_weights),
        (OTHERS, _weights_of_live),
        (OTHERS, _nothing_replayed),
        (SENTINEL, _no_sentinel),
    ],
)
def test_a_law_catches_a_mutant_of_the_choice(monkeypatch, law, mutant):
    law()
    monkeypatch.setattr(routes, "top_k", mutant)
    with pytest.raises(AssertionError):
        law()


def test_the_law_of_recomputation_catches_a_pass_that_chooses_anew():
    with pytest.raises((AssertionError, CheckpointError)):
        a_recomputed_pass_uses_the_same_choices(is_hooked_first=False)


def test_the_law_of_the_load_catches_the_load_of_replayed_experts(monkeypatch):
    def of_replayed(logits: list[Tensor], top_k: int) -> dict[str, Tensor]:
        before = BATCH["action"].roll(-1, -1)
        chosen = others(token_model("qwen3_moe"))[before]
        return {"router_count": torch.stack([(chosen == expert).sum() for expert in range(EXPERTS)])}

    monkeypatch.setattr(modules, "load_of", of_replayed)
    with pytest.raises(AssertionError):
        the_load_is_that_of_the_live_router()


@contextmanager
def _rows_in_the_order_of_the_line() -> Iterator[None]:
    """Records are taken for those of a rectangle that is read row by row."""
    true = routes.RoutedInputs.__call__

    def call(self: routes.RoutedInputs, part: object) -> dict[str, object]:
        inputs = true(self, part)
        self.position = torch.arange(1, len(self.position) + 1).clamp(max=self.shape.numel())
        return inputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routes.RoutedInputs, "__call__", call)
        yield


@pytest.mark.parametrize(("mutant", "is_caught"), [(nullcontext, False), (_rows_in_the_order_of_the_line, True)])
def test_the_law_of_packs_catches_records_of_other_tokens(mutant, is_caught):
    with mutant(), pytest.raises(AssertionError) if is_caught else nullcontext():
        PACKED()


# --- the metric ----------------------------------------------------------------------------------------------------


def test_changed_choices_count_tokens_and_layers_with_other_experts():
    action = torch.tensor([[False, True, True, True]])
    replayed = torch.tensor([[[[0, 1], [2, 3]], [[0, 1], [0, 1]], [[LIVE, LIVE]] * 2, [[0, 1], [0, 1]]]])
    live = torch.tensor([[[[1, 0], [2, 1]], [[2, 3], [0, 1]], [[0, 1], [0, 1]], [[2, 3], [2, 3]]]])
    # The tokens at 0 and 1, in two layers; the one at 2 has no record, and nothing is predicted from the one at 3.
    assert [float(count) for count in changed_choices(live, replayed, action)] == [2 / 2, 4 / 2]
    assert [float(count) for count in changed_choices(live, replayed, torch.zeros_like(action))] == [0, 0]


# --- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "got"),
    [
        ("llama4_text", "Llama4ForCausalLM: experts that do not get the indices of topk"),
        ("qwen3", "Qwen3Model: no experts"),
    ],
)
def test_a_model_without_such_routers_is_refused(family: str, got: str) -> None:
    causal = causal_model(family)

    def use() -> None:
        hook_routers(causal.get_decoder())
        probe_routes(causal)

    with pytest.raises(ConfigError, match="^trainer.replay_routes\n") as error:
        use()
    assert str(error.value).splitlines()[1].removeprefix("  got:  ") == got


def test_a_router_that_calls_topk_twice_is_refused():
    causal = causal_model("qwen3_moe")
    router = causal.get_decoder().layers[1].mlp.gate
    true = router.forward
    router.forward = lambda hidden: (true(hidden), true(hidden))[1]
    hook_routers(causal.get_decoder())
    with pytest.raises(ConfigError, match="a router that calls topk never or several times"):
        probe_routes(causal)


def test_experts_that_do_not_get_the_choice_are_refused():
    causal = causal_model("qwen3_moe")
    router = causal.get_decoder().layers[1].mlp.gate
    true = router.forward

    def route(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, indices = true(hidden)
        return logits, weights, indices.flip(-1)

    router.forward = route
    hook_routers(causal.get_decoder())
    with pytest.raises(ConfigError, match="Qwen3MoeForCausalLM: experts that do not get the indices of topk"):
        probe_routes(causal)
