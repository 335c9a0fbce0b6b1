"""Programs as users write them, and the rows that must come of them."""

from __future__ import annotations

import math

import pytest
from tests.inprocess.recorder.moments import (
    ADAM,
    CRITIC,
    EVALUATE,
    GAN_D,
    GAN_G,
    GENERATOR,
    MODEL,
    MS,
    TEACHER,
    TRAIN,
    Program,
    ms,
)

from paceline.inprocess.recorder import probe_state as g
from paceline.inprocess.recorder.steps.state_machine import Automaton
from paceline.record.layout import FLAG_BY_BACKWARD, FLAG_EPOCH, FLAG_FRESH, FLAG_LOSS, FLAG_TAIL

PLAIN = {"data_wait": 2, "forward": 3, "backward": 4, "optimizer": 1}


# -- plain loops -------------------------------------------------------------------------------------


def test_plain_loop():
    p = Program()
    p.iter(7)
    for _ in range(5):
        p.fetch(2, cpu_ms=1.5)
        p.idle(0.25)
        p.forward(3)
        p.idle(0.5)
        p.backward(4, loss=0.25)
        p.idle(0.125)
        p.spend(0.5, g.TIDY)
        p.step(1)
        p.idle(6)
    rows = p.end()
    assert len(rows) == 5
    first = {"data_wait": 9, "gap": 0.25, "forward": 3, "mid": 0.5, "backward": 4, "other": 0.125, "optimizer": 1.5}
    assert ms(rows[0]) == first
    assert [ms(row) for row in rows[1:]] == [first | {"data_wait": 2, "gap": 6.25}] * 4
    assert ms(p.tail) == {"gap": 6}
    for row in rows:
        assert (row.micro_steps, row.synced, row.fetches, row.samples, row.loss) == (1, 0, 1, 8.0, 0.25)
        assert row.fetch_cpu_ns == 1.5 * MS
        assert math.isnan(row.forward_blocked_ns)
        assert row.flags & ~FLAG_EPOCH == FLAG_LOSS | FLAG_FRESH
    assert [bool(row.flags & FLAG_EPOCH) for row in rows] == [True, False, False, False, False]
    use = p.automaton.loaders[TRAIN]
    assert (use.train_fetches, use.train_wait_ns, use.eval_fetches, use.samples) == (5, 10 * MS, 0, 40.0)


def test_rows_come_when_the_next_step_of_the_first_optimizer_tells_that_it_closes():
    p = Program()
    p.train_on()
    assert p.out == []
    p.train_on()
    assert len(p.out) == 2
    p.train_on()
    assert len(p.out) == 3


def test_accumulation_of_four():
    p = Program()
    for number in range(3):
        for micro in range(4):
            p.fetch(2)
            p.forward(3, synced=micro == 3)
            p.backward(4, loss=float(number * 4 + micro))
        p.step(1)
    rows = p.end()
    assert [ms(row) for row in rows] == [{"data_wait": 8, "forward": 12, "backward": 16, "optimizer": 1}] * 3
    assert [(r.micro_steps, r.synced, r.fetches, r.samples, r.loss) for r in rows] == [
        (4, 1, 4, 32.0, 3.0),
        (4, 1, 4, 32.0, 7.0),
        (4, 1, 4, 32.0, 11.0),
    ]


def test_one_batch_in_four_pieces_counts_its_samples_once():
    p = Program()
    for _ in range(3):
        p.fetch(2, samples=32)
        for _ in range(4):
            p.forward(1, samples=8)
            p.backward(1)
        p.step(1)
    assert [row.samples for row in p.end()] == [32.0] * 3


def test_no_loader_counts_samples_by_the_forward():
    p = Program()
    for _ in range(3):
        p.forward(1, samples=16)
        p.backward(1)
        p.step(1)
    assert [(row.samples, row.fetches) for row in p.end()] == [(16.0, 0)] * 3


def test_a_fixed_batch_is_not_fresh():
    p = Program()
    for number in range(3):
        p.forward(1, fresh=number == 0)
        p.backward(1)
        p.step(1)
    rows = p.end()
    assert [bool(row.flags & FLAG_FRESH) for row in rows] == [True, False, False]


def test_many_minibatches_of_one_rollout():
    """One big fetch, then eight updates on pieces of it."""
    p = Program()
    for _ in range(2):
        p.fetch(5, samples=64)
        for _ in range(8):
            p.forward(1, samples=8)
            p.backward(1)
            p.step(1)
    rows = p.end()
    assert len(rows) == 16
    assert [row.fetches for row in rows] == [1, *[0] * 7] * 2


# -- several optimizers ------------------------------------------------------------------------------


