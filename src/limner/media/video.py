"""Frames of video files, decoded with PyAV (the optional extra `video`)."""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from limner.bounds import Count, Frames
from limner.errors import MediaError, extra_module
from limner.media.image import MAX_PIXELS, opened_media
from limner.settings import Settings

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".m4v", ".mov", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".ts", ".m2ts", ".ogv", ".wmv", ".flv", ".3gp"}
)
"""Lowercase suffixes of video files."""


class FrameSampling(Settings):
    """Choice of the frames of a clip."""

    count: Frames = 16
    """Maximum number of frames. They are evenly spaced in time: the clip is divided into intervals of equal duration,
    and the frame shown in the middle of each is taken once."""
    every: Count | None = None
    """Distance between frames: every k-th frame of the file, reduced to at most `count` evenly spaced frames. None
    for frames evenly spaced in time."""


class _Index(NamedTuple):
    """Presentation times of the frames of a stream, in units of its time base, ascending."""

    times: list[int]
    keys: list[int]  # times of the frames that decoding can start at
    end: int  # end of the last frame


def read_frames(path: Path | str, sampling: FrameSampling) -> list[Image.Image]:
    """Decode one or more frames of a video file, upright, in RGB and in the order of time.

    The file may have a variable frame rate. Rotations and pixels that are not square are applied.

    Raises:
        MissingExtraError: PyAV is not installed.
        MediaError: the file is missing, empty, damaged, truncated, has no video, or its frames are too large.
    """
    av = extra_module("av", "reading video files", "video")
    with opened_media(path, "video") as file:
        if not os.fstat(file.fileno()).st_size:
            raise MediaError(f"{path}: the file is empty (0 bytes); copy it again from its source or remove it")
    try:
        with av.open(str(path)) as container:
            stream = _video_stream(container, path)
            index = _read_index(container, stream, path)
            frames = [_to_image(frame, path) for frame in _decode(container, stream, index, choose(index, sampling))]
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise MediaError(
            f"{path}: not a readable video file ({_reason(error)}); copy it again from its source, convert it to MP4, "
            "or remove it"
        ) from None
    if not frames:
        raise MediaError(f"{path}: no frame of the video can be decoded; convert it to MP4 (H.264) or remove it")
    return frames


def check_video(path: Path | str) -> Path:
    """Check that the first frames of a video file can be decoded; see `read_frames` for the errors."""
    read_frames(path, FrameSampling(count=1))
    return Path(path)


def choose(index: _Index, sampling: FrameSampling) -> list[int]:
    """Choose the presentation times of the frames to decode, ascending and each once."""
    times = index.times
    if sampling.every is not None:
        times = times[:: sampling.every]
        picked = ((2 * k + 1) * len(times) // (2 * sampling.count) for k in range(sampling.count))
        return times if len(times) <= sampling.count else sorted({times[row] for row in picked})
    duration = index.end - times[0]
    segment_times = (times[0] + duration * (2 * k + 1) / (2 * sampling.count) for k in range(sampling.count))
    return sorted({times[max(0, bisect.bisect_right(times, segment_time) - 1)] for segment_time in segment_times})


def _video_stream(container: Any, path: Path | str) -> Any:  # noqa: ANN401 (PyAV is optional)
    """Return the first video stream that is not the cover image of an audio file."""
    av = extra_module("av", "reading video files", "video")
    cover = av.stream.Disposition.attached_pic
    streams = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not streams:
        kind = "sound only" if container.streams.audio else "no video and no sound"
        raise MediaError(
            f"{path}: expected a video, found {kind}; remove the file, or describe sounds with a model trained on them "
            "(give the file an audio suffix such as .m4a)"
        )
    stream = streams[0]
    if stream.codec_context is None:
        raise MediaError(f"{path}: the format of its frames is unknown; copy it again from its source, or convert it")
    _require_decodable(stream.width, stream.height, path)
    stream.thread_type = "AUTO"
    return stream


def _require_decodable(width: int, height: int, path: Path | str) -> None:
    """Check that a frame is small enough for the memory."""
    if width * height > MAX_PIXELS:
        raise MediaError(
            f"{path}: too large to decode safely: frames of {width} x {height} pixels, at most {MAX_PIXELS} pixels are "
            "decoded; store a smaller copy"
        )


def _read_index(container: Any, stream: Any, path: Path | str) -> _Index:  # noqa: ANN401
    """Read the presentation times of all frames without decoding them; MediaError for none, or fewer than declared."""
    packets = [(p.pts, p.is_keyframe, p.duration or 0) for p in container.demux(stream) if p.size and not p.is_discard]
    if not packets:
        raise MediaError(f"{path}: the video has no frames; record or convert it again, or remove the file")
    if len(packets) < stream.frames and "mp4" in container.format.name:
        raise MediaError(
            f"{path}: truncated: has {len(packets):,} of {stream.frames:,} frames; copy it again from its source"
        )
    if any(pts is None for pts, _, _ in packets):  # raw streams have no times
        packets = [(number, number == 0, 1) for number in range(len(packets))]
    times = sorted({pts for pts, _, _ in packets})
    last = max(packets, key=lambda packet: packet[0])
    mean = (times[-1] - times[0]) // max(1, len(times) - 1)
    return _Index(times, sorted({pts for pts, key, _ in packets if key}), times[-1] + max(1, last[2] or mean))


def _decode(container: Any, stream: Any, index: _Index, times: Sequence[int]) -> Iterator[Any]:  # noqa: ANN401
    """Decode the frames of the given presentation times, starting anew at a key frame that lies ahead."""
    container.seek(index.times[0], stream=stream)
    frames, position = enumerate(container.decode(stream)), index.times[0]
    last: Any = None
    for time in times:
        key = index.keys[max(0, bisect.bisect_right(index.keys, time) - 1)] if index.keys else position
        if key > position and last is not None:
            container.seek(key, stream=stream)
            frames = enumerate(container.decode(stream))
        for number, frame in frames:
            last, position = frame, number if frame.pts is None else frame.pts
            if position >= time:
                break
        if last is not None:
            yield last


def _to_image(frame: Any, path: Path | str) -> Image.Image:  # noqa: ANN401
    if frame.is_corrupt:
        raise MediaError(f"{path}: damaged at {frame.time or 0:.2f} s; copy it again from its source or remove it")
    _require_decodable(frame.width, frame.height, path)  # frames may differ from the header of the file
    image: Image.Image = frame.to_image()
    ratio = frame.sample_aspect_ratio if hasattr(frame, "sample_aspect_ratio") else None
    if ratio and ratio != 1:
        width = max(1, round(image.width * ratio))
        _require_decodable(width, image.height, path)
        image = image.resize((width, image.height))
    return image.rotate(frame.rotation, expand=True) if frame.rotation else image


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).lower()
