"""Bounds of the numbers that users set: named types for the fields of settings and for the options of commands.

A bound excludes values that cannot work or would exhaust any machine; whether the memory of this machine is enough is
estimated from the values together (`limner.process.require_memory`). A field of settings has such a type, and an option
of a command parses its value by the bounds of the type, so that both accept the same numbers, with the same error
message. A type has a name here if several fields or options have it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from limner.errors import shortened

_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,4000}\s*")  # Python refuses to convert more digits


@dataclass(frozen=True)
class Bounds:
    """Range of a number; NaN and infinity are outside of every range."""

    low: float
    high: float
    whole: bool = True
    low_excluded: bool = False
    high_excluded: bool = False
    step: int = 1
    """Divisor of all numbers in the range."""

    def __str__(self) -> str:
        kind = f"a multiple of {self.step}" if self.step > 1 else "a whole number" if self.whole else "a number"
        low, high = f"{self.low:,.15g}", f"{self.high:,.15g}"
        return f"{kind} {f'above {low}' if self.low_excluded else f'from {low}'}" + (
            f" and below {high}" if self.high_excluded else f" to {high}"
        )

    def parse(self, value: Any) -> int | float:  # noqa: ANN401  (the command line passes texts, and default values)
        """Convert text to a number; ValueError with a one-line message if it is no number or out of range."""
        number = value
        if isinstance(value, str):
            try:
                number = float(value) if not self.whole else int(value) if _WHOLE.fullmatch(value) else math.nan
            except ValueError:
                number = math.nan
        above = self.low < number if self.low_excluded else self.low <= number
        below = number < self.high if self.high_excluded else number <= self.high
        if not (above and below) or (self.whole and number % self.step):
            text = str(value if number != number else number)  # NaN: not a number
            raise ValueError(f"expected {self}, got {shortened(text, 40)}")
        return number  # type: ignore[no-any-return]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        """Return the pydantic schema of the number with its range; 'true' is not 1."""
        from pydantic_core import core_schema

        no_bool = core_schema.union_schema(
            [core_schema.int_schema(strict=True), core_schema.float_schema(strict=True), core_schema.str_schema()]
        )
        low, high = "gt" if self.low_excluded else "ge", "lt" if self.high_excluded else "le"
        limits: dict[str, Any] = {low: self.low, high: self.high}
        if self.whole:
            number: Any = core_schema.int_schema(**limits, multiple_of=self.step if self.step > 1 else None)
        else:
            number = core_schema.float_schema(**limits, allow_inf_nan=False)
        steps = core_schema.chain_schema([no_bool, number])
        return core_schema.custom_error_schema(steps, "bounds", custom_error_message=f"expected {self}")

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        """Return the JSON schema of the number with its range."""
        return handler(schema["schema"]["steps"][1])


def bounds_of(number: Any) -> Bounds:  # noqa: ANN401  (a type with metadata has no type)
    """Return the bounds of a type of this module."""
    (bounds,) = (part for part in get_args(number)[1:] if isinstance(part, Bounds))
    return bounds


# Counts. A type whose name ends in OrNone accepts 0 for none.
Seed = Annotated[int, Bounds(0, 2**32 - 1)]
Count = Annotated[int, Bounds(1, 10_000_000)]  # things that are made or kept
CountOrNone = Annotated[int, Bounds(0, 10_000_000)]
Total = Annotated[int, Bounds(0, 10**12)]  # things that were counted
FewOrNone = Annotated[int, Bounds(0, 1_000)]
Few = Annotated[int, Bounds(1, 1_000)]  # models, seeds or samples of each thing
Several = Annotated[int, Bounds(2, 10_000_000)]  # things that are compared or sampled
Folds = Annotated[int, Bounds(2, 1_000)]
Epochs = Annotated[int, Bounds(1, 1_000_000)]
EpochsOrNone = Annotated[int, Bounds(0, 1_000_000)]
BatchSize = Annotated[int, Bounds(1, 100_000)]
Batches = Annotated[int, Bounds(1, 10_000)]  # prepared or sorted together
BootstrapSamples = Annotated[int, Bounds(100, 1_000_000)]
Mebibytes = Annotated[int, Bounds(1, 2**24)]
Bytes = Annotated[int, Bounds(1, 2**44)]

# Decoding and text.
BeamSize = Annotated[int, Bounds(1, 10_000)]
LengthPenalty = Annotated[float, Bounds(0, 10, whole=False)]  # exponent of the length of a hypothesis
Length = Annotated[int, Bounds(1, 10_000)]  # of a sentence in tokens, of a word in letters, or of a sequence in frames
LengthOrNone = Annotated[int, Bounds(0, 10_000)]
Group = Annotated[int, Bounds(-(2**31), 2**31 - 1)]  # the range that a collection stores
Temperature = Annotated[float, Bounds(1e-3, 1e3, whole=False)]  # divisor of log-probabilities

# Parts of one.
Probability = Annotated[float, Bounds(0, 1, whole=False)]
PositiveShare = Annotated[float, Bounds(0, 1, whole=False, low_excluded=True)]
Half = Annotated[float, Bounds(0, 0.5, whole=False, low_excluded=True)]
Level = Annotated[float, Bounds(0, 1, whole=False, low_excluded=True, high_excluded=True)]  # significance, decay
Rate = Annotated[float, Bounds(0, 1, whole=False, high_excluded=True)]  # dropout, momentum or share

# Weights of sums, and other factors.
Threshold = Annotated[float, Bounds(0, 100, whole=False)]  # of the activation of k-means filters
Weight = Annotated[float, Bounds(0, 1e6, whole=False)]  # weight in a sum, coefficient, tolerance or pseudo-count
PositiveWeight = Annotated[float, Bounds(0, 1e6, whole=False, low_excluded=True)]
LearningRate = Annotated[float, Bounds(0, 1e4, whole=False, low_excluded=True)]
PositiveDeviation = Annotated[float, Bounds(0, 1e3, whole=False, low_excluded=True)]  # standard deviation
Measured = Annotated[float, Bounds(-1e12, 1e12, whole=False)]  # value of a metric, or mean of a channel

# Sizes of models.
Width = Annotated[int, Bounds(1, 65_536)]
WidthOrNone = Annotated[int, Bounds(0, 65_536)]
Layers = Annotated[int, Bounds(1, 100)]
LayersOrNone = Annotated[int, Bounds(0, 100)]
Order = Annotated[int, Bounds(1, 9)]
Context = Annotated[int, Bounds(1, 100)]
AnchorSize = Annotated[float, Bounds(1e-3, 1e3, whole=False)]  # size or ratio

# Images, clips and sounds.
ImageSide = Annotated[int, Bounds(1, 4_096)]  # pixels of the input of a backbone
PatchSide = Annotated[int, Bounds(2, 1_024)]  # pixels of a patch, or of an image that patches are cut from
GridSide = Annotated[int, Bounds(1, 1_024)]
Objects = Annotated[int, Bounds(1, 3)]
Regions = Annotated[int, Bounds(1, 100)]
Frames = Annotated[int, Bounds(1, 1_000)]
SampleRate = Annotated[int, Bounds(8_000, 192_000)]  # samples of a sound in a second
Seconds = Annotated[float, Bounds(0.5, 60, whole=False)]  # of a sound
Window = Annotated[float, Bounds(0.005, 1, whole=False)]  # seconds of a sound
Frequency = Annotated[float, Bounds(0, 24_000, whole=False)]  # hertz
Resampling = Annotated[int, Bounds(0, 5)]  # number of a filter of Pillow

# The service.
Port = Annotated[int, Bounds(0, 65_535)]  # 0 for a free one
Processes = Annotated[int, Bounds(1, 64)]
RequestCount = Annotated[int, Bounds(1, 100_000)]
TimeLimit = Annotated[float, Bounds(0.01, 3_600, whole=False)]  # seconds of a request
