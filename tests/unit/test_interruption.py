import os
import signal

import pytest

from limner.training.interruption import Interruption


def test_the_first_interrupt_is_deferred_and_the_second_is_raised() -> None:
    with Interruption() as interruption:
        interruption.raise_if_requested()
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            interruption.raise_if_requested()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_previous_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
