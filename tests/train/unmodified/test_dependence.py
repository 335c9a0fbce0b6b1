"""Programs that nobody wrote for several ranks: each trains as on one process, or is refused; none trains otherwise."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.train.unmodified import dependent, faults, ordinary, remembers, touched
from tests.train.unmodified.test_unmodified import HERE, environment, paceline

NEAR = 2e-5
TOLD = "stderr"
EXPECTED_EQUAL = {
    *("mean_loss_by_attribute", "features_by_attribute", "features_by_hook", "features_by_list"),
    *("state_in_evaluation", "bank_in_evaluation", "in_place_input"),
    *("another_layer_later", "other_operations_at_each_call", "settings_of_each_step"),
}


def results(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    assert done.returncode == 0, done.stderr[-4000:]
    return {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()} | {TOLD: done.stderr.splitlines()}


def on_both(folder, program, layout, *names):
    """What a program prints on one process, and on the ranks of a layout."""
    line = [sys.executable, HERE / program, *names]
    one = subprocess.run(line, capture_output=True, text=True, timeout=300, env=environment(), cwd=folder)
    several = paceline(folder, "-q", "--no-profile", "--layout", layout, HERE / program, *names, timeout_s=300)
    return results(one), results(several)


LAYOUTS = ("dp=2", "shard=2")
REFUSED_OF_SHARD = {
    *("limited_memory_bfgs", "stochastic_depth", "penalty_and_learned_temperature", "lazy_layers"),
    *("real_rows_penalised", "differential_equation", "gradients_by_name", "traced_before_further_steps"),
    *("weights_mask_in_forward", "weights_limit_in_forward", "weights_norm_in_forward", "weights_decay_in_forward"),
    *("other_format_later", "new_heads_on_one_body", "pruned_after_training", "normed_after_training"),
    *(
        "weights_of_several_losses",
        "weight_of_two_models",
        "returned_weight",
        "gradient_of_a_plain_parameter",
        "lazy_layers_and_statistics",
    ),
}


@pytest.fixture(scope="module", params=LAYOUTS)
def dependences(request, tmp_path_factory):
    return on_both(tmp_path_factory.mktemp("dependent"), "dependent.py", request.param)


@pytest.fixture(scope="module", params=LAYOUTS)
def ordinaries(request, tmp_path_factory):
    return request.param, on_both(tmp_path_factory.mktemp("ordinary"), "ordinary.py", request.param)


@pytest.fixture(scope="module", params=LAYOUTS)
def touches(request, tmp_path_factory):
    return request.param, on_both(tmp_path_factory.mktemp("touched"), "touched.py", request.param)


def is_equal(one: list[str], several: list[str]) -> bool:
    return [float(each) for each in several] == pytest.approx([float(each) for each in one], rel=NEAR, abs=NEAR)


def check_equal(found, name: str) -> None:
    layout, (one, several) = found
    if layout == "shard=2" and name in REFUSED_OF_SHARD:
        assert several[name] == ["refused", "2"]
        return
    assert several[name][0] not in ("refused", "failed"), (several[name], several[TOLD])
    assert is_equal(one[name], several[name]), (one[name], several[name])


@pytest.mark.parametrize("name", dependent.CASES)
def test_rows_that_depend_on_each_other_are_refused_or_trained_with_as_on_one_process(dependences, name):
    one, several = (found[name] for found in dependences)
    if name in EXPECTED_EQUAL:
        assert is_equal(one, several), (one, several)
    else:
        assert several == ["refused", "2"], (one, several)


@pytest.mark.parametrize("name", ordinary.CASES)
def test_ordinary_programs_are_not_refused_and_train_as_on_one_process(ordinaries, name):
    check_equal(ordinaries, name)


@pytest.fixture(scope="module")
def memories(tmp_path_factory):
    return "dp=2", on_both(tmp_path_factory.mktemp("remembers"), "remembers.py", "dp=2")


@pytest.mark.parametrize("name", remembers.CASES)
def test_data_sets_that_remember_what_was_read_give_the_samples_of_one_process(memories, name):
    check_equal(memories, name)


def test_a_cache_is_no_state_of_a_data_set(memories):
    _, (_, several) = memories
    assert len(several[TOLD]) >= 14
    assert not [line for line in several[TOLD] if "Remembers.cache" in line]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_state_that_cannot_be_found_is_noticed_when_a_sample_is_read_again(tmp_path, workers):
    line = ["-q", "--no-profile", "--layout", "dp=2", HERE / "remembers.py", "in_a_database", workers]
    done = paceline(tmp_path, *line, timeout_s=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert "a sample of Remembers differs when it is read again after other samples" in done.stderr


def test_unseeded_noise_in_workers_is_no_state(tmp_path):
    one, several = on_both(tmp_path, "remembers.py", "dp=2", "noisy", "2")
    assert is_equal(one["noisy"], several["noisy"])
    (told,) = several[TOLD]
    assert told.endswith("because each reading of a sample gives another result")


@pytest.mark.parametrize("name", touched.CASES)
def test_weights_that_the_program_touches_itself_are_those_of_one_process(touches, name):
    check_equal(touches, name)


LOSS, CALLS, DIFFERENT = "a loss", "the order of model calls and optimizer steps", "the ranks have different inputs"
FAULTS = {  # reason of the refusal, where a program cannot train as on one process
    **dict.fromkeys(["targets_of_the_process", "weighed_by_the_system"], LOSS),
    "penalty_by_the_system": LOSS,
    **dict.fromkeys(["hard_rows_of_numpy", "hard_rows_of_a_bit_generator"], LOSS),
    "noise_of_the_process": "an input of a model",
    "rate_of_the_time": {"dp=2": "learning rate", "shard=2": "split weights"},
    "rate_of_one_step": "learning rate",
    **dict.fromkeys(["frozen_on_one_rank", "step_left_out_on_one_rank"], CALLS),
    **dict.fromkeys(["buffer_of_one_rank", "dropout_rate_of_one_rank"], "a buffer or a setting of a model"),
    "clipped_otherwise_on_one_rank": {"dp=2": "weight 0", "shard=2": "split weights"},
    "gradient_dropped_on_one_rank": {"dp=2": "weight 0", "shard=2": "split weights"},
    **dict.fromkeys(["order_of_objects", "order_of_unique_names"], DIFFERENT),
    "samples_as_threads_load_them": "TensorDataset.tensors is not the same",
    "samples_listed_outside_of_the_dataset": "Listed.order is not the same",
    "a_list_with_one_tensor_for_each_sample": "the rows of each entry were split, not the list",
    "packed_sequences": "it fails for a part of the batch",
    "averaged_weights_called_in_training": {"dp=2": "", "shard=2": "no optimizer has the weights"},
    "backward_left_out_on_one_rank": "the ranks wait for each other without end (rank 0 at faults.py:",
}


@pytest.fixture(scope="module", params=LAYOUTS)
def planted(request, tmp_path_factory):
    """All faults on one process and on two ranks; the last one ends the program."""
    folder, program = tmp_path_factory.mktemp("faults"), HERE / "faults.py"
    named = {**environment(), "PYTHONHASHSEED": "0"}
    line = [sys.executable, "-m", "paceline", "run", "-q", "--no-profile", "--layout", request.param, program]
    one, several = (
        subprocess.run(each, capture_output=True, text=True, timeout=300, env=named, cwd=folder)
        for each in ([sys.executable, program], line)
    )
    assert several.returncode == 2, several.stderr[-4000:]
    said = dict(each.split(": ", 1) for each in several.stderr.splitlines() if ": " in each)
    found = {line.split()[0]: line.split()[1:] for line in several.stdout.splitlines()}
    return request.param, results(one), found, said


@pytest.mark.parametrize("name", faults.CASES)
def test_planted_faults_are_refused_with_their_reason_or_change_nothing(planted, name):
    layout, one, several, said = planted
    why = FAULTS.get(name, "")
    why = why[layout] if isinstance(why, dict) else why
    if not why:
        assert several[name][0] != "refused" and is_equal(one[name], several[name]), (several[name], one[name])
        return
    assert several.get(name, ["refused", "2"]) == ["refused", "2"]
    assert f"--layout {layout}: " in said[name] and why in said[name], said[name]


DRIFTS = {
    "drawn_rate": "learning rate",
    "other_rate_later": "learning rate",
    "noise_in_weights": "weight 0.weight",
    "other_momentum": "group 0 of SGD",
}


def test_ranks_that_come_apart_are_ended_with_what_differs(tmp_path):
    names = ["unseeded_generator", *DRIFTS]
    done = paceline(tmp_path, "-q", "--no-profile", "--layout", "dp=2", HERE / "drifts.py", *names)
    assert done.stdout.splitlines() == ["unseeded_generator 0", *(f"{name} 2" for name in DRIFTS)]
    said = dict(line.split(": ", 1) for line in done.stderr.splitlines() if ": " in line)
    for name, what in DRIFTS.items():
        assert what in said[name] and "differs between processes" in said[name], said[name]


def test_ranks_are_compared_once_more_at_the_end(tmp_path):
    done = paceline(tmp_path, "-q", "--no-profile", "--layout", "dp=2", HERE / "drifts.py", "at_the_end")
    assert done.returncode == 2 and "not the same on rank 1" in done.stderr, done.stderr


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_last_call_of_a_model_is_compared_at_the_end(tmp_path, layout):
    done = paceline(tmp_path, "-q", "--no-profile", "--layout", layout, HERE / "last_calls.py", "mixes_between")
    assert done.returncode == 2, done.stderr
    assert "Model cannot be given parts of a batch" in done.stderr and "noticed at call 40" in done.stderr


@pytest.mark.parametrize(
    "name", ["independent", "other_forward", "other_attribute", "half", "hooked", "kept_on_one_rank"]
)
def test_a_model_that_the_program_changes_after_training_is_left_alone(tmp_path, name):
    done = paceline(tmp_path, "-q", "--no-profile", "--layout", "dp=2", HERE / "last_calls.py", name)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_ranks_compute_with_split_weights_is_compared(tmp_path):
    done = paceline(tmp_path, "-q", "--no-profile", "--layout", "shard=2", HERE / "drifts.py", "noise_in_weights")
    assert done.stdout == "noise_in_weights 2\n"
    assert "computes with split weights is not the same on rank 1 as on rank 0" in done.stderr


def test_replicas_of_pieces_of_weights_are_compared(tmp_path):
    line = ["-q", "--no-profile", "--layout", "dp=2,shard=2", HERE / "drifts.py", "wrong_update_of_a_replica"]
    done = paceline(tmp_path, *line)
    assert done.stdout == "wrong_update_of_a_replica 2\n"
    assert "(16x12) is not the same on rank 2 as on rank 0" in done.stderr, done.stderr


def test_noise_in_a_replica_of_a_piece_is_told(tmp_path):
    line = ["-q", "--no-profile", "--layout", "dp=2,shard=2", HERE / "drifts.py", "noise_in_a_replica"]
    done = paceline(tmp_path, *line)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "a weight (16, 12) has changed on rank 2 between two optimizer steps" in done.stderr, done.stderr


def test_a_changed_bit_of_a_piece_or_of_a_gathered_weight_is_told(tmp_path):
    names = ["bit_of_a_gathered_weight", "bit_of_a_piece"]
    done = paceline(tmp_path, "-q", "--no-profile", "--layout", "shard=2", HERE / "drifts.py", *names, timeout_s=240)
    assert (done.returncode, done.stdout) == (2, "bit_of_a_gathered_weight 2\n"), done.stderr
    assert "that rank 1 has gathered is not made of the pieces of all ranks" in done.stderr
    assert "a weight (3, 16) has changed on rank 1 between two optimizer steps" in done.stderr
