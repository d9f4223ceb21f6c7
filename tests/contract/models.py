"""Cases of the model contract. A new model adds its cases here only."""

from math import log
from typing import NamedTuple, get_args

import numpy as np

from limner.data.examples import Batch, Example, RegionTarget, collate
from limner.layers.image_encoder import COLOURS
from limner.models import Model, ModelInputs, ModelSettings, build_model
from limner.models.bag_of_words import BagOfWordsSettings
from limner.models.dense_captioner import DenseCaptionerSettings
from limner.models.hmm import HMMSettings
from limner.models.log_bilinear import LBLSettings
from limner.models.mrnn import MRNNSettings, Variant
from limner.models.ngram import NGramSettings
from limner.models.nmt import NMTSettings
from limner.models.rnn import RNNSettings
from limner.models.sequence_labeller import SequenceLabellerSettings
from limner.models.show_and_tell import ShowAndTellSettings
from limner.models.show_attend_tell import ShowAttendTellSettings
from limner.models.transformer import TransformerSettings
from limner.models.video_captioner import VideoCaptionerSettings

VOCAB, SOURCE_VOCAB = 11, 9


class Case(NamedTuple):
    name: str
    settings: ModelSettings
    image: dict[str, tuple[int, ...]]
    uses_image: bool = True
    lr: float = 0.01
    floor: float = 0.0  # loss per token that what the model leaves out costs on `batch` with any weights
    labels: str = ""
    """Length of all targets of a model of labels: 'last' for one label, 'every' for one of each step."""
    of_regions: bool = False

    @property
    def translates(self) -> bool:
        return getattr(self.settings, "translates", False)

    def build(self) -> Model:
        return build_model(self.settings, ModelInputs(VOCAB, self.image, SOURCE_VOCAB if self.translates else None))


def _mrnn(variant: str = "m-RNN", **changes: object) -> MRNNSettings:
    multimodal = 6 if variant == "visInRnn-both-shared" else 8
    sizes = {
        "embedding_dim": 5,
        "hidden_dim": 6,
        "multimodal_dim": multimodal,
        "image_encoder": {"convnet_dim": 7, "convnet_width": 4},
    }
    return MRNNSettings.model_validate({"variant": variant, **sizes, **changes})


def _lbl(variant: str, **changes: object) -> LBLSettings:
    sizes = {
        "word_dim": 6,
        "factors": 8,
        "context": 3,
        "image_encoder": {"convnet_dim": 7, "convnet_width": 4},
        "init_std": 0.3,
    }
    return LBLSettings.model_validate({"variant": variant, **sizes, **changes})


def _nmt(**changes: object) -> NMTSettings:
    sizes = {"embedding_dim": 5, "hidden_dim": 6, "attention_dim": 7, "readout_dim": 8, "initial_std": 0.3}
    return NMTSettings.model_validate({**sizes, **changes})


def _transformer(**changes: object) -> TransformerSettings:
    sizes = {"hidden_dim": 8, "inner_dim": 10, "heads": 2, "layers": 2, "dropout": 0.0}
    return TransformerSettings.model_validate({**sizes, **changes})


def _tell(**changes: object) -> ShowAndTellSettings:
    sizes = {"embedding_dim": 5, "hidden_dim": 6, "image_encoder": {"convnet_dim": 7, "convnet_width": 4}}
    return ShowAndTellSettings.model_validate({**sizes, **changes})


def _attend(**changes: object) -> ShowAttendTellSettings:
    sizes = {"embedding_dim": 5, "hidden_dim": 6, "attention_dim": 7, "doubly_stochastic": 0.005}
    return ShowAttendTellSettings.model_validate({**sizes, "image_encoder": {"convnet_width": 4}, **changes})


def _rnn(**changes: object) -> RNNSettings:
    return RNNSettings.model_validate({"embedding_dim": 5, "hidden_dim": 6, **changes})


def _labeller(name: str, uses_image: bool = False, **changes: object) -> Case:
    sizes = {"word_dim": 5, "hidden_dim": 6, "label_dim": 3, "reads": "image" if uses_image else "source"}
    settings = SequenceLabellerSettings.model_validate({**sizes, **changes})
    image = {"grid": (3, 4)} if uses_image else {}
    return Case(f"labeller-{name}", settings, image, uses_image, lr=0.03, labels=settings.outputs)


