"""The single-pass loss and its gradient equal torch's cross-entropy."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from limner.data.examples import Example, collate
from limner.models.protocols import Mean, Output
from limner.training import losses
from limner.training.losses import IGNORED, word_loss

VOCAB = 9


@pytest.fixture(params=[1, 40, 1 << 18])
def rows_at_once(request, monkeypatch):
    monkeypatch.setattr(losses, "ELEMENTS_PER_CHUNK", request.param)


def batch():
    return collate([Example("", words) for words in ([4, 5, 8], [7], [], [4, 4, 5, 6, 7])])


def torchs(logits, data, smoothing):
    targets = data.target_out.masked_fill(~data.target_mask, IGNORED)
    flat = logits.flatten(0, 1)
    return cross_entropy(flat.to(torch.promote_types(flat.dtype, torch.float32)), targets.flatten(),
                         ignore_index=IGNORED, label_smoothing=smoothing)  # fmt: skip


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6), (torch.bfloat16, 2e-3)]
)
def test_loss_and_gradient_equal_torch(rows_at_once, dtype, tolerance, smoothing):
    data = batch()
    values = 5 * torch.randn(*data.target_out.shape, VOCAB, generator=torch.Generator().manual_seed(0))
    ours, theirs = (values.to(dtype).clone().requires_grad_() for _ in range(2))
    loss, expected = word_loss(Output(ours), data, smoothing), torchs(theirs, data, smoothing)
    (3 * loss).backward()
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=tolerance)
    assert not ours.grad[~data.target_mask].any()


def test_the_loss_of_certain_words_is_zero_and_of_impossible_words_infinite():
    data = dataclasses.replace(batch())
    logits = torch.full((*data.target_out.shape, VOCAB), -1e4).scatter(2, data.target_out.unsqueeze(2), 0.0)
    assert float(word_loss(Output(logits), data)) == 0
    assert float(word_loss(Output(logits.roll(1, 2)), data)) == pytest.approx(1e4, rel=1e-3)
    assert torch.isinf(word_loss(Output(torch.where(logits == 0, -torch.inf, 0.0)), data))


def test_a_model_may_define_an_auxiliary_or_its_own_loss():
    data = batch()
    logits = torch.randn(*data.target_out.shape, VOCAB)
    plain = word_loss(Output(logits), data)
    auxiliary, others = Mean(torch.tensor(6.0), 3), (Mean(torch.tensor(8.0), 2), Mean(torch.tensor(6.0), 2))
    assert float(word_loss(Output(logits, auxiliary_loss=auxiliary), data)) == pytest.approx(float(plain) + 2)
    assert float(word_loss(Output(logits, loss=others), data)) == 7
