"""The dense captioner and its layers: sampling of regions, localisation, training, detection."""

import pytest
import torch

from limner.data.examples import Example, ImageFeatures, RegionTarget, collate
from limner.errors import SettingsError
from limner.layers.image_encoder import ImageEncoderSettings, MapEncoder
from limner.layers.localisation import LocalisationSettings, clip_to_image, iou, sample_for_training
from limner.models import ModelInputs, build_model
from limner.models.dense_captioner import DenseCaptionerSettings


def settings(**changes):
    sizes = {
        "localisation": {"filters": 8, "anchor_scales": [0.3, 0.6], "sampled_regions": 16},
        "region_size": 3,
        "code_dim": 16,
        "embedding_dim": 6,
        "hidden_dim": 12,
        "dropout": 0.0,
        "image_encoder": {"convnet_width": 4},
    }
    return DenseCaptionerSettings.model_validate({**sizes, **changes})


def test_positive_and_negative_regions():
    annotated = torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.7, 0.7, 0.4, 0.4]])
    boxes = torch.tensor(
        [
            [0.3, 0.3, 0.2, 0.2],  # the first region
            [0.31, 0.3, 0.2, 0.2],  # nearly the first region
            [0.7, 0.8, 0.4, 0.4],  # the best of the second region, though below the threshold
            [0.7, 0.85, 0.4, 0.4],  # IoU .45: neither
            [0.1, 0.9, 0.1, 0.1],  # no overlap
        ]
    )
    torch.manual_seed(0)
    sample = sample_for_training(boxes, annotated, LocalisationSettings(sampled_regions=100))
    assert dict(zip(sample.positive.tolist(), sample.matched.tolist(), strict=True)) == {0: 0, 1: 0, 2: 1}
    assert sample.negative.tolist() == [4]
    few = sample_for_training(boxes, annotated, LocalisationSettings(sampled_regions=2))
    assert len(few.positive) == 1 and few.negative.tolist() == [4]
    none = sample_for_training(boxes, annotated[:0], LocalisationSettings(sampled_regions=3))
    assert len(none.positive) == 0 and len(none.negative) == 3


def test_several_descriptions_of_one_box_are_all_drawn():
    annotated = torch.tensor([[0.3, 0.3, 0.2, 0.2]] * 3)
    torch.manual_seed(0)
    drawn = {
        one
        for _ in range(20)
        for one in sample_for_training(annotated[:1], annotated, LocalisationSettings()).matched.tolist()
    }
    assert drawn == {0, 1, 2}


def scene(seed, square):
    """Pixels with a bright square of the given left, top and side, in 32 pixels."""
    torch.manual_seed(seed)
    left, top, side = square
    pixels = torch.randint(0, 60, (3, 32, 32)).float()
    pixels[seed % 3, top : top + side, left : left + side] += 180
    return pixels


def test_learns_to_find_and_describe_a_square():
    squares = [(2, 3, 14), (14, 12, 16), (16, 2, 13), (3, 15, 15), (9, 9, 14), (10, 3, 16)]
    examples = []
    for seed, (left, top, side) in enumerate(squares):
        box = [(left + side / 2) / 32, (top + side / 2) / 32, side / 32, side / 32]
        pixels = scene(seed, squares[seed]).half().numpy()
        regions = [RegionTarget(box, [4 + seed % 3])]
        examples.append(Example(str(seed), [4 + seed % 3], None, {"maps": pixels}, regions))
    torch.manual_seed(1)
    model = build_model(settings(), ModelInputs(8, {"maps": (3, 32, 32)})).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=300)
    data = collate(examples)
    for _ in range(300):
        optimizer.zero_grad()
        output = model(data)
        sum(term.value for term in output.loss).backward()
        optimizer.step()
        schedule.step()
    model.eval()
    found = model.detect(data.image, count=1)
    overlaps = [float(iou(one.boxes, data.regions.box[row : row + 1])) for row, one in enumerate(found)]
    assert min(overlaps) > 0.5
    codes = torch.cat([one.codes for one in found])
    described = collate([Example("", []) for _ in found])
    described.image = ImageFeatures(torch.ones(len(found), dtype=torch.bool), pooled=codes)
    assert model(described).logits[:, 0].argmax(1).tolist() == [4 + seed % 3 for seed in range(6)]


def test_gradients_of_the_descriptions_reach_the_offsets_through_the_sampled_boxes():
    torch.manual_seed(0)
    weights = {"proposal_score": 0, "proposal_box": 0, "final_score": 0, "final_box": 0, "caption": 1}
    model = build_model(settings(loss_weights=weights), ModelInputs(8, {"maps": (5, 6, 6)})).train()
    regions = [RegionTarget([0.5, 0.5, 0.4, 0.4], [4, 5])]
    data = collate([Example("a", [4, 5], None, {"maps": torch.randn(5, 6, 6).half().numpy()}, regions)])
    terms = model(data).loss
    sum(term.value for term in terms).backward()
    gradient = dict(model.named_parameters())["localisation.output.weight"].grad
    by_anchor = gradient.view(-1, 5, gradient.shape[1])
    assert by_anchor[:, :4].abs().sum() > 0
    assert by_anchor[:, 4].abs().sum() == 0


