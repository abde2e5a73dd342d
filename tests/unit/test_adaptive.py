"""When an adaptive edge stores."""

from millstream.core.topology import CALM, EdgeState, edge_after


def follow(*millis, slow_after=100):
    state, found = EdgeState(), []
    for each in millis:
        state = edge_after(state, state.stored, state.why, each, slow_after)
        found.append(state.stored)
    return found, state


def test_a_slow_consumer_has_its_edge_store_from_the_next_epoch_on():
    assert follow(50, 100, 101)[0] == [False, False, True]
    assert "took 101 ms, more than 100 ms" in follow(101)[1].why


def test_it_goes_back_only_after_several_quick_epochs_in_a_row():
    found, state = follow(500, *[10] * CALM)
    assert found == [True] * CALM + [False]
    assert state.why == ""


def test_around_the_limit_it_does_not_flap():
    assert all(follow(500, 99, 60, 99, 60, 99, 60)[0])
    assert all(follow(500, 10, 10, 99, 10, 10)[0])


def test_an_epoch_without_records_says_nothing():
    assert follow(500, 10, None, 10, None, 10)[0] == [True, True, True, True, True, False]


def test_a_failed_consumer_is_stored_with_its_reason():
    state = edge_after(EdgeState(), True, "its consumer failed: boom", None, 100)
    assert state.stored and state.was_stored and "boom" in state.why
