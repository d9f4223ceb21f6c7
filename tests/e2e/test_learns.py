"""Command line, on a small generated collection: the model learns to use the image."""

import json

import pytest
from programs import limner

from limner.synthetic.scenes import SceneSettings
from limner.synthetic.storage import generate_collection

WIDTHS = {"embedding_dim": 48, "hidden_dim": 96, "multimodal_dim": 128, "image_encoder.convnet_dim": 96}
SIZES = [f"model.{name}={width}" for name, width in WIDTHS.items()]
TRAINING = ["training.batch_size=32", "training.validate_every=5", "training.optimizer.lr=0.003"]
MODELS = {
    "seeing": ["features.tables=[pixels32]", "training.epochs=10"],
    "blind": ["features.tables=[]", "model.variant=RNN-base", "training.epochs=5"],
}


def test_a_model_captions_and_retrieves(tmp_path):
    scenes = generate_collection(
        tmp_path / "scenes", SceneSettings(seed=3, train=600, val=30, test=60, size=64, ambiguous=0.2)
    )
    limner("features", scenes.path, "--backbone", "pixels:32")
    result = {}
    for name, changes in MODELS.items():
        run = tmp_path / name
        limner("train", "scenes/mrnn", "--collection", scenes.path, "--out", run, *SIZES, *TRAINING, *changes)
        limner("evaluate", "--model", run, "--collection", scenes.path, "--metric", "bleu4")
        evaluation = json.loads((run / "evaluation" / "test.json").read_text())
        result[name] = {score["name"]: score["value"] for score in evaluation["scores"]}
    multimodal, text_only = result["seeing"], result["blind"]
    # Both models learn the grammar; colours, objects and positions need the image.
    assert multimodal["perplexity"] < 0.85 * text_only["perplexity"]
    assert multimodal["bleu4"] > 1.3 * text_only["bleu4"]
    # Chance level of retrieving one of 60 images: R@1 1.7, R@10 16.7 and a median rank of 30.
    assert multimodal["text_to_image_r1"] > 20
    assert multimodal["text_to_image_r10"] > 60
    assert multimodal["text_to_image_median_rank"] <= 6
    assert multimodal["image_to_text_r1"] > 20
    assert not any(name.startswith("text_to_image") for name in text_only)
    log = [json.loads(line) for line in (tmp_path / "seeing" / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in log if line["kind"] == "train"]
    assert losses == pytest.approx(sorted(losses, reverse=True), rel=0.1)
