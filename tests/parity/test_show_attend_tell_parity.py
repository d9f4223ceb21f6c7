"""Show, Attend and Tell: hard attention and losses against the oracle, REINFORCE against enumeration."""

import math

import numpy as np
import oracle_show_attend_tell as oracle
import pytest
import torch
from parity_models import array, arrays, attend_weights, batch_of, randomised

from limner.data.examples import Batch, Example
from limner.decoding.scoring import sentence_log_probs
from limner.models import show_attend_tell
from limner.models.protocols import ModelInputs
from limner.models.show_attend_tell import ShowAttendTell, ShowAttendTellSettings, draw_location
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.losses import word_loss

LOCATIONS, DIM = 2, 3
SENTENCES = [[4, 6], [5], []]
GRIDS = np.random.default_rng(8).normal(size=(len(SENTENCES), LOCATIONS, DIM)).astype(np.float16)


def model_and_theta(**changes) -> tuple[ShowAttendTell, dict[str, np.ndarray]]:
    """A model in float64 with random weights, and the same weights for the oracle."""
    sizes = {"embedding_dim": 3, "hidden_dim": 4, "attention_dim": 5}
    settings = ShowAttendTellSettings.parse({**sizes, **changes})
    model = randomised(ShowAttendTell(settings, ModelInputs(7, {"grid": (LOCATIONS, DIM)})), scale=0.7, seed=7)
    return model, attend_weights(model, arrays(model))


def data(rows=(0, 1, 2)) -> Batch:
    return batch_of([Example(str(row), SENTENCES[row], None, {"grid": GRIDS[row]}) for row in rows])


def words(row: int) -> list[int]:
    return [SPECIAL_TOKENS.bos, *SENTENCES[row], SPECIAL_TOKENS.eos]


def test_the_loss_of_soft_attention_has_the_doubly_stochastic_penalty() -> None:
    model, theta = model_and_theta(doubly_stochastic=0.3)
    loss = word_loss(model.train()(data()), data())
    losses = [oracle.soft_loss(theta, grid, words(row), 0.3) for row, grid in enumerate(GRIDS.astype(np.float64))]
    tokens = sum(len(words(row)) - 1 for row in range(len(SENTENCES)))
    assert float(loss.detach()) == pytest.approx(sum(losses) / tokens, abs=1e-10)


def test_hard_attention_at_test_time_selects_the_most_probable_location() -> None:
    model, theta = model_and_theta(attention="hard")
    output = model.eval()(data())
    ours = sentence_log_probs(output, data())
    for row, grid in enumerate(GRIDS.astype(np.float64)):
        path = output.attention[row].argmax(-1).tolist()[: len(words(row)) - 1]
        steps = oracle.run(theta, grid, words(row), path)
        assert oracle.log_prob(steps, words(row)) == pytest.approx(float(ours[row].detach()), abs=1e-10)
        assert path == [int(step.alpha.argmax()) for step in steps]
        for t, step in enumerate(steps):
            np.testing.assert_allclose(output.attention[row, t].detach(), step.alpha, atol=1e-12)
            assert output.selected[row, t].tolist() == [float(place == path[t]) for place in range(LOCATIONS)]


def sampled_gradient(model: ShowAttendTell, path: tuple[int, ...], monkeypatch) -> dict[str, np.ndarray]:
    """Gradient of the objective (not the loss) of the first sentence for one sequence of sampled locations."""
    locations = iter(path)
    monkeypatch.setattr(show_attend_tell, "draw_location", lambda alpha, draw: torch.tensor([next(locations)] * 2))
    model.zero_grad()
    word_loss(model(data([0])), data([0])).backward()
    return attend_weights(model, {name: -len(path) * array(p.grad) for name, p in model.named_parameters()})


@pytest.mark.parametrize(("reinforce", "entropy", "rate"), [(1.0, 0.0, 0.0), (1.0, 0.0, 0.3), (0.6, 0.2, 0.5)])
def test_the_mean_gradient_of_hard_attention_is_that_of_equation_12(reinforce, entropy, rate, monkeypatch) -> None:
    """The mean over all paths s ~ p(s | a); without entropy it is the exact gradient of the lower bound (eq. 11)."""
    changes = {"reinforce": reinforce, "entropy": entropy, "expected_rate": rate}
    model, theta = model_and_theta(attention="hard", **changes)
    grid, model = GRIDS[0].astype(np.float64), model.train()
    total = {name: np.zeros_like(value) for name, value in theta.items()}
    for path in oracle.all_paths(grid, words(0)):
        share = math.exp(oracle.follow(theta, grid, words(0), path).log_path)
        for name, gradient in sampled_gradient(model, path, monkeypatch).items():
            total[name] += share * gradient
    options = {"baseline": -1.5, "reinforce": reinforce, "entropy": entropy, "expected_rate": rate}
    for name, gradient in oracle.expected_gradient(theta, grid, words(0), **options).items():
        np.testing.assert_allclose(total[name], gradient, atol=1e-6, err_msg=name)
    if not entropy and not rate:
        for name, gradient in oracle.lower_bound_gradient(theta, grid, words(0)).items():
            np.testing.assert_allclose(total[name], gradient, atol=1e-6, err_msg=name)


def test_the_rewards_of_both_paths_have_the_same_dropout() -> None:
    """With a single location both paths are the same, so that their losses are equal."""
    grid = {"grid": GRIDS[0][:1]}
    batch, losses = batch_of([Example("0", SENTENCES[0], None, grid)]), []
    model, _ = model_and_theta(attention="hard", dropout=0.5)
    for rate in (0.0, 1.0):
        model.settings = model.settings.model_copy(update={"expected_rate": rate})
        torch.manual_seed(3)
        losses.append(float(word_loss(model.train()(batch), batch).detach()))
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)


def test_test_attention_expected_uses_the_contexts_of_soft_attention() -> None:
    model, theta = model_and_theta(attention="hard", test_attention="expected")
    ours = sentence_log_probs(model.eval()(data()), data())
    for row, grid in enumerate(GRIDS.astype(np.float64)):
        expected = oracle.log_prob(oracle.run(theta, grid, words(row)), words(row))
        assert float(ours[row].detach()) == pytest.approx(expected, abs=1e-10)


def test_the_temperature_divides_the_energies() -> None:
    sharp, plain = (model_and_theta(temperature=value)[0].eval() for value in (0.5, 1.0))
    sharp.load_state_dict(plain.state_dict())
    first, expected = sharp(data()).attention[:, 0].detach(), plain(data()).attention[:, 0].detach()
    np.testing.assert_allclose(first, (2 * expected.log()).softmax(-1), atol=1e-10)


def test_locations_are_drawn_at_the_inverse_of_the_distribution() -> None:
    alpha = torch.tensor([[0.0, 0.25, 0.75, 0.0]]).expand(5, -1)
    draws = torch.tensor([0.0, 0.24, 0.26, 0.999, 1.0], dtype=torch.float64)
    assert draw_location(alpha, draws).tolist() == [1, 1, 2, 2, 2]