def _dense(**changes: object) -> DenseCaptionerSettings:
    sizes = {
        "localisation": {"filters": 6, "anchor_scales": [0.5], "sampled_regions": 8},
        "region_size": 2,
        "code_dim": 12,
        "embedding_dim": 5,
        "hidden_dim": 8,
        "dropout": 0.0,
        "image_encoder": {"convnet_width": 4},
    }
    return DenseCaptionerSettings.model_validate({**sizes, **changes})


def _video(**changes: object) -> VideoCaptionerSettings:
    sizes = {
        "embedding_dim": 8,
        "hidden_dim": 10,
        "attention_dim": 7,
        "image_encoder": {"convnet_dim": 16, "convnet_width": 4},
    }
    return VideoCaptionerSettings.model_validate({**sizes, **changes})


SOFT = {f"{part}_dropout": 0.1 for part in ("encoder", "annotation", "decoder", "readout", "source_word")} | {
    "image_encoder": {"dropout": 0.1}
}  # no effect in evaluation mode

CASES = [
    *(Case(f"mrnn-{name}", _mrnn(name), {"pooled": (4,)}, name != "RNN-base") for name in get_args(Variant)),
    Case("mrnn-relu", _mrnn(embedding_activation="relu"), {"pooled": (4,)}),
    Case("mrnn-l2", _mrnn(image_encoder={"scaling": "l2"}), {"pooled": (4,)}),
    Case("mrnn-lstm", _mrnn(cell="lstm"), {"pooled": (4,)}),
    Case("mrnn-leaky", _mrnn("visInRnn", cell={"name": "leaky", "learn_time_constant": True}), {"pooled": (4,)}),
    Case("mrnn-grid", _mrnn(), {"grid": (3, 4)}),
    Case("mrnn-pixels", _mrnn(), {"maps": (3, 16, 16)}),
    Case("mrnn-maps", _mrnn(image_encoder={"convnet_dim": 32}, hidden_dim=12, multimodal_dim=24), {"maps": (5, 9, 9)}),
    Case("lbl", _lbl("LBL"), {"pooled": (4,)}, uses_image=False),
    Case("mlbl-b", _lbl("MLBL-B"), {"pooled": (4,)}),
    Case("mlbl-b-unit", _lbl("MLBL-B", image_encoder={"scaling": "unit"}), {"pooled": (4,)}),
    Case("mlbl-b-conv", _lbl("MLBL-B", image_encoder={"convnet_dim": 32}, init_std=0.1), {"maps": (5, 9, 9)}),
    Case("mlbl-f", _lbl("MLBL-F"), {"pooled": (4,)}),
    Case("bow", BagOfWordsSettings(), {"pooled": (4,)}, lr=0.2),
    Case("bow-maps", BagOfWordsSettings(), {"maps": (5, 3, 3)}, lr=0.2),
    *(Case(f"ngram-{order}", NGramSettings(order=order), {}, uses_image=False) for order in (1, 2, 3)),
    Case("hmm", HMMSettings(states=3, iterations=4, pseudo_count=0.1), {}, uses_image=False),
    Case("rnn", _rnn(), {}, uses_image=False),
    Case("rnn-gru-step", _rnn(cell="gru", conditioning="every-step", dropout=0.1), {"pooled": (4,)}, lr=0.03),
    Case("rnn-tanh-start", _rnn(cell="tanh", conditioning="initial-state", output_layers=1), {"pooled": (4,)}),
    Case("rnn-deep", _rnn(conditioning="both", layers=2, output_layers=1), {"pooled": (4,)}, lr=0.03),
    Case("rnn-delay", _rnn(cell="tanh", conditioning="both", delay=2, transition_layers=1), {"pooled": (4,)}, lr=0.03),
    Case("rnn-length-image", _rnn(conditioning="both", length="explicit", max_length=6), {"grid": (3, 4)}, lr=0.03),
    Case("rnn-length", _rnn(length="explicit", max_length=6), {}, uses_image=False, lr=0.03, floor=3 * log(3) / 13),
    Case("rnn-output", _rnn(cell="tanh", output_recurrence=True), {}, uses_image=False),
    Case(
        "rnn-output-image",
        _rnn(cell="tanh", output_recurrence=True, conditioning="every-step", layers=2),
        {"pooled": (4,)},
        lr=0.03,
        floor=2 * log(2) / 13,  # a word that comes twice in a sentence has two successors
    ),
    Case("mlbl-f-conv", _lbl("MLBL-F", image_encoder={"convnet_dim": 32}, init_std=0.1), {"maps": (5, 9, 9)}),
    Case("dense-maps", _dense(), {"maps": (5, 4, 3)}, lr=0.025, of_regions=True),
    Case("dense-pixels", _dense(cell="gru"), {"maps": (3, 32, 32)}, lr=0.025, of_regions=True),
    Case("nmt", _nmt(), {}, uses_image=False, lr=0.03),
    Case("nmt-lstm", _nmt(cell="lstm"), {}, uses_image=False, lr=0.03),
    Case("nmt-peephole", _nmt(cell="peephole", decoder="plain", image=["attention"]), {"grid": (3, 4)}, lr=0.03),
    Case("nmt-tied", _nmt(tie_embeddings=True, readout_dim=5), {}, uses_image=False, lr=0.03),
    Case("nmt-shared", _nmt(tie_embeddings=True, share_embeddings=True, readout_dim=5), {}, uses_image=False, lr=0.03),
    Case("nmt-deep-encoder", _nmt(encoder_layers=2), {}, uses_image=False, lr=0.03),
    Case("nmt-encoder-dim", _nmt(encoder_dim=4), {}, uses_image=False, lr=0.03),
    Case("nmt-first", _nmt(initial_state="first"), {}, uses_image=False, lr=0.03),
    Case("nmt-plain", _nmt(decoder="plain"), {}, uses_image=False, lr=0.03),
    Case("nmt-src-img", _nmt(image=["attention"]), {"grid": (3, 4)}, lr=0.03),
    Case("nmt-src-img-soft", _nmt(image=["attention"], **SOFT), {"grid": (3, 4)}, lr=0.03),
    Case("nmt-pixels", _nmt(image=["attention"], image_encoder={"convnet_width": 4}), {"maps": (3, 32, 32)}, lr=0.03),
    Case("nmt-initial", _nmt(image=["initial"]), {"pooled": (4,)}, lr=0.03),
    Case("nmt-fc7", _nmt(decoder="plain", image=["initial"], initial_state="first"), {"pooled": (4,)}, lr=0.03),
    Case("nmt-fc7-grid", _nmt(decoder="plain", image=["initial"], initial_state="first"), {"grid": (3, 4)}, lr=0.03),
    Case(
        "nmt-doubly",
        _nmt(decoder="plain", image=["initial", "attention"], initial_state="first"),
        {"pooled": (4,), "grid": (3, 4)},
        lr=0.03,
    ),
    Case("nmt-doubly-soft", _nmt(decoder="plain", image=["attention"], **SOFT), {"grid": (3, 4)}, lr=0.03),
    Case("nmt-m1", _nmt(image=["prefix"]), {"pooled": (4,)}, lr=0.03),
    Case("nmt-m3", _nmt(image=["prefix"]), {"grid": (3, 4)}, lr=0.03),
    Case("nmt-m1-first", _nmt(decoder="plain", image=["prefix"], initial_state="first"), {"pooled": (4,)}, lr=0.03),
    Case("transformer", _transformer(), {}, uses_image=False, lr=0.02),
    Case("transformer-pre", _transformer(norm="pre"), {}, uses_image=False, lr=0.02),
    Case("transformer-own-embeddings", _transformer(share_embeddings=False), {}, uses_image=False, lr=0.02),
    _labeller("final"),
    _labeller("mean", pooling="mean", cell="gru", layers=2),
    _labeller("max", pooling="max", cell="tanh", bidirectional=True),
    _labeller("every", uses_image=True, outputs="every", cell="gru"),
    _labeller("every-bidirectional", outputs="every", bidirectional=True, dropout=0.1, word_dropout=0.1),
    _labeller("output-recurrence", uses_image=True, outputs="every", previous_label=True, cell="none"),
    _labeller("clip", uses_image=True, pooling="mean", bidirectional=True),
    _labeller("clip-final", uses_image=True, projection_dim=5),
    _labeller("frames", uses_image=True, outputs="every", previous_label=True, bidirectional=True),
    Case("nmt-all", _nmt(image=["prefix", "initial", "attention"], **SOFT), {"pooled": (4,), "grid": (3, 4)}, lr=0.03),
    Case("show-and-tell", _tell(), {"pooled": (4,)}, lr=0.02),
    Case("show-and-tell-gru-2", _tell(cell="gru", layers=2), {"grid": (3, 4)}, lr=0.02),
    Case("show-and-tell-pixels", _tell(cell="lstm"), {"maps": (3, 16, 16)}, lr=0.02),
    Case("show-attend-tell", _attend(), {"grid": (3, 4)}, lr=0.02),
    Case("show-attend-tell-gru", _attend(cell="gru", output_activation="tanh"), {"grid": (2, 4)}, lr=0.02),
    Case("show-attend-tell-scans", _attend(image_encoder={"grid_rnn_dim": 3}), {"grid": (4, 4)}, lr=0.02),
    Case("show-attend-tell-projects", _attend(image_encoder={"projection_dim": 5}), {"grid": (3, 4)}, lr=0.02),
    Case("show-and-tell-projects", _tell(cell="lstm", image_encoder={"projection_dim": 5}), {"pooled": (4,)}, lr=0.02),
    Case("show-and-tell-scans", _tell(cell="lstm", image_encoder={"grid_rnn_dim": 3}), {"grid": (4, 4)}, lr=0.02),
    Case("show-attend-tell-pixels", _attend(), {"maps": (3, 32, 32)}, lr=0.02),
    Case("show-attend-tell-hard", _attend(attention="hard"), {"grid": (3, 4)}, lr=0.02),
    Case("show-attend-tell-sample", _attend(attention="hard", test_attention="sample"), {"grid": (3, 4)}, lr=0.02),
    Case("video-mean", _video(), {"grid": (3, 4)}, lr=0.02),
    Case("video-image", _video(), {"pooled": (4,)}, lr=0.02),
    Case("video-lrcn-1u", _video(layers=1, cell="peephole"), {"grid": (3, 4)}, lr=0.02),
    Case("video-lrcn-2f", _video(visual_layer=2), {"grid": (3, 4)}, lr=0.02),
    Case("video-attention-2f", _video(visual_layer=2, frames="attention"), {"grid": (3, 4)}, lr=0.02),
    Case("video-last", _video(frames="last", frame_encoder_dim=12), {"grid": (3, 4)}, lr=0.03),
    Case("video-encoder-attention", _video(frames="attention", frame_encoder_dim=12), {"grid": (3, 4)}, lr=0.03),
    Case("video-pixels", _video(layers=1), {"maps": (2, 3, 16, 16)}, lr=0.02),
]


def example(case: Case, seed: int, length: int, with_image: bool = True) -> Example:
    random = np.random.default_rng(seed)
    values = {
        kind: (
            random.integers(0, 256, shape) if (kind, shape[-3:][0]) == ("maps", COLOURS) else random.normal(size=shape)
        ).astype(np.float16)
        for kind, shape in case.image.items()
    }
    steps = case.image["grid"][0] if case.labels and case.uses_image else 1 + seed * 3 % 5
    length = {"last": 1, "every": steps}.get(case.labels, length)
    target = random.integers(4, VOCAB, length).tolist()
    regions = None
    if case.of_regions and with_image:
        values["box"] = np.array([*random.uniform(0.4, 0.6, 2), *random.uniform(0.3, 0.7, 2)], np.float32)
        regions = [RegionTarget(values["box"].tolist(), target)]
    source = random.integers(4, SOURCE_VOCAB, 1 + seed * 3 % 5).tolist() if case.translates else None
    return Example(f"item{seed}", target, source, values if with_image and values else None, regions)


def batch(case: Case, lengths: tuple[int, ...] = (3, 1, 5, 0)) -> Batch:
    return collate([example(case, seed, length) for seed, length in enumerate(lengths)])
