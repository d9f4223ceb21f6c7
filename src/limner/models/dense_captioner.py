"""Dense captioning: Johnson, Karpathy and Fei-Fei, DenseCap: Fully Convolutional Localization Networks (2016).

Shapes: B batch, T target length, C channels, H and W height and width of the maps, X and Y columns and rows of a
sampled region, A proposals of an image, D region code, E embedding, V vocabulary, N regions, P positive regions.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, dropout, smooth_l1_loss

from limner.bounds import Count, GridSide, PositiveShare, Rate, Weight, Width
from limner.data.examples import Batch, ImageFeatures, RegionBatch
from limner.layers.cells import CellSettings, CellState, build_cell
from limner.layers.functional import precise, require_numbers
from limner.layers.image_encoder import ImageEncoderSettings, MapEncoder, scale
from limner.layers.localisation import (
    LocalisationNetwork,
    LocalisationSettings,
    Proposals,
    apply_offsets,
    clip_to_image,
    nms,
    offsets_to,
    regions_in_image,
    sample_for_training,
    sample_regions,
)
from limner.models.protocols import ConditionalLMSettings, Mean, ModelInputs, Output
from limner.settings import Settings

WHOLE_IMAGE = (0.5, 0.5, 1.0, 1.0)


class DetectedRegions(NamedTuple):
    """Detected regions of one image, by descending confidence."""

    boxes: Tensor  # (R, 4): centre, width and height in fractions of the image
    scores: Tensor  # (R,): confidence, 0 to 1
    codes: Tensor  # (R, D): encoded regions, which `encode` takes as `pooled` features
    bonus: NDArray[np.float32] | None = None  # (V,): bonus of each word in the search for descriptions


class LossWeights(Settings):
    """Weights of the five losses; the defaults follow the paper, section 3.3."""

    proposal_score: Weight = 0.1
    """Weight of the confidences of the localisation network."""
    proposal_box: Weight = 0.1
    """Weight of the offsets of the localisation network."""
    final_score: Weight = 0.1
    """Weight of the confidences of the recognition network."""
    final_box: Weight = 0.1
    """Weight of the offsets of the recognition network."""
    caption: Weight = 1.0
    """Weight of the descriptions."""


class DetectionSettings(Settings):
    """Settings of the detection and description of regions at test time."""

    proposals: Count = 300
    """Number of proposals that the recognition network receives."""
    proposal_nms: PositiveShare = 0.7
    """Largest IoU of two proposals."""
    final_nms: PositiveShare = 0.3
    """Largest IoU of two detected regions."""
    concept_weight: Weight = 0.0
    """Weight of the concepts c of the built-in captioner of the language in the search for descriptions: the first
    occurrence of a word in a description adds `concept_weight` (log p(c | image) - log p(c)) of the concept that it
    names."""


class DenseCaptionerSettings(ConditionalLMSettings):
    """Settings of the dense captioner; the default sizes follow the paper and its published program."""

    describes_regions: ClassVar = True
    name: Literal["dense_captioner"] = "dense_captioner"
    localisation: LocalisationSettings = LocalisationSettings()
    """Anchors and filters of the localisation network, and the sampling of regions in training."""
    region_size: GridSide = 7
    """Rows Y and columns X of a sampled region."""
    code_dim: Width = 4096
    """Number of units of both layers of the recognition network."""
    embedding_dim: Width = 512
    """Size of the word embeddings and of the encoded region code."""
    hidden_dim: Width = 512
    """Number of units of the recurrent layer."""
    cell: CellSettings = CellSettings(name="lstm")
    """Recurrent cell of the language model."""
    dropout: Rate = 0.5
    """Dropout rate of both layers of the recognition network in training."""
    loss_weights: LossWeights = LossWeights()
    """Weights of the five losses."""
    detection: DetectionSettings = DetectionSettings()
    """Non-maximum suppression, and concepts in descriptions, at test time."""
    image_encoder: ImageEncoderSettings = ImageEncoderSettings(convnet_width=32)
    """Width of the convnet on pixels."""


class DenseLosses(NamedTuple):
    """The five losses of section 3.3, unweighted means over regions or tokens."""

    proposal_score: Mean
    proposal_box: Mean
    final_score: Mean
    final_box: Mean
    caption: Mean


class TrainingRegions(NamedTuple):
    """Sampled regions of the images of a batch: first the P positive regions, N in all."""

    features: Tensor  # (N, C, Y, X)
    boxes: Tensor  # (P, 4): positive proposals
    annotated: Tensor  # (P,): index of the annotated region of each in the batch
    is_region: Tensor  # (N,): 1 for positive regions, 0 for negative regions
    image: Tensor  # (N,): row of the image of each in the batch


class DenseCaptioner(nn.Module):
    """The dense captioner of Johnson et al. (2016), section 3.

    The localisation network (`LocalisationNetwork`) proposes boxes with a confidence on feature maps U (C, H, W). Every
    proposal is sampled to (C, Y, X) by bilinear interpolation (`sample_regions`), and the recognition network computes

        code = relu(W_2 relu(W_1 V + W_x x + b_1) + b_2)       both layers with dropout
        score = w_s · code + b_s                               final confidence (logit)
        box = proposal moved by W_b code + b_b                 `apply_offsets`

    The language model reads T + 2 vectors, x_{-1}, x_0, x_1, …, x_T:

        x_{-1} = relu(W_v code + b_v)                          the region
        x_0 = embedding of START, x_t = embedding of token s_t
        h_t = cell(x_t, h_{t-1}), logits of s_{t+1} = S h_t + b,  t >= 0

    `encode` reads the region in `batch.image.box`, the whole image where it is zero; without maps, region codes in
    `batch.image.pooled` that `detect` computed. In training, `forward` of a batch with annotated regions
    (`batch.regions`) returns the weighted sum of the five losses of section 3.3.

    Departures from the paper and its published program:

    - W_x x is absent from the paper: the pooled features x of the image, if there is a table of pooled features beside
      the maps; a context for the description of each region, as in Yang et al. (2017);
    - the CNN is not VGG-16, fine-tuned: the maps are stored features of a frozen backbone, or the output of a small
      convnet on pixels, which is trained from the start with all five losses; the recognition network is not
      initialised from VGG-16;
    - boxes and anchors are fractions of the image; proposals are clipped to the image in training too;
    - final boxes are clipped to the image, and boxes of less than 1 % of a side in it are left out, before the second
      non-maximum suppression; the published program keeps them as they are;
    - the samples of a region are the centres of its cells, and a location of the maps is the centre of its field;
    - the box losses add the four coordinates; their targets are constants, as in Faster R-CNN;
    - negative regions are not drawn twice where there are too few;
    - several annotations of one box are all used: one is drawn for each positive region;
    - initialisation: PyTorch's defaults, the last layers of scores and offsets normal with standard deviation 0.01.
    """

    Settings: ClassVar = DenseCaptionerSettings
    uses_image = True

    def __init__(self, settings: DenseCaptionerSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        shapes = dict(inputs.feature_shapes)
        pooled = shapes.pop("pooled", None) if len(shapes) > 1 else None
        self.image_encoder = MapEncoder(shapes, settings.image_encoder)
        channels, side = self.image_encoder.dim, settings.region_size
        self.localisation = LocalisationNetwork(channels, settings.localisation)
        self.recognition_1 = nn.Linear(channels * side * side, settings.code_dim)  # W_1, b_1
        self.context = None if pooled is None else nn.Linear(pooled[0], settings.code_dim, bias=False)  # W_x
        self.recognition_2 = nn.Linear(settings.code_dim, settings.code_dim)  # W_2, b_2
        self.final_score = nn.Linear(settings.code_dim, 1)  # w_s, b_s
        self.final_box = nn.Linear(settings.code_dim, 4)  # W_b, b_b
        self.visual = nn.Linear(settings.code_dim, settings.embedding_dim)  # W_v, b_v
        self.embedding = nn.Embedding(inputs.vocab_size, settings.embedding_dim)
        self.cell = build_cell(settings.cell, settings.embedding_dim, settings.hidden_dim)
        self.softmax = nn.Linear(settings.hidden_dim, inputs.vocab_size)  # S, b
        nn.init.normal_(self.embedding.weight, std=0.1)
        for layer in (self.final_score, self.final_box):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)

    def _context(self, image: ImageFeatures) -> Tensor:
        """Compute W_x x of each image, (B, D); zeros, (B, 1), without pooled features."""
        if self.context is None or image.pooled is None:
            return self.final_score.weight.new_zeros(len(image.present), 1)
        x = scale(image.pooled, self.settings.image_encoder.scaling)
        context: Tensor = self.context(dropout(x, self.settings.dropout, self.training))
        return context

    def _codes(self, features: Tensor, context: Tensor) -> Tensor:
        """Compute the codes (N, D) of sampled regions (N, C, Y, X) with the contexts of their images, (N or 1, D)."""
        rate = self.settings.dropout
        hidden = dropout(torch.relu(self.recognition_1(features.flatten(1)) + context), rate, self.training)
        return dropout(torch.relu(self.recognition_2(hidden)), rate, self.training)

    def region_codes(self, image: ImageFeatures) -> Tensor:
        """Compute the codes (B, D) of the boxes of images, or of the whole images; zeros for a missing image."""
        if image.pooled is not None and image.grid is None and image.maps is None:
            return image.pooled
        maps = self.image_encoder(image)
        if maps is None:
            return self.final_score.weight.new_zeros(len(image.present), self.settings.code_dim)
        boxes = maps.new_tensor(WHOLE_IMAGE).expand(len(image.present), 4)
        if image.box is not None:
            boxes = torch.where(image.box.any(1, keepdim=True), image.box, boxes)
        side = (self.settings.region_size, self.settings.region_size)
        features = sample_regions(maps, boxes, side)
        return self._codes(features, self._context(image)) * image.present[:, None]

    def encode(self, batch: Batch) -> Tensor:
        """Encode the region of each example: x_{-1}, (B, E)."""
        return torch.relu(self.visual(self.region_codes(batch.image)))

    def start(self, memory: Tensor) -> CellState:
        """Return the state after x_{-1}."""
        return self.cell(self.cell.project(memory), self.cell.start(len(memory)))  # type: ignore[no-any-return]

    def step(self, tokens: Tensor, memory: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Compute the logits (N K, V) after one more token (N K,) of hypotheses whose state has read the region."""
        state = self.cell(self.cell.project(self.embedding(tokens)), state)
        return self.softmax(state.hidden), state

    def forward(self, batch: Batch) -> Output:
        """Compute the logits (B, T, V) of all positions; in training with annotated regions also their loss.

        The logits then cover the positive regions only, (P, T, V).
        """
        if self.training and batch.regions is not None:
            losses, logits = self.losses(batch.image, batch.regions)
            weights = self.settings.loss_weights.model_dump()
            weighted = (Mean(weights[name] * loss.total, loss.number) for name, loss in losses._asdict().items())
            return Output(logits, loss=tuple(weighted))
        return Output(self._logits(self.encode(batch), batch.target_in))

    def _logits(self, memory: Tensor, tokens: Tensor) -> Tensor:
        """Compute the logits (B, T, V) after each of the tokens (B, T)."""
        state, hidden = self.start(memory), []
        for projected in self.cell.project(self.embedding(tokens)).unbind(1):
            state = self.cell(projected, state)
            hidden.append(state.hidden)
        logits: Tensor = self.softmax(torch.stack(hidden, 1))
        return logits

    def losses(self, image: ImageFeatures, regions: RegionBatch) -> tuple[DenseLosses, Tensor]:
        """Sample regions of training images and compute the five losses of section 3.3.

        Returns:
            The losses, and the logits of the P positive regions, (P, T, V).
        """
        maps = self.image_encoder(image)
        assert maps is not None, "dense captioning needs images to train on"
        proposals: Proposals = self.localisation(maps)
        require_numbers(proposals.scores, "confidences of regions")
        require_numbers(proposals.boxes, "boxes")
        sampled, score_loss, box_loss = self._sample(maps, proposals, regions)
        codes = self._codes(sampled.features, self._context(image)[sampled.image])
        positive = codes[: len(sampled.boxes)]
        targets = regions.box[sampled.annotated]
        logits = self._logits(torch.relu(self.visual(positive)), regions.target_in[sampled.annotated])
        words = regions.target_mask[sampled.annotated]
        expected = regions.target_out[sampled.annotated]
        return DenseLosses(
            proposal_score=score_loss,
            proposal_box=box_loss,
            final_score=_score_loss(precise(self.final_score(codes)).squeeze(1), sampled.is_region),
            final_box=_box_loss(self.final_box(positive), sampled.boxes, targets),
            caption=Mean(cross_entropy(precise(logits[words]), expected[words], reduction="sum"), int(words.sum())),
        ), logits

    def _sample(self, maps: Tensor, proposals: Proposals, regions: RegionBatch) -> tuple[TrainingRegions, Mean, Mean]:
        """Sample positive and negative regions of each image; compute the losses of the localisation network.

        Returns:
            The regions, the loss of their confidences, and the loss of the offsets of the positive regions.
        """
        settings = self.settings
        side = (settings.region_size, settings.region_size)
        positives, negatives = [], []
        anchors, offsets, boxes, annotated, scores = [], [], [], [], []
        for row in range(len(maps)):
            of_image = (regions.row == row).nonzero().squeeze(1)
            all_boxes = clip_to_image(proposals.boxes[row])
            sample = sample_for_training(all_boxes.detach(), regions.box[of_image], settings.localisation)
            chosen = torch.cat([sample.positive, sample.negative])
            features = sample_regions(maps[row], all_boxes[chosen].to(maps.dtype), side)
            positives.append(features[: len(sample.positive)])
            negatives.append(features[len(sample.positive) :])
            anchors.append(proposals.anchors[sample.positive])
            offsets.append(proposals.offsets[row, sample.positive])
            boxes.append(all_boxes[sample.positive])
            annotated.append(of_image[sample.matched])
            scores.append((proposals.scores[row, sample.positive], proposals.scores[row, sample.negative]))
        matched, images = torch.cat(annotated), torch.arange(len(maps), device=maps.device)
        rows = [images.repeat_interleave(images.new_tensor([*map(len, part)])) for part in (positives, negatives)]
        logits = torch.cat([positive for positive, _ in scores] + [negative for _, negative in scores])
        is_region = torch.cat([torch.ones_like(logits[: len(matched)]), torch.zeros_like(logits[len(matched) :])])
        return (
            TrainingRegions(torch.cat(positives + negatives), torch.cat(boxes), matched, is_region, torch.cat(rows)),
            _score_loss(logits, is_region),
            _box_loss(torch.cat(offsets), torch.cat(anchors), regions.box[matched]),
        )

    @torch.no_grad()
    def detect(self, image: ImageFeatures, *, count: int | None = None) -> list[DetectedRegions]:
        """Detect at most `count` regions of each of B images by descending confidence, section 3.2.3 and 3.3."""
        settings, detected = self.settings.detection, []
        side = (self.settings.region_size, self.settings.region_size)
        maps, context = self.image_encoder(image), self._context(image)
        assert maps is not None, "regions are detected in images"
        proposals: Proposals = self.localisation(maps)
        for row in range(len(maps)):
            boxes, inside = regions_in_image(proposals.boxes[row])
            boxes = boxes[nms(boxes, proposals.scores[row, inside], settings.proposal_nms, settings.proposals)]
            codes = self._codes(sample_regions(maps[row], boxes.to(maps.dtype), side), context[row])
            final, inside = regions_in_image(apply_offsets(boxes, precise(self.final_box(codes))))
            codes, scores = codes[inside], precise(self.final_score(codes[inside])).squeeze(1)
            kept = nms(final, scores, settings.final_nms, len(final) if count is None else count)
            detected.append(DetectedRegions(final[kept], scores[kept].sigmoid(), codes[kept]))
        return detected


def _score_loss(logits: Tensor, is_region: Tensor) -> Mean:
    """Compute the binary cross-entropy of the confidences of N regions, from logits (N,)."""
    return Mean(binary_cross_entropy_with_logits(logits, is_region, reduction="sum"), len(logits))


def _box_loss(offsets: Tensor, boxes: Tensor, targets: Tensor) -> Mean:
    """Compute the smooth L1 loss of offsets (P, 4) from boxes to targets, summed over the coordinates."""
    expected = offsets_to(boxes.detach(), targets.to(boxes.dtype))
    return Mean(smooth_l1_loss(precise(offsets), expected, reduction="sum"), len(offsets))