def gan_cycle(p: Program) -> None:
    p.fetch(2)
    p.ungraded(3, GAN_G, training=True)
    p.forward(1, GAN_D)
    p.forward(1, GAN_D)
    p.backward(4, loss=1.0)
    p.step(1, CRITIC)
    p.forward(3, GAN_G)
    p.forward(1, GAN_D)
    p.backward(5, loss=2.0)
    p.step(2, GENERATOR)


def test_gan_has_one_step_a_cycle_from_the_first_on():
    p = Program(optimizers=2)
    for _ in range(4):
        gan_cycle(p)
        p.idle(0.5)
    rows = p.end()
    cycle = {"data_wait": 2, "forward": 9, "backward": 9, "optimizer": 3}
    assert [ms(row) for row in rows] == [cycle, *[cycle | {"gap": 0.5}] * 3]
    assert [(r.micro_steps, r.fetches, r.samples, r.loss) for r in rows] == [(2, 1, 8.0, 2.0)] * 4
    assert ms(p.tail) == {"gap": 0.5}


def test_gan_of_a_single_cycle():
    p = Program(optimizers=2)
    gan_cycle(p)
    assert [ms(row) for row in p.end()] == [{"data_wait": 2, "forward": 9, "backward": 9, "optimizer": 3}]


def test_gan_cut_between_its_optimizers_leaves_a_tail():
    p = Program(optimizers=2)
    for _ in range(3):
        gan_cycle(p)
    p.fetch(2)
    p.forward(1, GAN_D)
    p.backward(4, loss=7.0)
    p.step(1, CRITIC)
    p.forward(3, GAN_G)
    assert len(p.end()) == 3
    assert ms(p.tail) == {"data_wait": 2, "forward": 4, "backward": 4, "optimizer": 1}
    assert p.tail.loss == 7.0


def test_wgan_steps_with_each_update_of_the_critic():
    """The critic repeats itself first, so it closes; the generator's update is part of the step that follows."""
    p = Program(optimizers=2)
    for _ in range(2):
        for _ in range(5):
            p.fetch(2)
            p.forward(1, GAN_D)
            p.backward(4)
            p.step(1, CRITIC)
        p.forward(3, GAN_G)
        p.backward(6)
        p.step(2, GENERATOR)
    rows = p.end()
    alone = {"data_wait": 2, "forward": 1, "backward": 4, "optimizer": 1}
    both = {"data_wait": 2, "forward": 4, "backward": 10, "optimizer": 3}
    assert [ms(row) for row in rows] == [alone] * 5 + [both] + [alone] * 4
    assert ms(p.tail) == {"forward": 3, "backward": 6, "optimizer": 2}


def test_two_optimizers_after_one_backward_are_both_optimizer_time():
    p = Program(optimizers=2)
    for _ in range(3):
        p.fetch(2)
        p.forward(3)
        p.backward(4)
        p.step(5, ADAM)
        p.step(7, CRITIC)
    rows = p.end()
    assert [ms(row) for row in rows] == [{"data_wait": 2, "forward": 3, "backward": 4, "optimizer": 12}] * 3


def test_gradients_made_by_hand_are_still_applied_in_optimizer_time():
    p = Program()
    for _ in range(3):
        p.ungraded(3, training=True)
        p.idle(1)
        p.ungraded(3, training=True)
        p.step(5)
    rows = p.end()
    assert [ms(row) for row in rows] == [{"forward": 6, "mid": 1, "optimizer": 5}] * 3


def test_alternating_phases_with_other_optimizers_count_every_update():
    p = Program(optimizers=2)
    for optimizer in (ADAM, CRITIC, ADAM, CRITIC):
        for _ in range(4):
            p.fetch(2)
            p.forward(3)
            p.backward(4)
            p.step(1, optimizer)
        p.idle(10)
    rows = p.end()
    assert len(rows) == 16
    expected = [PLAIN | ({"gap": 10} if number and number % 4 == 0 else {}) for number in range(16)]
    assert [ms(row) for row in rows] == expected


def test_an_optimizer_around_another_is_one_step():
    """Lookahead and the like call the inner optimizer's step inside their own."""
    p = Program(optimizers=2)
    for _ in range(3):
        p.forward(3)
        p.backward(4)
        with p.stepping(CRITIC):
            p.step(2, ADAM)
            p.idle(3)
    assert [ms(row) for row in p.end()] == [{"forward": 3, "backward": 4, "optimizer": 5}] * 3


# -- closures ----------------------------------------------------------------------------------------


