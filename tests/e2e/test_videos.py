"""Command line: videos are described by models of images and of videos; a model learns verbs and directions."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

import limner
from limner.apps import cli
from limner.data.dataset import GenerationInput
from limner.errors import MediaError
from limner.inference.features import open_features
from limner.inference.generate import generate
from limner.synthetic.scenes import ClipSettings, SceneSettings
from limner.synthetic.scenes.grammar import texts_of
from limner.synthetic.storage import generate_collection

pytest.importorskip("av")
TINY = ["training.epochs=1", "training.batch_size=16", "training.schedule.warmup_steps=1", "model.dropout=0"]
TINY += ["decoding.min_length=3"]  # an untrained model ends its sentences at once
SMALL_MODEL = ["model.hidden_dim=16", "model.embedding_dim=8"]


def run(*arguments):
    """Run a command in this process, which imports torch once."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def run_command(*arguments):
    done = run(*arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Photographs `photos` and clips `clips`, and a run `of-images` of the video captioner trained on photographs."""
    folder = tmp_path_factory.mktemp("videos")
    generate_collection(folder / "photos", SceneSettings(train=24, val=4, test=2, size=32))
    generate_collection(folder / "clips", ClipSettings(train=8, val=2, test=2, size=32, frames=5))
    run_command("features", folder / "photos", "--backbone", "pixels:16")
    train = ["train", "venugopalan2015/photos", "--collection", folder / "photos", "--out", folder / "of-images"]
    run_command(*train, "features.tables=[pixels16]", "text.min_count=1", *TINY, *SMALL_MODEL)
    return folder


def test_a_model_of_images_describes_videos_and_images(place):
    video = next((place / "clips" / "videos").iterdir())
    image = next((place / "photos" / "images").iterdir())
    described = json.loads(run_command("describe", video, image, "--model", place / "of-images", "--json"))
    assert [one["image"] for one in described] == [str(video), str(image)]
    assert all(one["captions"] for one in described)
    assert (
        limner.Captioner.load(place / "of-images").describe([video])[0][0].text == described[0]["captions"][0]["text"]
    )


def test_a_damaged_video_does_not_stop_the_others(place, tmp_path):
    (tmp_path / "bad.mp4").write_bytes(b"")
    video = next((place / "clips" / "videos").iterdir())
    (tmp_path / "good.mp4").write_bytes(video.read_bytes())
    done = run("describe", tmp_path, "--model", place / "of-images")
    assert done.exit_code == 1 and "bad.mp4" in done.stderr and "0 bytes" in done.stderr
    assert "good.mp4\t" in done.stdout


def test_a_model_of_images_continues_on_clips(place):
    """--init takes every weight; the frames of a clip share the encoder of an image."""
    clips = place / "clips"
    run_command("features", clips, "--backbone", "pixels:16", "--frames", 4)
    train = ["train", "venugopalan2015/videos", "--collection", clips, "--init", place / "of-images"]
    run_command(*train, "--out", place / "of-clips", "features.tables=[pixels16.frames]", *TINY, *SMALL_MODEL)
    config = json.loads((place / "of-clips" / "config.json").read_text())
    assert config["features"][0]["shape"] == [4, 3, 16, 16] and "0 new" not in config["provenance"]["init"]
    image = next((place / "photos" / "images").iterdir())
    assert limner.Captioner.load(place / "of-clips").describe([image, next((clips / "videos").iterdir())])
    run_command("evaluate", "--model", place / "of-clips", "--collection", clips, "--no-retrieval", "--metric", "bleu4")
    run_command("report", "--model", place / "of-clips")
    assert "data:image/jpeg" in (place / "of-clips" / "report.html").read_text()


def test_attention_over_frames_is_explained(place):
    clips = place / "clips"
    run_command("features", clips, "--backbone", "pixels:16", "--frames", 4)
    train = ["train", "donahue2015/lrcn", "--collection", clips, "--out", place / "attends"]
    changes = ["features.tables=[pixels16.frames]", "model.frames=attention", "model.attention_dim=8"]
    run_command(*train, *changes, *TINY, *SMALL_MODEL)
    captioner = limner.Captioner.load(place / "attends")
    videos = sorted((clips / "videos").iterdir())[:2]
    captions = [n_best[0] for n_best in captioner.describe(videos)]
    for caption, explanation in zip(captions, captioner.explain(videos, captions), strict=True):
        assert explanation.attention.shape == (len(caption.tokens) + 1, 4)
        assert explanation.attention.sum(1) == pytest.approx(1)
    run_command("evaluate", "--model", place / "attends", "--collection", clips, "--no-retrieval", "--metric", "bleu4")
    run_command("report", "--model", place / "attends")
    assert 'alt="original image"' in (place / "attends" / "report.html").read_text()


@pytest.mark.real
def test_real_clips_and_photographs_are_described(place, real_data, tmp_path):
    clips = sorted((real_data / "video").glob("*.mp4"))
    photos = sorted((real_data / "flickr8k" / "images").glob("*.jpg"))[:3]
    captioner = limner.Captioner.load(place / "of-images")
    described = list(captioner.describe_each([*clips, *photos, tmp_path / "none.mp4"]))
    assert len(clips) == 4
    assert all(isinstance(captions, list) for _, captions in described[:-1])
    assert isinstance(described[-1][1], MediaError)
    with Image.open(photos[0]) as photo:
        assert captioner.describe([photo])


def right_motions(run_folder, collection):
    """Fraction of the test clips whose generated sentence has the right verb and direction."""
    model, items = limner.load_trained_model(run_folder), collection.items("test")
    inputs = [GenerationInput(item, None, ()) for item in items]
    hypotheses = generate([model], inputs, open_features(model, collection), model.recipe.decoding)
    verbs, ways = texts_of("verb", "en"), texts_of("way", "en")
    sentences = [model.tokenizer.decode(n_best[0].tokens, detokenise=True) for n_best in hypotheses]
    return sum(f"{verbs[i.label]} {ways[i.label]}" in text for i, text in zip(items, sentences, strict=True)) / len(
        items
    )


@pytest.mark.slow
@pytest.mark.timeout(6000)
def test_verbs_and_directions_are_learned_from_frames_and_not_from_one_frame(tmp_path):
    clips, tracking = tmp_path / "clips", tmp_path / "tracking"
    opened = generate_collection(clips, ClipSettings(train=4000))
    run_command("features", clips, "--backbone", "pixels:32", "--frames", 16)
    run_command("train", "lecture/tracking", "--collection", clips, "--out", tracking)
    train = ["train", "scenes/clips", "--collection", clips, f"training.pretrained_image_encoder={tracking}"]
    for frames, name in ((8, "eight"), (1, "one")):
        run_command("features", clips, "--backbone", "pixels:32", "--frames", frames, "--name", name)
        run_command(*train, "--out", tmp_path / name, f"features.tables=[{name}.frames]")
    assert right_motions(tmp_path / "eight", opened) >= 0.9
    assert right_motions(tmp_path / "one", opened) <= 0.25  # chance is one of eight motions
