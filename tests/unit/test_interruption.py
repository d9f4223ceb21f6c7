import os
import signal

import pytest

from limner.training.context import SIGNALS, Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_deferred_and_ctrl_c_is_raised_then(number: int) -> None:
    with Interruption() as interruption:
        assert not interruption.requested
        os.kill(os.getpid(), number)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_previous_handler_is_restored() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interruption():
        assert all(signal.getsignal(number) not in before for number in SIGNALS)
    assert [signal.getsignal(number) for number in SIGNALS] == before