def test_lbfgs_runs_twenty_forwards_inside_its_step():
    p = Program()
    for number in range(3):
        with p.stepping():
            p.idle(0.5)
            for call in range(20):
                p.spend(0.25, g.TIDY)
                p.forward(2, fresh=number == call == 0)
                p.idle(0.125)
                p.backward(3, loss=float(call))
                p.idle(1)
    rows = p.end()
    spent = {"gap": 0.5, "optimizer": 25, "forward": 40, "mid": 2.5, "backward": 60}
    # Time begins with the first forward.
    first = {name: spent[name] for name in spent if name != "gap"} | {"optimizer": 24.75}
    assert [ms(row) for row in rows] == [first, spent, spent]
    assert [(row.micro_steps, row.loss) for row in rows] == [(20, 19.0)] * 3
    assert rows[0].samples == 8.0


def test_lightning_runs_forward_and_backward_inside_its_step():
    p = Program()
    for _ in range(3):
        p.fetch(2)
        p.idle(0.5)
        with p.stepping():
            p.idle(0.25)
            p.forward(3)
            p.idle(0.125)
            p.spend(0.0625, g.TIDY)
            p.backward(4)
            p.idle(1)
        p.idle(0.75)
    rows = p.end()
    first = {"data_wait": 2, "gap": 0.75, "forward": 3, "mid": 0.125, "backward": 4, "optimizer": 1.0625}
    assert [ms(row) for row in rows] == [first, first | {"gap": 1.5}, first | {"gap": 1.5}]


def test_a_step_cut_by_an_exception_does_not_stay_open():
    """torch has no hook for a step that raises: its end never comes."""
    p = Program()
    p.train_on()
    p.train_on()
    p.fetch(2)
    p.forward(3)
    p.backward(4)
    p.note(g.OPTIMIZER, ADAM)
    p.idle(0.5)
    p.fetch(2)
    p.forward(3)
    p.backward(4)
    p.step(1)
    p.idle(5)
    p.train_on()
    rows = p.end()
    assert len(rows) == 4
    assert ms(rows[-1]) == PLAIN | {"gap": 5}
    assert rows[2].micro_steps == 2


# -- where batches are fetched -----------------------------------------------------------------------


def test_the_next_batch_fetched_between_forward_and_backward():
    p = Program()
    p.fetch(9)
    for _ in range(3):
        p.forward(3)
        p.fetch(2)
        p.idle(0.5)
        p.backward(4)
        p.step(1)
    rows = p.end()
    usual = {"data_wait": 2, "forward": 3, "mid": 0.5, "backward": 4, "optimizer": 1}
    assert [ms(row) for row in rows] == [usual | {"data_wait": 11}, usual, usual]
    assert p.automaton.loaders[TRAIN].train_fetches == 4


def test_the_next_batch_fetched_after_the_backward():
    p = Program()
    p.fetch(2)
    for _ in range(3):
        p.forward(3)
        p.backward(4)
        p.fetch(2)
        p.step(1)
    assert [ms(row) for row in p.end()] == [PLAIN | {"data_wait": 4}, PLAIN, PLAIN]


def epoch_with_a_batch_ahead(p: Program, batches: int) -> None:
    """As Accelerate's loaders do it: the next batch is there before the last one is handed out."""
    p.iter(1)
    p.fetch(2)
    for number in range(batches):
        p.fetch(2) if number < batches - 1 else p.exhaust(0.5)
        p.forward(3)
        p.backward(4)
        p.step(1)


def test_a_batch_ahead_counts_every_sample_once():
    p = Program()
    epoch_with_a_batch_ahead(p, 4)
    epoch_with_a_batch_ahead(p, 4)
    rows = p.end()
    assert [row.fetches for row in rows] == [2, 1, 1, 0] * 2
    assert sum(row.samples for row in rows if row.samples == row.samples) == 8 * 8.0
    assert [ms(row)["data_wait"] for row in rows] == [5, 2, 2, 0.5] * 2
    assert p.automaton.loaders[TRAIN].train_fetches == 8


def test_evaluation_with_a_batch_ahead():
    p = Program()
    epoch_with_a_batch_ahead(p, 3)
    p.iter(1)
    p.fetch(2, EVALUATE)
    for number in range(3):
        p.fetch(2, EVALUATE) if number < 2 else p.exhaust(0.5)
        p.ungraded(5)
    epoch_with_a_batch_ahead(p, 3)
    rows = p.end()
    assert ms(rows[3]) == PLAIN | {"data_wait": 5, "evaluation": 1 + 3 * 2 + 0.5 + 3 * 5}
    assert (p.automaton.loaders[EVALUATE].eval_fetches, p.automaton.loaders[EVALUATE].train_fetches) == (3, 0)
    assert p.automaton.loaders[TRAIN].train_fetches == 6