def test_without_a_positive_region_the_loss_of_descriptions_is_zero():
    torch.manual_seed(0)
    small_anchors = {"filters": 8, "anchor_scales": [0.2], "anchor_ratios": [1.0], "sampled_regions": 4}
    model = build_model(settings(localisation=small_anchors), ModelInputs(8, {"maps": (5, 2, 2)})).train()
    regions = [RegionTarget([0.02, 0.02, 0.04, 0.04], [4, 5])]  # in the corner, where no anchor is
    data = collate([Example("a", [4, 5], None, {"maps": torch.randn(5, 2, 2).half().numpy()}, regions)])
    losses, _ = model.losses(data.image, data.regions)
    assert losses.caption.value.item() == 0
    terms = model(data).loss
    loss = sum(term.value for term in terms)
    assert loss.isfinite()
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert gradients["softmax.weight"] is not None and not gradients["softmax.weight"].any()
    assert all(gradient is None or gradient.isfinite().all() for gradient in gradients.values())


def test_codes_of_detected_regions_describe_the_same_as_their_boxes():
    torch.manual_seed(0)
    model = build_model(settings(), ModelInputs(8, {"maps": (5, 6, 6)})).eval()
    maps = torch.randn(1, 5, 6, 6)
    (found,) = model.detect(ImageFeatures(torch.tensor([True]), maps=maps), count=3)
    assert (found.scores[:-1] >= found.scores[1:]).all()
    torch.testing.assert_close(clip_to_image(found.boxes), found.boxes)
    sentences = collate([Example("", [4, 5])] * len(found.codes))
    present = torch.ones(len(found.codes), dtype=torch.bool)
    by_code = sentences.to(torch.device("cpu"))
    by_code.image = ImageFeatures(present, pooled=found.codes)
    # The code is that of the proposal, so a model without final offsets has detected boxes equal to the proposals.
    with torch.no_grad():
        model.final_box.weight.zero_()
        (found,) = model.detect(ImageFeatures(torch.tensor([True]), maps=maps), count=3)
        by_code.image = ImageFeatures(present, pooled=found.codes)
        by_box = sentences.to(torch.device("cpu"))
        by_box.image = ImageFeatures(present, maps=maps.expand(3, -1, -1, -1), box=found.boxes)
        torch.testing.assert_close(model(by_code).logits, model(by_box).logits)


@pytest.mark.parametrize(("shift", "some"), [(1.5, True), (-1.5, True), (1e6, False)])
def test_final_boxes_are_cut_off_at_the_edges_and_those_outside_left_out(shift, some):
    """The second regression moves all boxes by `shift` widths; suppression is off."""
    torch.manual_seed(0)
    overlapping = {"proposal_nms": 1.0, "final_nms": 1.0}
    model = build_model(settings(detection=overlapping), ModelInputs(8, {"maps": (5, 6, 6)})).eval()
    image = ImageFeatures(torch.tensor([True, True]), maps=torch.randn(2, 5, 6, 6))
    with torch.no_grad():
        model.final_box.weight.zero_()
        every = model.detect(image)
        model.final_box.bias.copy_(torch.tensor([shift, 0.0, 0.0, 0.0]))
        moved = model.detect(image)
    for before, after in zip(every, moved, strict=True):
        expected = before.boxes + before.boxes[:, 2:3] * torch.tensor([shift, 0.0, 0.0, 0.0])
        left, right = ((expected[:, 0] + sign * expected[:, 2] / 2).clamp(0, 1) for sign in (-1, 1))
        assert len(after.boxes) == len(after.scores) == len(after.codes) == int((right - left >= 0.01).sum())
        assert len(after.boxes) < len(before.boxes) and (len(after.boxes) > 0) == some
        assert (after.boxes[:, 2:] >= 0.01).all()
        torch.testing.assert_close(clip_to_image(after.boxes), after.boxes)


def test_a_square_grid_is_read_as_maps_row_by_row():
    grid = torch.arange(18.0).view(1, 9, 2)
    encoder = MapEncoder({"grid": (9, 2)}, ImageEncoderSettings())
    maps = encoder(ImageFeatures(torch.tensor([True]), grid=grid))
    torch.testing.assert_close(maps[0, 1], grid[0, :, 1].view(3, 3))
    flat = MapEncoder({"maps": (2, 3, 3)}, ImageEncoderSettings())(ImageFeatures(torch.tensor([True]), maps=maps))
    torch.testing.assert_close(flat, maps)


@pytest.mark.parametrize("shapes", [{}, {"pooled": (4,)}, {"grid": (5, 4)}, {"maps": (3, 32, 32), "grid": (9, 4)}])
def test_other_features_are_refused(shapes):
    with pytest.raises(SettingsError, match="one table of a square grid"):
        build_model(settings(), ModelInputs(8, shapes))


def test_pooled_features_are_the_context_of_every_region_of_their_image():
    torch.manual_seed(3)
    model = build_model(settings(), ModelInputs(8, {"grid": (16, 5), "pooled": (4,)})).eval()
    image = ImageFeatures(torch.ones(2, dtype=torch.bool), pooled=torch.randn(2, 4), grid=torch.zeros(2, 16, 5))
    context = model.context(image.pooled)
    codes = torch.stack([model._codes(torch.zeros(1, 5, 3, 3), row)[0] for row in context])
    torch.testing.assert_close(model.region_codes(image), codes)
    for detected, code in zip(model.detect(image), codes, strict=True):
        torch.testing.assert_close(detected.codes, code.expand_as(detected.codes))
    maps = torch.stack([torch.zeros(5, 4, 4), torch.ones(5, 4, 4)])  # the value of a location is the row of its image
    regions = collate([Example(str(n), [4], None, {}, [RegionTarget([0.5, 0.5, 0.5, 0.5], [4])]) for n in range(2)])
    sampled, *_ = model._sample(maps, model.localisation(maps), regions.regions)
    assert torch.equal((sampled.features.amax((1, 2, 3)) > 0).long(), sampled.image)
