"""Whatever order moments come in, rows tile time, their slots fill them, and nothing raises."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.inprocess.recorder.moments import Program, check_tiling

from paceline.inprocess.recorder import probe_state as g
from paceline.inprocess.recorder.steps.state_machine import Automaton, Forward

PAIRS = (g.ITER, g.FETCH, g.FORWARD, g.BACKWARD, g.OPTIMIZER, g.COMMUNICATION, g.SAVE, g.TRANSFER, g.TIDY)

gaps = st.integers(0, 9).map(lambda n: n * 1000 + n % 3)
maybe_cpu = st.none() | st.integers(0, 5000)
forwards = st.builds(
    Forward,
    graded=st.booleans(),
    training=st.booleans(),
    module=st.integers(1, 3),
    samples=st.none() | st.integers(1, 64).map(float),
    fresh=st.booleans(),
    synced=st.booleans(),
    frames=st.none(),
)
losses = st.none() | st.floats(allow_nan=True)
optimizers = st.integers(1, 3)
loaders = st.integers(-1, 2)


@st.composite
def details(draw, code):
    """What a moment of this code carries."""
    if code == g.FETCH + 1:
        loader = draw(loaders)
        return (loader, None, None) if loader < 0 else (loader, draw(st.none() | st.just(4.0)), draw(maybe_cpu))
    if code == g.FORWARD:
        return (draw(forwards),)
    if code in (g.FORWARD + 1, g.BACKWARD + 1):
        return (draw(maybe_cpu),)
    if code == g.BACKWARD:
        return (draw(losses), None)
    if code in (g.OPTIMIZER, g.OPTIMIZER + 1):
        return (draw(optimizers),)
    return ()


CLOSE = "close"


def phase(code):
    """How one phase begins and ends; both ends of an optimizer name the same one."""
    both = details(code).flatmap(
        lambda begin: (st.just(begin) if code == g.OPTIMIZER else details(code + 1)).map(lambda end: (begin, end))
    )
    cut = st.integers(0, 19).map(lambda n: code == g.OPTIMIZER and n == 0)  # an exception: torch tells no end
    return st.tuples(gaps, st.just(code), both, cut)


turns = st.lists(st.tuples(gaps, st.just(CLOSE)) | st.sampled_from(PAIRS).flatmap(phase), max_size=50)


@st.composite
def programs(draw):
    """Phases that begin and end in the order of a call stack."""
    moments, ends = [], []
    for turn in [*draw(turns), *[(1000, CLOSE)] * 50]:
        if turn[1] != CLOSE:
            gap, code, (begin, end), cut = turn
            moments.append((gap, code, *begin))
            ends.append(None if cut else (code + 1, *end))
        elif ends and (end := ends.pop()) is not None:
            moments.append((turn[0], *end))
    return moments


anything = st.lists(
    st.sampled_from([*PAIRS, *(code + 1 for code in PAIRS), g.MADE_OPTIMIZER, g.UPDATED]).flatmap(
        lambda code: st.tuples(gaps, details(code)).map(lambda pair: (pair[0], code, *pair[1]))
    ),
    max_size=60,
)


def play(moments, made: int, last_gap: int):
    out = []
    automaton = Automaton(out.append)
    now = 10_000
    for _ in range(made):
        automaton.feed((now, g.MADE_OPTIMIZER))
    for gap, code, *rest in moments:
        now += gap
        automaton.feed((now, code, *rest))
        assert isinstance(automaton.slot, str)
    automaton.finish(now + last_gap)
    return automaton, out, now + last_gap


@given(programs(), st.integers(0, 2), gaps)
@settings(max_examples=150, deadline=None)
def test_nested_moments_make_rows_that_tile_time(moments, made, last_gap):
    automaton, rows, end = play(moments, made, last_gap)
    if automaton.first_ns is None:
        assert rows == []
    else:
        check_tiling(rows, automaton.first_ns, end)


@given(anything, st.integers(0, 2), gaps)
@settings(max_examples=150, deadline=None)
def test_moments_in_any_order_make_rows_that_tile_time(moments, made, last_gap):
    automaton, rows, end = play(moments, made, last_gap)
    if automaton.first_ns is None:
        assert rows == []
    else:
        check_tiling(rows, automaton.first_ns, end)


@given(anything)
@settings(max_examples=100, deadline=None)
def test_every_fetch_is_booked_once(moments):
    automaton, rows, _ = play(moments, 1, 5)
    begun, asked = False, 0
    for _, code, *rest in moments:
        begun = begun or code in (g.ITER, g.FETCH, g.FORWARD, g.BACKWARD)
        asked += begun and code == g.FETCH + 1 and rest[0] >= 0
    booked = sum(use.train_fetches + use.eval_fetches for use in automaton.loaders.values())
    assert booked == asked
    assert sum(row.fetches for row in rows) == sum(use.train_fetches for use in automaton.loaders.values())


@given(st.lists(st.integers(-50, 200), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_moments_of_two_threads_out_of_order(steps):
    """Two threads may note their moments a little out of order; time does not run backwards for that."""
    p = Program()
    latest = 0
    for step in steps:
        p.now += step
        p.note(g.BACKWARD, None, None)
        p.now += 3
        p.note(g.BACKWARD + 1, None)
        p.note(g.OPTIMIZER, 1)
        p.note(g.OPTIMIZER + 1, 1)
        latest = max(latest, p.now)
    p.automaton.finish(p.now)
    check_tiling(p.out, p.automaton.first_ns, max(latest, p.out[-1].end_ns))


@given(st.integers(1, 12), st.lists(st.sampled_from(["plain", "accumulate", "gan", "lbfgs"]), max_size=6))
@settings(max_examples=60, deadline=None)
def test_the_number_of_updates_is_the_number_of_rows(steps, habits):
    """Whatever habits a program changes between, as long as one optimizer closes each cycle."""
    p = Program()
    expected = 0
    for number, habit in enumerate(["plain", *habits]):
        for _ in range(steps + (number == 0)):  # the first optimizer must step twice to be known
            if habit == "lbfgs":
                with p.stepping(1):
                    for _ in range(3):
                        p.forward(1)
                        p.backward(1)
            else:
                for _ in range(4 if habit == "accumulate" else 1):
                    p.fetch(1, number % 2)
                    p.forward(1)
                    p.backward(1)
                if habit == "gan":
                    p.step(1, 2)
                    p.forward(1)
                    p.backward(1)
                p.step(1, 1)
            expected += 1
    assert len(p.end()) == expected