# -- evaluation --------------------------------------------------------------------------------------


def evaluate(
    p: Program, loader: int = EVALUATE, *, module: int = 21, training: bool = False, whole: bool = True
) -> None:
    p.iter(1)
    for _ in range(3):
        p.fetch(2, loader)
        p.idle(0.25)
        p.ungraded(5, module, training=training)
        p.idle(0.5)
    if whole:
        p.exhaust(4)


EVALUATED = 1 + 3 * (2 + 0.25 + 5 + 0.5)


@pytest.mark.parametrize("loader", [EVALUATE, TRAIN], ids=["its own loader", "the same loader"])
@pytest.mark.parametrize("training", [False, True], ids=["in eval mode", "mode forgotten"])
def test_evaluation_after_a_step_is_never_training(loader, training):
    p = Program()
    for _ in range(3):
        p.train_on()
    evaluate(p, loader, training=training)
    p.idle(1)
    p.iter(1)
    p.train_on()
    p.train_on()
    rows = p.end()
    assert [ms(row) for row in (*rows[:3], rows[4])] == [PLAIN] * 4
    assert ms(rows[3]) == PLAIN | {"evaluation": EVALUATED + 4, "gap": 1, "data_wait": 3}
    assert [row.fetches for row in rows] == [1] * 5
    use = p.automaton.loaders
    assert sum(u.eval_fetches for u in use.values()) == 3
    assert (use[TRAIN].train_fetches, use[TRAIN].train_wait_ns) == (5, 10 * MS)
    assert use[loader].eval_wait_ns == 6 * MS


def test_only_the_training_loader_marks_an_epoch():
    p = Program()
    p.iter(1)
    p.train_on()
    evaluate(p)
    p.train_on()
    p.exhaust(1)
    p.iter(1)
    p.train_on()
    assert [bool(row.flags & FLAG_EPOCH) for row in p.end()] == [True, False, True]


def test_evaluation_that_stops_before_its_loader_ends():
    p = Program()
    p.train_on()
    evaluate(p, whole=False)
    p.train_on()
    rows = p.end()
    assert ms(rows[1]) == PLAIN | {"evaluation": EVALUATED}
    assert p.automaton.loaders[EVALUATE].train_fetches == 0


def test_the_end_of_an_epoch_before_an_evaluation_is_the_training_loaders():
    """Stopping its workers takes time, and it is not the evaluation's."""
    p = Program()
    p.train_on()
    p.exhaust(9)
    evaluate(p)
    p.iter(1)
    p.train_on()
    assert ms(p.end()[1]) == PLAIN | {"data_wait": 9 + 1 + 2, "evaluation": EVALUATED + 4}


def test_evaluation_before_the_first_step():
    p = Program()
    evaluate(p)
    for _ in range(3):
        p.train_on()
    rows = p.end()
    assert [ms(row) for row in rows] == [PLAIN | {"evaluation": EVALUATED + 4}, PLAIN, PLAIN]
    assert p.automaton.loaders[EVALUATE].train_fetches == 0
    assert p.automaton.loaders[EVALUATE].eval_fetches == 3


def test_evaluation_on_a_fixed_tensor():
    p = Program()
    p.train_on()
    p.ungraded(6)
    p.idle(0.5)
    p.train_on()
    rows = p.end()
    assert ms(rows[1]) == PLAIN | {"evaluation": 6.5}


def test_evaluation_on_a_fixed_tensor_with_a_reader_by_hand():
    """What follows the evaluation may be the making of the next input: it is left to the stack samples."""
    p = Program()
    for _ in range(2):
        p.forward(3)
        p.backward(4)
        p.step(1)
        p.ungraded(6)
        p.idle(0.5)
        p.ungraded(6)
        p.idle(7)
    rows = p.end()
    assert ms(rows[1]) == {"forward": 3, "backward": 4, "optimizer": 1, "evaluation": 12.5, "gap": 7}


def test_evaluation_on_a_fixed_tensor_after_the_next_batch_was_fetched():
    p = Program()
    p.fetch(2)
    for _ in range(2):
        p.forward(3)
        p.backward(4)
        p.step(1)
        p.fetch(2)
        p.ungraded(6)
    rows = p.end()
    assert ms(rows[1]) == PLAIN | {"evaluation": 6}
    assert p.automaton.loaders[TRAIN].train_fetches == 2


def test_evaluation_at_the_very_end_is_the_tails():
    p = Program()
    p.train_on()
    p.train_on()
    evaluate(p)
    assert len(p.end()) == 2
    assert ms(p.tail) == {"evaluation": EVALUATED + 4}


