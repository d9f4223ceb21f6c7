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


def test_an_image_is_a_clip_of_one_frame():
    """With the same weights, a pooled vector gives what one frame and padding give."""
    encoder = {"frames": "attention", "frame_encoder_dim": 4}
    of_images, of_clips = model_of({"pooled": (DIM,)}, **encoder), model_of({"grid": (3, DIM)}, **encoder)
    of_clips.load_state_dict(of_images.state_dict())
    vector = np.random.default_rng(0).normal(size=DIM).astype(np.float16)
    clip = np.stack([vector, 0 * vector, 0 * vector])
    image, video = (collate([Example("", [4, 5], None, values)]) for values in ({"pooled": vector}, {"grid": clip}))
    torch.testing.assert_close(of_images(image).logits, of_clips(video).logits)
