"""Batches, vocabulary, loss masks, and a step shared by two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import random_ids, tiny

from methods.drafters.vocabulary import DraftVocabulary
from methods.eagle3 import training as eagle3
from methods.errors import UsageError
from methods.ppsd import training as ppsd
from methods.spd import training as spd
from methods.training.batches import Batches, micro_batches
from methods.training.observation import Example, observe
from methods.training.optimizer import OptimizerConfig
from methods.training.task import HeadTask, acceptance, head_loss
from methods.training.trainer import Trainer, TrainerConfig
from methods.training.vocabulary import count_tokens, covered, most_frequent

VOCABULARY = DraftVocabulary(64, range(0, 64, 2))
SGD_LIKE = OptimizerConfig("muon", 1e-2, 1e-3, 1e-3, warmup=0.0, decay="linear", clip=1.0)


def examples(count: int = 8, length: int = 14) -> list[Example]:
    mask = torch.arange(length) >= 5
    return [Example(torch.tensor(random_ids(length, seed=seed)), mask) for seed in range(count)]


def tasks() -> list[HeadTask]:
    target = tiny("llama")
    head = ppsd.initial_head(target, 4, VOCABULARY, None, 0)
    return [
        spd.SpdTask("spd", spd.initial_module(target, 4, 2, VOCABULARY, None, 0)),
        ppsd.PpsdTask("ppsd", head, [2, 2, 2, 2]),
    ]


def trainer(rank: int = 0, ranks: int = 1, workers: int = 1) -> Trainer:
    batches = Batches(examples(), 4, seed=3, rank=rank, ranks=ranks)
    config = TrainerConfig(tokens=10_000, micro_tokens=20, seed=1, workers=workers)
    return Trainer(tiny("llama"), VOCABULARY, tasks(), [SGD_LIKE] * 2, batches, config)


def test_batches_are_a_function_of_the_step() -> None:
    first, again = Batches(examples(), 3, 0), Batches(examples(), 3, 0)
    early = [example.ids.tolist() for example in first.step(2)]
    again.step(9)
    assert [example.ids.tolist() for example in again.step(2)] == early
    epoch = [tuple(e.ids.tolist()) for step in range(8) for e in first.step(step)]
    assert sorted(epoch) == sorted(tuple(e.ids.tolist()) for e in examples() for _ in range(3))


def test_ranks_share_a_step() -> None:
    whole = Batches(examples(), 4, 0).step(1)
    parts = [Batches(examples(), 4, 0, rank, 2).step(1) for rank in range(2)]
    assert sorted(e.ids.tolist() for part in parts for e in part) == sorted(e.ids.tolist() for e in whole)
    with pytest.raises(UsageError, match="shared equally"):
        Batches(examples(), 4, 0, 0, 3)


def test_all_masked_data_is_refused() -> None:
    silent = [Example(torch.arange(5), torch.zeros(5, dtype=torch.bool))]
    with pytest.raises(UsageError, match="every position is masked"):
        Batches(silent, 1, 0)


def test_micro_batches_keep_order_and_bound() -> None:
    parts = micro_batches(examples(5), 30)
    assert [len(part) for part in parts] == [2, 2, 1]


def test_vocabulary_is_the_most_frequent_assistant_tokens() -> None:
    ids = torch.tensor([9, 9, 9, 1, 1, 2, 3, 3])
    mask = torch.tensor([False, False, False, True, True, True, True, True])
    counts = count_tokens([Example(ids, mask)], 16)
    vocabulary = most_frequent(counts, 3, always=[11])
    assert vocabulary.ids.tolist() == [1, 3, 11]
    assert covered(counts, vocabulary) == pytest.approx(0.8)
    with pytest.raises(UsageError, match="cannot hold"):
        most_frequent(counts, 1, always=[1, 2])


def test_positions_outside_the_draft_vocabulary_have_no_gradient_and_count_as_rejected() -> None:
    task = tasks()[1]
    seen = observe(tiny("llama"), examples(3), task.taps, VOCABULARY)
    outside = ~seen.teacher.valid
    assert outside.any() and seen.teacher.valid.any()
    hidden = task.outputs(seen, None)[0].detach().requires_grad_()
    task.outputs = lambda seen, draws: [hidden]  # type: ignore[method-assign]
    loss = head_loss(task, seen, None)
    loss.loss.backward()
    assert hidden.grad is not None and not hidden.grad[outside].any()
    assert hidden.grad[seen.teacher.valid].abs().sum(-1).gt(0).all()
    rates = acceptance(task, seen)[0]
    assert rates.positions == len(outside) and rates.masked_in == loss.weight == int((~outside).sum())


def test_loss_is_the_forward_kl_up_to_the_teachers_entropy() -> None:
    task = tasks()[0]
    seen = observe(tiny("llama"), examples(3), task.taps, VOCABULARY)
    rates = acceptance(task, seen)[0].rates()
    probs = seen.teacher.probs[seen.teacher.valid]
    entropy = -torch.special.xlogy(probs, probs).sum(-1).mean()
    assert float(head_loss(task, seen, None).loss.detach() - entropy) == pytest.approx(rates["kl"], abs=1e-5)


@pytest.mark.parametrize("answer", range(2, 9))
def test_answers_shorter_than_the_steps_of_a_head(answer: int) -> None:
    """EAGLE-3 looks 7 tokens ahead; a short answer alone in a micro-batch has fewer."""
    target = tiny("llama")
    task = eagle3.Eagle3Task("eagle3", eagle3.initial_head(target, VOCABULARY, None, 0))
    mask = torch.arange(5 + answer) >= 5
    seen = observe(target, [Example(torch.tensor(random_ids(len(mask))), mask)], task.taps, VOCABULARY)
    assert torch.isfinite(head_loss(task, seen, None).loss)
    found = acceptance(task, seen)
    assert [rates.positions for rates in found] == [max(0, answer - 1 - i) for i in range(len(found))]


def test_micro_batches_do_not_change_the_step() -> None:
    """One draw of the fill per micro-batch apart, accumulation is exact: PPSD has no draws."""
    weights = []
    for tokens in (14, 1000):
        one = trainer()
        one.config = TrainerConfig(10_000, tokens, 1)
        one.step()
        weights.append(one.tasks[1].module.state_dict())
    for name, value in weights[0].items():
        assert torch.allclose(value, weights[1][name], atol=1e-5), name


def _two_ranks(rank: int, rendezvous: str, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    shared = trainer(rank, 2)
    # The head that took longest so far is not the same one everywhere.
    shared.progress.seconds[shared.tasks[rank].label] = 1e3
    assert shared.any_rank(rank == 1) and not shared.any_rank(False)
    report = shared.step()
    torch.save((report.tokens, report.losses, shared.tasks[1].module.state_dict()), f"{out}.{rank}")
    dist.destroy_process_group()


def test_workers_make_the_steps_of_one_thread() -> None:
    alone, shared = trainer(), trainer(workers=3)
    for _ in range(3):
        assert alone.step() == shared.step()
    for mine, theirs in zip(alone.tasks, shared.tasks, strict=True):
        for name, weight in mine.module.state_dict().items():
            assert torch.equal(weight, theirs.module.state_dict()[name]), name
    assert shared.progress.elapsed > 0


def test_an_error_in_a_worker_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = trainer(workers=2)
    monkeypatch.setattr(shared.tasks[1], "outputs", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        shared.step()


def test_two_processes_make_the_step_of_one(tmp_path: Path) -> None:
    out = str(tmp_path / "rank")
    mp.spawn(_two_ranks, (str(tmp_path / "rendezvous"), out), nprocs=2)  # type: ignore[no-untyped-call]
    alone = trainer()
    report = alone.step()
    for rank in range(2):
        tokens, losses, weights = torch.load(f"{out}.{rank}", weights_only=True)
        assert tokens == report.tokens
        assert losses["ppsd"] == pytest.approx(report.losses["ppsd"], abs=1e-5)
        for name, value in alone.tasks[1].module.state_dict().items():
            assert torch.allclose(value, weights[name], atol=1e-5), name