def test_saving_inside_an_evaluation_is_checkpoint_time():
    p = Program()
    p.train_on()
    p.iter(1)
    p.fetch(2, EVALUATE)
    p.ungraded(5)
    p.spend(3, g.SAVE)
    p.exhaust(1)
    p.train_on()
    assert ms(p.end()[1]) == PLAIN | {"evaluation": 9, "checkpoint": 3}


# -- gradient-free forwards that are training --------------------------------------------------------


def test_a_teacher_is_forward_time():
    p = Program()
    for _ in range(3):
        p.fetch(2)
        p.ungraded(5, TEACHER)
        p.idle(0.5)
        p.forward(3)
        p.ungraded(5, TEACHER)
        p.idle(0.25)
        p.backward(4)
        p.step(1)
    spent = {"data_wait": 2, "gap": 0.5, "forward": 13, "mid": 0.25, "backward": 4, "optimizer": 1}
    assert [ms(row) for row in p.end()] == [spent] * 3
    assert p.automaton.loaders[TRAIN].eval_fetches == 0


def test_a_teacher_between_the_fetches_of_two_loaders():
    p = Program()
    for _ in range(3):
        p.fetch(2, TRAIN)
        p.ungraded(5, TEACHER)
        p.fetch(2, EVALUATE)
        p.forward(3)
        p.backward(4)
        p.step(1)
    assert [ms(row) for row in p.end()] == [PLAIN | {"data_wait": 4, "forward": 8}] * 3
    assert [use.eval_fetches for use in p.automaton.loaders.values()] == [0, 0]


def test_fakes_of_a_gan_without_gradients_are_forward_time():
    p = Program(optimizers=2)
    for _ in range(3):
        gan_cycle(p)
    assert [ms(row)["forward"] for row in p.end()] == [9.0] * 3
    assert p.automaton.ungraded_forwards == 3


# -- without an optimizer ----------------------------------------------------------------------------


def test_without_an_optimizer_each_backward_ends_a_step():
    p = Program(optimizers=0)
    for _ in range(3):
        p.fetch(2)
        p.forward(3)
        p.backward(4, loss=0.5)
        p.idle(1)
    rows = p.end()
    first = {"data_wait": 2, "forward": 3, "backward": 4}
    assert [ms(row) for row in rows] == [first, first | {"gap": 1}, first | {"gap": 1}]
    assert all(row.flags & FLAG_BY_BACKWARD and row.flags & FLAG_LOSS for row in rows)


def test_an_optimizer_that_never_steps_is_given_up_after_a_while():
    p = Program(optimizers=1)
    for _ in range(4104):
        p.forward(1)
        p.backward(1)
    rows = p.end()
    assert [row.micro_steps for row in rows] == [4097, *[1] * 7]
    assert all(row.flags & FLAG_BY_BACKWARD for row in rows)


def test_an_optimizer_that_steps_after_all_ends_steps_again():
    p = Program(optimizers=1)
    for _ in range(4099):
        p.forward(1)
        p.backward(1)
    for _ in range(3):
        p.train_on()
    rows = p.end()
    # The first update may still be one of many small ones; from its step on the optimizer tells.
    assert [bool(row.flags & FLAG_BY_BACKWARD) for row in rows[-2:]] == [False, False]
    assert [ms(row) for row in rows[-2:]] == [PLAIN] * 2


# -- beginnings, ends and what breaks ----------------------------------------------------------------


def test_a_program_of_one_step():
    p = Program()
    p.train_on()
    p.idle(3)
    assert [ms(row) for row in p.end()] == [PLAIN]
    assert (ms(p.tail), p.tail.flags) == ({"gap": 3}, FLAG_TAIL)


def test_a_program_that_does_not_train():
    p = Program()
    p.idle(5)
    p.spend(1, g.SAVE)
    assert p.end() == []
    assert p.out == []


def test_inference_alone_is_no_step():
    p = Program(optimizers=0)
    for _ in range(3):
        p.fetch(2)
        p.ungraded(5)
    assert p.end() == []
    assert ms(p.tail) == {"evaluation": 21}


def test_what_comes_before_the_first_batch_is_startup():
    p = Program()
    p.spend(4, g.SAVE)
    p.spend(4, g.COMMUNICATION)
    assert p.automaton.slot == "startup"
    p.idle(3)
    p.train_on()
    assert p.automaton.first_ns == p.begun + 11 * MS
    assert ms(p.end()[0]) == PLAIN


