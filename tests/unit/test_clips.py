import hashlib

import numpy as np
import pytest

from limner.data.collection import Collection, write_items
from limner.data.examples import Item
from limner.errors import SettingsError
from limner.media.video import FrameSampling, read_frames
from limner.synthetic.scenes import ClipSettings, clips
from limner.synthetic.scenes.clips import Clip, make_clip, object_at
from limner.synthetic.scenes.scene import MOTIONS, Scene, SceneObject
from limner.synthetic.storage import generate_collection

pytest.importorskip("av")

SMALL = ClipSettings(seed=3, train=5, val=1, test=1, size=48, frames=5, rate=5, occluded=0.5)


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return generate_collection(tmp_path_factory.mktemp("clips") / "c", SMALL)


def clip_of(motion: str, **changes: object) -> Clip:
    ball = SceneObject("ball", "red", x=0.5, y=0.6, span=0.25)
    return Clip(Scene("snow", (ball,), "middle", motion=motion), **{"extent": 0.4, "phase": 0.2, **changes})


@pytest.mark.parametrize("motion", MOTIONS)
def test_motion_matches_the_sentences(motion):
    path = [object_at(clip_of(motion), step / 20) for step in range(21)]
    x, y, span = ([getattr(one, name) for one in path] for name in ("x", "y", "span"))
    sideways, upwards, growth = x[-1] - x[0], y[0] - y[-1], span[-1] / span[0]
    assert {
        "left": sideways < -0.3 and not upwards and growth == 1,
        "right": sideways > 0.3 and not upwards and growth == 1,
        "fall": upwards < -0.3 and not sideways and growth == 1,
        "rise": upwards > 0.3 and not sideways and growth == 1,
        "jump": max(y) - min(y) > 0.15 and abs(upwards) < 1e-6 and growth == 1,
        "swing": max(x) - min(x) > 0.15 and abs(sideways) < 1e-6 and growth == 1,
        "grow": growth > 2 and not sideways,
        "shrink": growth < 0.5 and not sideways,
    }[motion]


@pytest.mark.parametrize(("motion", "opposite"), [("left", "right"), ("fall", "rise"), ("grow", "shrink")])
def test_a_clip_played_backwards_is_one_of_the_opposite_motion(motion, opposite):
    for time in (0, 0.3, 1):
        one, other = object_at(clip_of(motion), time), object_at(clip_of(opposite), 1 - time)
        assert (one.x, one.y, one.span) == pytest.approx((other.x, other.y, other.span))


def test_objects_stay_within_the_frame():
    for index in range(60):
        for time in (0, 0.25, 0.75, 1):
            obj = object_at(make_clip(0, "train", index), time)
            assert obj.x - obj.span / 2 >= 0 and obj.x + obj.span / 2 <= 1
            assert obj.y - obj.span >= 0 and obj.y <= 1


def test_items_are_videos_with_label_track_and_sentences(collection):
    assert collection.splits() == {"train": 5, "val": 1, "test": 1}
    for item in collection.items():
        frames = [np.asarray(frame, float) for frame in read_frames(collection.media_file(item), FrameSampling())]
        assert len(frames) == len(item.track) == 5 and frames[0].shape == (48, 48, 3)
        assert item.label in MOTIONS and len(item.texts("en")) == len(item.texts("de")) == 5


def test_the_track_is_where_the_picture_changes():
    """Without the obstacle and the shadow, all differences between two frames lie in the two boxes."""
    clip = clip_of("right")
    (obj,) = clip.scene.objects
    star = Clip(Scene("room", (SceneObject("star", "red", span=0.25, y=0.6),), "middle", motion="right"), 0.4, 0.0)
    assert obj.word == "ball"
    (first, one, _), *_, (last, other, _) = clips.frames(star, 96, 5)
    changed = np.abs(np.asarray(first, int) - np.asarray(last, int)).max(2) > 0
    rows, columns = np.nonzero(changed)
    left, right = min(one[0], other[0]), max(one[0] + one[2], other[0] + other[2])
    assert (columns.min(), columns.max() + 1) == pytest.approx((left, right), abs=2)
    assert rows.min() >= one[1] and rows.max() < one[1] + one[3]


def test_an_obstacle_hides_the_object_for_some_frames():
    seen = list(clips.frames(clip_of("left", hidden_at=0.5), 96, 16))
    images = [np.asarray(frame.image).astype(int) for frame in seen]
    hidden = [(image[..., 0] - image[..., 2] > 80).sum() == 0 for image in images]  # no red of the ball
    assert hidden[7] and hidden[8] and not hidden[0] and not hidden[-1]
    assert [frame.hidden for frame in seen] == hidden
    assert not any(frame.hidden for frame in clips.frames(clip_of("left"), 96, 16))


def test_same_settings_same_bytes(collection, tmp_path):
    def digests(path):
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.glob("videos/*")}

    again = generate_collection(tmp_path / "two", SMALL)
    assert digests(again.path) == digests(collection.path)
    assert again.items() == collection.items()
    assert again.fingerprint() == collection.fingerprint()


def test_an_odd_side_is_refused():
    with pytest.raises(SettingsError, match=r"^clips: size: "):
        ClipSettings.parse({"size": 97}, "clips")


def test_tracks_are_stored_and_merged(tmp_path):
    item = Item("a", "train", video="a.mp4", track=((1.0, 2.0, 3.0, 4.5), (2.0, 2.0, 3.0, 4.5)))
    write_items(tmp_path / "c", [item])
    assert write_items(tmp_path / "c", [Item("a", "train", video="a.mp4", label="left")]).updated == 1
    (stored,) = Collection.open(tmp_path / "c").items()
    assert stored.track == item.track and stored.label == "left"
