"""What the layers and the frame encoder of the video captioner depend on."""

import numpy as np
import torch

from limner.data.examples import Example, collate
from limner.models import ModelInputs, build_model
from limner.models.video_captioner import VideoCaptioner, VideoCaptionerSettings

VOCAB, DIM = 9, 5


def model_of(features, **changes) -> VideoCaptioner:
    torch.manual_seed(0)
    settings = VideoCaptionerSettings.parse({"embedding_dim": 4, "hidden_dim": 3, **changes})
    return build_model(settings, ModelInputs(VOCAB, features)).eval()


def test_factored_lower_layer_does_not_see_the_clip():
    """Donahue et al.: the state of the first layer of LRCN-2f is independent of the image; that of LRCN-2u is not."""
    for visual_layer in (1, 2):
        model = model_of({"grid": (2, DIM)}, visual_layer=visual_layer)
        examples = [Example("", [4], None, {"grid": np.full((2, DIM), value, np.float16)}) for value in (1, -2)]
        batch = collate(examples)
        memory = model.encode(batch)
        _, state = model.step(batch.target_in[:, 0], memory, model.start(memory))
        first, second = state.layers
        assert torch.equal(first.hidden[0], first.hidden[1]) is (visual_layer == 2)
        assert not torch.equal(second.hidden[0], second.hidden[1])


def test_mean_pooling_ignores_the_order_and_the_frame_encoder_does_not():
    for frame_encoder_dim in (0, 4):
        model = model_of({"grid": (3, DIM)}, frame_encoder_dim=frame_encoder_dim)
        clip = np.random.default_rng(0).normal(size=(3, DIM)).astype(np.float16)
        batch = collate([Example("", [4], None, {"grid": values}) for values in (clip, clip[::-1].copy())])
        forwards, backwards = model(batch).logits
        assert torch.allclose(forwards, backwards, atol=1e-6) is (frame_encoder_dim == 0)


def test_an_image_is_a_clip_of_one_frame():
    """With the same weights, a pooled vector gives what one frame and padding give."""
    encoder = {"frames": "attention", "frame_encoder_dim": 4}
    of_images, of_clips = model_of({"pooled": (DIM,)}, **encoder), model_of({"grid": (3, DIM)}, **encoder)
    of_clips.load_state_dict(of_images.state_dict())
    vector = np.random.default_rng(0).normal(size=DIM).astype(np.float16)
    clip = np.stack([vector, 0 * vector, 0 * vector])
    image, video = (collate([Example("", [4, 5], None, values)]) for values in ({"pooled": vector}, {"grid": clip}))
    torch.testing.assert_close(of_images(image).logits, of_clips(video).logits)