@pytest.mark.parametrize("place", ["fetch", "forward", "backward"])
def test_a_step_cut_by_an_exception(place):
    p = Program()
    p.train_on()
    p.train_on()
    tail = {}
    if place == "fetch":
        p.exhaust(2)  # the marks of a fetch that raises are those of one that ends
        tail = {"data_wait": 2}
    else:
        p.fetch(2)
        with pytest.raises(ZeroDivisionError), p.forwarding():
            p.idle(3)
            1 / (place != "forward")
            raise ZeroDivisionError
        tail = {"data_wait": 2, "forward": 3}
    if place == "backward":
        with pytest.raises(ZeroDivisionError), p.backwarding():
            p.idle(4)
            raise ZeroDivisionError
        tail |= {"backward": 4}
    assert len(p.end()) == 2
    assert ms(p.tail) == tail


def test_a_batch_given_up_is_part_of_the_next_step():
    """`except RuntimeError: continue` around forward and backward, as for out of memory."""
    p = Program()
    p.train_on()
    p.fetch(2)
    p.forward(1)
    p.train_on()
    rows = p.end()
    assert ms(rows[1]) == PLAIN | {"data_wait": 4, "forward": 4}
    assert rows[1].fetches == 2


def test_stop_iteration_between_epochs_is_waiting():
    p = Program()
    for _ in range(2):
        p.iter(1)
        p.train_on()
        p.train_on()
        p.exhaust(3)
        p.idle(0.5)
    rows = p.end()
    assert ms(rows[2]) == PLAIN | {"data_wait": 6, "gap": 0.5}
    assert p.automaton.loaders[TRAIN].train_fetches == 4
    assert ms(p.tail) == {"data_wait": 3, "gap": 0.5}


# -- what is measured beside time --------------------------------------------------------------------


def test_blocked_time_is_wall_less_cpu_less_collectives_inside():
    p = Program()
    for _ in range(2):
        p.fetch(2)
        with p.forwarding(cpu_ms=2, synced=True):
            p.idle(3)
            p.spend(5, g.COMMUNICATION)
        with p.backwarding(cpu_ms=1):
            p.idle(4)
        p.step(1)
    rows = p.end()
    assert [ms(row) for row in rows] == [PLAIN | {"communication": 5}] * 2
    assert [(row.forward_blocked_ns, row.backward_blocked_ns) for row in rows] == [(1 * MS, 3 * MS)] * 2


def test_blocked_time_adds_up_over_micro_steps():
    p = Program()
    for _ in range(2):
        for _ in range(2):
            p.forward(3, cpu_ms=2)
            p.backward(4, cpu_ms=9)
        p.step(1)
    assert [(r.forward_blocked_ns, r.backward_blocked_ns) for r in p.end()] == [(2 * MS, 0)] * 2


def test_copies_and_collectives_are_phases():
    p = Program()
    for _ in range(2):
        p.fetch(2)
        p.spend(1.5, g.TRANSFER)
        p.forward(3)
        p.backward(4)
        p.spend(2.5, g.COMMUNICATION)
        p.step(1)
        p.spend(7, g.SAVE)
    usual = PLAIN | {"transfer": 1.5, "communication": 2.5}
    assert [ms(row) for row in p.end()] == [usual, usual | {"checkpoint": 7}]


def test_the_slot_now_is_told_to_the_sampler():
    p = Program()
    a = p.automaton
    seen = [a.slot]
    with p.phase(g.FETCH, end=(TRAIN, 8.0, None)):
        seen.append(a.slot)
    seen.append(a.slot)
    with p.forwarding():
        seen.append(a.slot)
    seen.append(a.slot)
    with p.backwarding():
        seen.append(a.slot)
    seen.append(a.slot)
    with p.stepping():
        seen.append(a.slot)
    seen.append(a.slot)
    with p.phase(g.SAVE):
        seen.append(a.slot)
    p.fetch(1, EVALUATE)
    with p.forwarding(graded=False, training=False):
        seen.append(a.slot)
    seen.append(a.slot)
    assert seen == [
        "startup",
        "data_wait",
        "gap",
        "forward",
        "mid",
        "backward",
        "other",
        "optimizer",
        "gap",
        "checkpoint",
        "evaluation",
        "evaluation",
    ]


def test_an_optimizer_stepped_once_before_training_is_no_step():
    """To have its state made, or for a schedule that wants it."""
    p = Program()
    p.step(5)
    p.idle(1)
    for _ in range(3):
        p.train_on()
    assert [ms(row) for row in p.end()] == [PLAIN] * 3


def test_finishing_before_anything_says_nothing():
    rows = []
    Automaton(rows.append).finish(123)
    assert rows == []


