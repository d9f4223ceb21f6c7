import os
import signal

import pytest

from limner.training.interruption import Interruption


def test_the_first_interrupt_is_deferred_and_the_second_is_raised() -> None:
    with Interruption() as interruption:
        interruption.obey()
        os.kill(os.getpid(), signal.SIGINT)
        assert interruption.asked
        with pytest.raises(KeyboardInterrupt):
            interruption.obey()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_previous_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
