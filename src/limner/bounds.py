"""Bounds of the numbers that users set: named types for the fields of settings and for the options of commands.

A bound excludes values that cannot work or would exhaust any machine; whether the memory of this machine is enough is
estimated from the values together (`limner.process.require_memory`). A field of settings has one of these types, and
an option of a command parses its value by the bounds of such a type, so that both accept the same numbers and explain
others in the same words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args

_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,4000}\s*")  # Python refuses to convert more digits
_SHOWN = 1e6
"""Numbers from here on, and below its inverse, are printed as powers of ten where they are not whole."""


@dataclass(frozen=True)
class Bounds:
    """Range of a number; NaN and infinity are outside of every range."""

    low: float
    high: float
    whole: bool = True
    low_excluded: bool = False
    high_excluded: bool = False
    step: int = 1
    """Whole numbers are multiples of it."""

    def __str__(self) -> str:
        kind = f"a multiple of {self.step}" if self.step > 1 else "a whole number" if self.whole else "a number"
        low, high = _format(self.low), _format(self.high)
        return f"{kind} {f'above {low}' if self.low_excluded else f'from {low}'}" + (
            f" and below {high}" if self.high_excluded else f" to {high}"
        )

    def parse(self, value: Any) -> int | float:  # noqa: ANN401  (the command line passes texts, and default values)
        """Return the number that a text stands for.

        Raises:
            ValueError: it is not a number, or outside of the range; the message is one line.
        """
        if isinstance(value, str):
            if self.whole and not _WHOLE.fullmatch(value):
                raise ValueError(self._message(value))
            try:
                value = int(value) if self.whole else float(value)
            except ValueError:
                raise ValueError(self._message(value)) from None
        self._require(value, show=True)
        return value  # type: ignore[no-any-return]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        """Return the schema of pydantic: that of the number, with the range."""
        from pydantic_core import core_schema

        return core_schema.no_info_wrap_validator_function(self._validate, handler(source))

    def _validate(self, value: Any, convert: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        from pydantic_core import ValidationError

        if isinstance(value, bool):  # 'true' is not 1
            raise ValueError(f"expected {self}")
        try:
            number = convert(value)
        except ValidationError:
            raise ValueError(f"expected {self}") from None
        self._require(number, show=False)
        return number

    def _require(self, number: float, *, show: bool) -> None:
        """Check that a number is in the range; `show` adds it to the message."""
        above = self.low < number if self.low_excluded else self.low <= number
        below = number < self.high if self.high_excluded else number <= self.high
        if not (above and below) or (self.whole and number % self.step):
            raise ValueError(self._message(str(number)) if show else f"expected {self}")

    def _message(self, value: str) -> str:
        return f"expected {self}, got {value if len(value) <= 40 else f'{value[:40]}…'}"


def _format(number: float) -> str:
    if number == int(number):
        return f"{int(number):,}"
    return f"{number:g}" if 1 / _SHOWN <= number < _SHOWN else f"{number:.0e}"


def bounds_of(number: Any) -> Bounds:  # noqa: ANN401  (a type with metadata has no type)
    """Return the bounds of one of the types of this module."""
    (bounds,) = (part for part in get_args(number)[1:] if isinstance(part, Bounds))
    return bounds


# Counts.
Seed = Annotated[int, Bounds(0, 2**32 - 1)]
"""Seed of random numbers."""
Count = Annotated[int, Bounds(1, 10_000_000)]
"""Number of things that are made or kept, at least one."""
CountOrNone = Annotated[int, Bounds(0, 10_000_000)]
"""Number of things that are made or kept; 0 for none."""
Total = Annotated[int, Bounds(0, 10**12)]
"""Number of things that were counted."""
FewOrNone = Annotated[int, Bounds(0, 1_000)]
"""Number of examples, seeds or samples of each thing; 0 for none."""
Few = Annotated[int, Bounds(1, 1_000)]
"""Number of models, seeds or samples of each thing."""
Several = Annotated[int, Bounds(2, 10_000_000)]
"""Number of things that are compared or sampled, at least two."""
Folds = Annotated[int, Bounds(2, 1_000)]
"""Number of folds of a cross-validation."""
Epochs = Annotated[int, Bounds(1, 1_000_000)]
"""Number of epochs or passes."""
EpochsOrNone = Annotated[int, Bounds(0, 1_000_000)]
"""Number of epochs or iterations; 0 for none."""
Steps = Annotated[int, Bounds(1, 10**9)]
"""Number of steps of a training."""
StepsOrNone = Annotated[int, Bounds(0, 10**9)]
"""Number of steps of a training; 0 for none."""
BatchSize = Annotated[int, Bounds(1, 100_000)]
"""Number of examples computed together."""
Batches = Annotated[int, Bounds(1, 10_000)]
"""Number of batches prepared or sorted together."""
BootstrapSamples = Annotated[int, Bounds(100, 1_000_000)]
"""Number of bootstrap samples."""
Trials = Annotated[int, Bounds(1, 10_000_000)]
"""Number of trials of a significance test."""
Mebibytes = Annotated[int, Bounds(1, 2**24)]
"""Memory in MiB."""
MebibytesOrNone = Annotated[int, Bounds(0, 2**24)]
"""Memory in MiB; 0 for none."""
Bytes = Annotated[int, Bounds(1, 2**44)]
"""Memory in bytes."""
BytesOrNone = Annotated[int, Bounds(0, 2**44)]
"""Memory in bytes; 0 for none."""
GraphMemory = Annotated[int, Bounds(64, 2**24)]
"""Memory of exported graphs in MiB."""
GraphSeconds = Annotated[float, Bounds(0.1, 10**7, whole=False)]
"""Seconds that an exported graph may be loaded or computed."""

# Decoding and text.
BeamSize = Annotated[int, Bounds(1, 100_000)]
"""Number of hypotheses of a beam."""
LengthPenalty = Annotated[float, Bounds(0, 10, whole=False)]
"""Exponent of the length of a hypothesis."""
Length = Annotated[int, Bounds(1, 10_000)]
"""Length of a sentence in tokens, of a word in letters, or of a sequence in frames."""
LengthOrNone = Annotated[int, Bounds(0, 10_000)]
"""Length of a part of a sentence in tokens; 0 for none."""
Group = Annotated[int, Bounds(-(2**31), 2**31 - 1)]
"""Number of a sentence of an item: the range that a collection stores."""
Temperature = Annotated[float, Bounds(1e-3, 1e3, whole=False)]
"""Divisor of log-probabilities."""
VocabularySize = Annotated[int, Bounds(1, 10_000_000)]
"""Number of entries of a vocabulary."""

# Parts of one.
Probability = Annotated[float, Bounds(0, 1, whole=False)]
"""Probability or share."""
PositiveShare = Annotated[float, Bounds(0, 1, whole=False, low_excluded=True)]
"""Share of something, above 0."""
Half = Annotated[float, Bounds(0, 0.5, whole=False, low_excluded=True)]
"""Share of something, above 0 and at most the half."""
Level = Annotated[float, Bounds(0, 1, whole=False, low_excluded=True, high_excluded=True)]
"""Significance level or decay, between 0 and 1."""
Rate = Annotated[float, Bounds(0, 1, whole=False, high_excluded=True)]
"""Dropout, momentum or share, below 1."""

# Weights of sums, and other factors.
Alpha = Annotated[float, Bounds(0, 10, whole=False)]
"""Weight of the marginal log-probability of a sentence."""
Threshold = Annotated[float, Bounds(0, 100, whole=False)]
"""Threshold of the activation of k-means filters."""
Weight = Annotated[float, Bounds(0, 1e6, whole=False)]
"""Weight in a sum, coefficient, tolerance or pseudo-count."""
PositiveWeight = Annotated[float, Bounds(0, 1e6, whole=False, low_excluded=True)]
"""Weight in a sum, above 0."""
LearningRate = Annotated[float, Bounds(0, 1e4, whole=False, low_excluded=True)]
"""Learning rate."""
Deviation = Annotated[float, Bounds(0, 1e3, whole=False)]
"""Standard deviation of initial weights."""
PositiveDeviation = Annotated[float, Bounds(0, 1e3, whole=False, low_excluded=True)]
"""Standard deviation, above 0."""
TimeConstant = Annotated[float, Bounds(1, 1e6, whole=False)]
"""Time constant of a leaky unit in steps."""
Measured = Annotated[float, Bounds(-1e12, 1e12, whole=False)]
"""Value of a metric, or mean of a channel."""

# Sizes of models.
Width = Annotated[int, Bounds(1, 65_536)]
"""Number of units of a layer."""
WidthOrNone = Annotated[int, Bounds(0, 65_536)]
"""Number of units of a layer; 0 for no layer."""
Layers = Annotated[int, Bounds(1, 100)]
"""Number of layers."""
LayersOrNone = Annotated[int, Bounds(0, 100)]
"""Number of layers, or of steps of a delay; 0 for none."""
Channels = Annotated[int, Bounds(4, 4_096, step=4)]
"""Number of channels of the first convolution."""
Order = Annotated[int, Bounds(1, 9)]
"""Order of a count-based model."""
PhraseLength = Annotated[int, Bounds(1, 7)]
"""Number of words of a phrase, whose alignment is kept in the bits of an integer."""
Reach = Annotated[int, Bounds(0, 40)]
"""Distance between words of a sentence."""
Context = Annotated[int, Bounds(1, 100)]
"""Number of words of a context."""
AnchorSize = Annotated[float, Bounds(1e-3, 1e3, whole=False)]
"""Size or ratio of an anchor box."""

# Images, clips and sounds.
ImageSide = Annotated[int, Bounds(1, 4_096)]
"""Side of the input of a backbone in pixels."""
Views = Annotated[int, Bounds(1, 10)]
"""Number of views of an image: 1, 2 or 10."""
DrawnSide = Annotated[int, Bounds(32, 2_048)]
"""Side of a drawn scene in pixels."""
ClipSide = Annotated[int, Bounds(32, 1_024, step=2)]
"""Side of a drawn clip in pixels; video formats need even sizes."""
PatchSide = Annotated[int, Bounds(2, 1_024)]
"""Side of a patch, or of an image that patches are cut from, in pixels."""
GridSide = Annotated[int, Bounds(1, 1_024)]
"""Side of a grid of locations."""
PixelSide = Annotated[int, Bounds(1, 1_024)]
"""Side of stored images in pixels."""
FilterCount = Annotated[int, Bounds(1, 65_536)]
"""Number of filters learned by k-means."""
Objects = Annotated[int, Bounds(1, 3)]
"""Number of objects of a scene."""
Regions = Annotated[int, Bounds(1, 100)]
"""Number of regions of an image."""
Frames = Annotated[int, Bounds(1, 1_000)]
"""Number of frames of a video."""
SoundFrames = Annotated[int, Bounds(1, 10_000)]
"""Number of frames of a sound."""
DrawnFrames = Annotated[int, Bounds(2, 1_000)]
"""Number of frames of a drawn clip."""
FramesPerSecond = Annotated[int, Bounds(1, 120)]
"""Frames of a clip in a second."""
SampleRate = Annotated[int, Bounds(8_000, 192_000)]
"""Samples of a sound in a second."""
Seconds = Annotated[float, Bounds(0.5, 60, whole=False)]
"""Length of a sound in seconds."""
Window = Annotated[float, Bounds(0.005, 1, whole=False)]
"""Length of a window of a sound in seconds."""
Hop = Annotated[float, Bounds(0.001, 1, whole=False)]
"""Distance of two windows of a sound in seconds."""
Bands = Annotated[int, Bounds(4, 128)]
"""Number of bands of a spectrum."""
Frequency = Annotated[float, Bounds(0, 24_000, whole=False)]
"""Frequency in hertz."""
Days = Annotated[float, Bounds(0, 36_500, whole=False)]
"""Age in days."""
Resampling = Annotated[int, Bounds(0, 5)]
"""Number of a resampling filter of Pillow."""
PixelCount = Annotated[int, Bounds(1, 89_478_485)]
"""Number of pixels of an image; at most what is decoded."""

# The service.
Port = Annotated[int, Bounds(0, 65_535)]
"""TCP port; 0 for a free one."""
Processes = Annotated[int, Bounds(1, 64)]
"""Number of processes."""
RequestCount = Annotated[int, Bounds(1, 100_000)]
"""Number of requests."""
TimeLimit = Annotated[float, Bounds(0.01, 3_600, whole=False)]
"""Time limit of a request in seconds."""