@pytest.mark.parametrize("micro_steps", [1, 4])
def test_an_optimizer_that_steps_unseen(micro_steps):
    """A compiled step calls no hook; changed parameters tell that it was made, after the last backward."""
    p = Program()
    for number in range(30):
        for micro_step in range(micro_steps):
            p.fetch(2)
            if number and not micro_step:
                p.note(g.UPDATED)
            p.forward(3)
            p.backward(4)
        p.idle(5)
    p.note(g.UPDATED)
    rows = p.end()
    assert [row.micro_steps for row in rows] == [micro_steps] * 30
    own = {"data_wait": 2 * micro_steps, "forward": 3 * micro_steps, "backward": 4 * micro_steps}
    assert ms(rows[0]) == own
    assert [ms(row) for row in rows[1:]] == [own | {"gap": 5}] * 29
    assert all(row.flags & FLAG_BY_BACKWARD for row in rows)


def test_gradients_of_each_sample_are_one_step():
    """Clipping each sample's gradient: many backward passes, each on gradients that were zeroed, and one update."""
    p = Program()
    for _ in range(3):
        p.fetch(2, samples=600.0)
        for _ in range(600):
            p.spend(1, g.TIDY)
            p.forward(1)
            p.backward(1)
        p.step(1)
    assert [row.micro_steps for row in p.end()] == [600] * 3


@pytest.mark.parametrize("training", [True, False])
def test_what_is_between_the_forwards_of_a_rollout_is_left_to_the_samples(training):
    """The environment answers between forwards; a policy in eval mode that feeds itself is no evaluation either."""
    p = Program()
    p.automaton.rollouts.add(MODEL)
    for _ in range(3):
        for _ in range(10):
            p.ungraded(1, training=training)
            p.idle(9)
            assert p.automaton.slot == "mid"
        p.forward(3)
        p.backward(4)
        p.step(1)
    assert [ms(row) for row in p.end()] == [{"forward": 13, "mid": 90, "backward": 4, "optimizer": 1}] * 3


# -- evaluation with gradients on ---------------------------------------------------------------------


def _train(p, steps=3):
    p.iter(1)
    for _ in range(steps):
        p.train_on()
    p.exhaust(1)


def _only_training(rows, per_step=PLAIN):
    """The rows without the evaluations before them: (phases that are not evaluation, samples)."""
    return [({k: v for k, v in ms(row).items() if k != "evaluation"}, row.samples, row.micro_steps) for row in rows]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("loader", [EVALUATE, TRAIN])
def test_evaluation_with_gradients_is_evaluation(loader, training):
    p = Program()
    for _ in range(2):
        _train(p)
        p.iter(1)
        for _ in range(20):
            p.fetch(3, loader, samples=5.0)
            p.forward(2, training=training, samples=5.0)
            p.idle(1)
        p.exhaust(1)
        p.idle(7)
    rows = p.end()
    assert len(rows) == 6
    found = ms(rows[3])
    assert found["evaluation"] >= 120
    assert (found["forward"], found["backward"], found["optimizer"]) == (3, 4, 1)
    assert found["data_wait"] <= 7
    assert [row.samples for row in rows] == [8.0] * 6
    assert [row.fetches for row in rows] == [1] * 6
    assert p.automaton.loaders[loader].eval_fetches == 40
    assert p.automaton.loaders[TRAIN].train_fetches == 6


def test_a_validation_that_differentiates_is_evaluation():
    """Forces are derivatives of the energy: their validation runs backward for every batch, and updates nothing."""
    p = Program()
    for _ in range(2):
        _train(p)
        p.iter(1)
        for _ in range(700):
            p.fetch(1, EVALUATE)
            p.forward(1, training=False)
            p.backward(1)
        p.exhaust(1)
    rows = p.end()
    assert [row.micro_steps for row in rows] == [1] * 6
    assert ms(rows[3])["evaluation"] >= 2100
    assert p.automaton.loaders[EVALUATE].train_fetches == 0


def test_training_in_eval_mode_is_training():
    """Frozen batch norm: the model was in training mode at first, and is in eval mode from some step on."""
    p = Program()
    _train(p)
    for _ in range(4):
        p.fetch(2)
        p.forward(3, training=False)
        p.backward(4)
        p.step(1)
    rows = p.end()
    assert len(rows) == 7
    assert [ms(row) for row in rows[-3:]] == [PLAIN] * 3
    assert p.automaton.loaders[TRAIN].train_fetches == 7


def test_one_backward_for_the_losses_of_several_batches_is_training():
    p = Program()
    p.iter(1)
    for _ in range(3):
        for _ in range(4):
            p.fetch(2)
            p.forward(3)
        p.backward(4)
        p.step(1)
    p.exhaust(1)
    rows = p.end()
    assert [ms(row) for row in rows[1:]] == [{"data_wait": 8, "forward": 12, "backward": 4, "optimizer": 1}] * 2
    assert [row.samples for row in rows] == [32.0] * 3


