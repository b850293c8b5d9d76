"""Tokens, and calls that carry them."""

import threading
import time

import pytest

from ditto_tasks.contracts.call import NO_CALL, Call
from ditto_tasks.contracts.cancellation import NEVER_CANCELLED, Cancellation, either
from ditto_tasks.contracts.errors import DeadlineExceeded, InvocationCancelled


def test_a_token_is_set_once_and_the_first_reason_stands() -> None:
    token = Cancellation()
    assert (token.is_cancelled, token.reason, token.wait(0)) == (False, "", False)
    token.raise_if_cancelled()
    token.cancel("first")
    token.cancel("second")
    assert (token.is_cancelled, token.reason, token.wait(0)) == (True, "first", True)
    with pytest.raises(InvocationCancelled, match="first"):
        token.raise_if_cancelled()


def test_callbacks_run_once_when_the_token_is_set() -> None:
    token, heard = Cancellation(), []
    token.on_cancel(lambda: heard.append("a"))
    forget = token.on_cancel(lambda: heard.append("b"))
    forget()
    forget()
    token.cancel()
    token.cancel()
    assert heard == ["a"]
    token.on_cancel(lambda: heard.append("late"))()
    assert heard == ["a", "late"]


def test_a_callback_sees_the_reason() -> None:
    token, heard = Cancellation(), []
    token.on_cancel(lambda: heard.append(token.reason))
    token.cancel("why")
    assert heard == ["why"]


def test_a_wait_in_another_thread_ends_with_the_cancel() -> None:
    token, ended = Cancellation(), threading.Event()

    def wait() -> None:
        if token.wait(30):
            ended.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    token.cancel()
    waiter.join(30)
    assert ended.is_set()


def test_of_many_threads_that_cancel_one_gives_the_reason() -> None:
    token, heard = Cancellation(), []
    token.on_cancel(lambda: heard.append(token.reason))
    threads = [threading.Thread(target=token.cancel, args=(str(n),)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert heard == [token.reason]


@pytest.mark.parametrize("which", [0, 1])
def test_either_of_two_tokens_sets_the_third(which: int) -> None:
    tokens = Cancellation(), Cancellation()
    with either(*tokens) as both:
        assert not both.is_cancelled
        tokens[which].cancel("this one")
        assert both.reason == "this one"


def test_after_its_block_a_token_of_two_hears_nothing() -> None:
    first = Cancellation()
    with either(first, NEVER_CANCELLED) as both:
        pass
    first.cancel()
    assert not both.is_cancelled


def test_a_token_set_before_the_block_counts() -> None:
    first = Cancellation()
    first.cancel("early")
    with either(NEVER_CANCELLED, first) as both:
        assert both.reason == "early"


def test_a_call_without_limits_goes_on() -> None:
    assert NO_CALL.remaining() is None
    NO_CALL.check()


def test_a_call_tells_what_time_is_left() -> None:
    call = Call("id", deadline=time.monotonic() + 100)
    remaining = call.remaining()
    assert remaining is not None
    assert 90 < remaining <= 100
    call.check()


def test_a_call_whose_time_is_used_up_stops() -> None:
    call = Call("id", deadline=time.monotonic())
    assert call.remaining() == 0
    with pytest.raises(DeadlineExceeded):
        call.check()


def test_a_cancel_comes_before_a_deadline() -> None:
    token = Cancellation()
    token.cancel("not wanted")
    with pytest.raises(InvocationCancelled, match="not wanted"):
        Call("id", token, deadline=time.monotonic()).check()
