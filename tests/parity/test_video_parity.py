"""The video captioner against the oracle, with the same weights."""

import numpy as np
import oracle_video
import pytest
import torch

from limner.data.examples import Example, collate
from limner.models import ModelInputs, build_model
from limner.models.video_captioner import VideoCaptioner, VideoCaptionerSettings

VOCAB, LONGEST, DIM = 9, 4, 5
SENTENCES = [[4, 7, 5], [], [8, 8, 4, 6, 5]]
FRAMES = [4, 1, 3]


def lstm(cell, visual=None):
    """Weights of a cell by gate; those of the clip are columns of the input."""
    inputs, size = cell.input.weight, cell.hidden_dim
    if visual is not None:
        inputs = torch.cat([inputs, visual.weight], 1)
    theta = {}
    for gate, rows in zip("ifco", torch.arange(4 * size).view(4, size), strict=True):
        theta[f"W_x{gate}"], theta[f"W_h{gate}"] = inputs[rows].numpy(), cell.recurrent[rows].numpy()
        theta[f"b_{gate}"] = cell.input.bias[rows].numpy()
    return theta


def theta_of(model: VideoCaptioner):
    settings = model.settings
    theta = {
        "lstm": [
            lstm(cell, model.visual if number == settings.visual_layer else None)
            for number, cell in enumerate(model.cells, start=1)
        ],
        "E": model.embedding.weight.numpy(),
        "W_o": model.softmax.weight.numpy(),
        "b_o": model.softmax.bias.numpy(),
    }
    if model.attention is not None:
        query, key = model.attention.query.weight, model.attention.key
        theta["attention"] = {
            "U_a": query.numpy(), "W_a": key.weight.numpy(), "b_a": key.bias.numpy(), "u": model.attention.score.numpy()
        }  # fmt: skip
    if model.frame_layers is not None:
        theta["frames"] = lstm(model.frame_layers.layers[0].cell)
    return theta


@pytest.mark.parametrize(
    "changes",
    [
        {},  # Venugopalan et al.; LRCN-2u
        {"layers": 1},  # LRCN-1u
        {"visual_layer": 2},  # LRCN-2f
        {"layers": 4, "visual_layer": 3},  # LRCN-4f
        {"frames": "attention"},
        {"frames": "attention", "visual_layer": 2, "frame_encoder_dim": 3},
        {"frames": "last", "frame_encoder_dim": 3},
    ],
)
def test_log_probabilities_and_attention(changes):
    torch.manual_seed(2)
    sizes = {"embedding_dim": 4, "hidden_dim": 3, "attention_dim": 6}
    settings = VideoCaptionerSettings.model_validate({**sizes, **changes})
    model = build_model(settings, ModelInputs(VOCAB, {"grid": (LONGEST, DIM)}))
    assert isinstance(model, VideoCaptioner)
    model.double().eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(0.4 * torch.randn_like(parameter))
    random = np.random.default_rng(0)
    clips = [np.zeros((LONGEST, DIM), np.float16) for _ in FRAMES]
    for clip, count in zip(clips, FRAMES, strict=True):
        clip[:count] = random.normal(size=(count, DIM))  # shorter clips are padded with zeros
    batch = collate([Example("", words, None, {"grid": clip}) for words, clip in zip(SENTENCES, clips, strict=True)])
    batch.image = batch.image._replace(grid=batch.image.grid.double())
    output = model(batch)
    theta = theta_of(model)
    for row, (words, clip, count) in enumerate(zip(SENTENCES, clips, FRAMES, strict=True)):
        given = [int(batch.target_in[row, 0]), *words]
        expected, weights = oracle_video.log_probs(
            theta, clip[:count].astype(np.float64), given, settings.visual_layer, settings.frames
        )
        ours = output.logits[row, : len(given)].log_softmax(-1).numpy()
        np.testing.assert_allclose(ours, expected, atol=1e-9)
        if settings.frames == "attention":
            attention = output.attention[row, : len(given)].numpy()
            np.testing.assert_allclose(attention[:, :count], weights, atol=1e-9)
            assert not attention[:, count:].any()


def test_factored_lower_layer_does_not_see_the_clip():
    """Donahue et al.: the state of the first layer of LRCN-2f is independent of the image; that of LRCN-2u is not."""
    for visual_layer in (1, 2):
        torch.manual_seed(0)
        settings = VideoCaptionerSettings(embedding_dim=4, hidden_dim=3, visual_layer=visual_layer)
        model = build_model(settings, ModelInputs(VOCAB, {"grid": (2, DIM)})).eval()
        examples = [Example("", [4], None, {"grid": np.full((2, DIM), value, np.float16)}) for value in (1, -2)]
        batch = collate(examples)
        memory = model.encode(batch)
        _, state = model.step(batch.target_in[:, 0], memory, model.start(memory))
        first, second = state.layers
        assert torch.equal(first.hidden[0], first.hidden[1]) is (visual_layer == 2)
        assert not torch.equal(second.hidden[0], second.hidden[1])


def test_mean_pooling_ignores_the_order_and_the_frame_encoder_does_not():
    for frame_encoder_dim in (0, 4):
        torch.manual_seed(0)
        settings = VideoCaptionerSettings(embedding_dim=4, hidden_dim=3, frame_encoder_dim=frame_encoder_dim)
        model = build_model(settings, ModelInputs(VOCAB, {"grid": (3, DIM)})).eval()
        clip = np.random.default_rng(0).normal(size=(3, DIM)).astype(np.float16)
        batch = collate([Example("", [4], None, {"grid": values}) for values in (clip, clip[::-1].copy())])
        forwards, backwards = model(batch).logits
        assert torch.allclose(forwards, backwards, atol=1e-6) is (frame_encoder_dim == 0)


def test_an_image_is_a_clip_of_one_frame():
    """With the same weights, a pooled vector gives what one frame and padding give."""
    torch.manual_seed(0)
    settings = VideoCaptionerSettings(embedding_dim=4, hidden_dim=3, frames="attention", frame_encoder_dim=4)
    of_images = build_model(settings, ModelInputs(VOCAB, {"pooled": (DIM,)})).eval()
    of_clips = build_model(settings, ModelInputs(VOCAB, {"grid": (3, DIM)})).eval()
    of_clips.load_state_dict(of_images.state_dict())
    vector = np.random.default_rng(0).normal(size=DIM).astype(np.float16)
    clip = np.stack([vector, 0 * vector, 0 * vector])
    image, video = (collate([Example("", [4, 5], None, values)]) for values in ({"pooled": vector}, {"grid": clip}))
    torch.testing.assert_close(of_images(image).logits, of_clips(video).logits)