def test_the_loss_of_a_whole_pass_is_training():
    """Full-batch training: the backward comes when the loader has ended."""
    p = Program()
    for _ in range(3):
        p.iter(1)
        for _ in range(4):
            p.fetch(2)
            p.forward(3)
        p.exhaust(1)
        p.backward(4)
        p.step(1)
    rows = p.end()
    assert [row.fetches for row in rows] == [4] * 3
    assert ms(rows[-1]) == {"data_wait": 10, "forward": 12, "backward": 4, "optimizer": 1}


def test_batches_of_two_loaders_in_one_step_are_training():
    p = Program()
    for _ in range(4):
        p.fetch(2, TRAIN)
        p.forward(3)
        p.fetch(2, EVALUATE)
        p.forward(3)
        p.backward(4)
        p.step(1)
    rows = p.end()
    assert [ms(row) for row in rows[1:]] == [{"data_wait": 4, "forward": 6, "backward": 4, "optimizer": 1}] * 3


def test_an_evaluation_with_gradients_that_stops_early():
    """The validation loader is not read to its end, and the training loader goes on where it was."""
    p = Program()
    _train(p)
    for _ in range(5):
        p.fetch(3, EVALUATE)
        p.forward(2)
    for _ in range(3):
        p.train_on()
    rows = p.end()
    assert [ms(row) for row in rows[-2:]] == [PLAIN] * 2
    assert ms(rows[3])["evaluation"] == 25
    assert p.automaton.loaders[EVALUATE].train_fetches == 0


def test_two_reduced_networks_are_one_exchange_each():
    """A GAN of two DDP networks exchanges the gradients of each once: nothing is accumulated."""
    p = Program(optimizers=2)
    for _ in range(4):
        p.forward(1, GAN_G, synced=True)
        p.forward(1, GAN_D, synced=True)
        p.backward(1)
        p.step(1, CRITIC)
        p.forward(1, GAN_D, synced=True)
        p.backward(1)
        p.step(1, GENERATOR)
    assert [row.synced for row in p.end()] == [1] * 4


def test_exchanges_of_an_accumulation_add_up():
    p = Program()
    for _ in range(3):
        for _ in range(4):
            p.forward(1, synced=True)
            p.backward(1)
        p.step(1)
    assert [row.synced for row in p.end()] == [4] * 3


def test_gradients_zeroed_once_in_a_long_accumulation_are_no_steps():
    p = Program()
    for _ in range(2):
        p.spend(1, g.TIDY)
        for _ in range(40):
            p.forward(3)
            p.backward(4)
        p.step(1)
    assert [row.micro_steps for row in p.end()] == [40, 40]


def without_a_loader(spare: int, every: int, backward_ms: float, samples: int = 8, steps: int = 40) -> list[dict]:
    """Steps of one forward and one backward pass; before some of them there are more forward passes with gradients."""
    p = Program()
    for step in range(steps):
        if step % every == every - 1:
            for _ in range(spare):
                p.forward(3, samples=samples)
                p.idle(0.5)
        p.forward(3)
        p.backward(backward_ms if step % every == every - 1 else 4)
        p.step(1)
    rows = p.end()
    assert len(rows) == steps
    return [{**ms(row), "samples": row.samples} for row in rows]


@pytest.mark.parametrize("every", [3, 10])
def test_forward_passes_that_no_backward_pass_used_are_an_evaluation(every):
    rows = without_a_loader(spare=30, every=every, backward_ms=5.0, samples=64)
    usual = {"forward": 3, "backward": 4, "optimizer": 1, "samples": 8.0}
    assert rows[2 * every] == usual
    late = [row for number, row in enumerate(rows) if number % every == every - 1 and number > 20]
    assert late == [usual | {"backward": 5, "evaluation": 30 * 3.5}] * len(late)


@pytest.mark.parametrize(
    "spare, backward_ms",
    [(30, 100.0), (30, 9.0), (7, 4.0)],  # all were used, or more than the last one, or they are few
)
def test_forward_passes_that_a_backward_pass_used_are_training(spare, backward_ms):
    assert not any(row.get("evaluation") for row in without_a_loader(spare, 10, backward_ms))


def test_episodes_of_any_length_are_training():
    """The time of a backward pass is proportional to the number of forward passes that it used."""
    p = Program()
    for step in range(60):
        length = (5, 60, 5, 12, 200)[step % 5]
        for _ in range(length):
            p.forward(0.5)
            p.idle(0.25)
        p.backward(0.5 * length)
        p.step(1)
    assert not any(ms(row).get("evaluation") for row in p.end())
