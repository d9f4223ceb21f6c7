"""Models in the format of transformers: our search and scores against those of the library, on tiny random models."""

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import limner
from hub_models import END, GERMAN, PAD, PROMPTED, SPACES, START, UNKNOWN, save_model
from limner.hub.families.joint_space import HubSpace
from limner.hub.inputs import OFFSET
from limner.text.vocab import SPECIAL_TOKENS

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's processor
CAPTIONERS = ("blip", "vision-encoder-decoder", "git")
TRANSLATORS = ("marian", "m2m_100", "mbart")
SIZES = [(40, 50, 3), (40, 50, 3), (80, 50, 3)]
RANDOM = np.random.default_rng(2)
IMAGES = [Image.fromarray(RANDOM.integers(0, 255, size, dtype=np.uint8)) for size in SIZES]
SOURCES = ["a red dog runs", "the beach", "w1 w2 w3 w4 w5 w6 w7"]
CAPTIONS = ["a red dog", "the dog runs on the beach", "w3"]


@pytest.fixture(scope="module", params=[*CAPTIONERS, *PROMPTED, *TRANSLATORS])
def pair(request, tmp_path_factory):
    """Our model and the library's, with the input of the library for all images or sentences."""
    folder = tmp_path_factory.mktemp("hub") / request.param
    first = {"m2m_100": GERMAN, "mbart": GERMAN, "florence2": START}
    many = {"forced_bos_token_id": first[request.param]} if request.param in first else {}
    banned = {"bad_words_ids": [[PAD]]} if request.param == "marian" else {}
    banned |= {"forced_eos_token_id": None} if request.param in ("marian", "mbart", "florence2") else {}
    if request.param == "smolvlm":
        pytest.importorskip("num2words")
    theirs = save_model(request.param, folder, **many, **banned)
    ours = limner.load(folder)
    if request.param in PROMPTED:
        options = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
        batch = ours.network.processor(text=[ours.network.text] * 3, images=[[image] for image in IMAGES], **options)
        return ours, theirs, {name: values for name, values in batch.items() if name != "labels"}
    if request.param in TRANSLATORS:
        batch = ours.hub_tokenizer(SOURCES, padding=True, return_tensors="pt")
        return ours, theirs, {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    features = ours.features_port(IMAGES)([type("Request", (), {"source": image}) for image in IMAGES])
    return ours, theirs, {"pixel_values": torch.from_numpy(np.stack([entry["maps"] for entry in features]))}


def decode(model, rows=(0, 1, 2), **options):
    if hasattr(model, "translate"):
        return model.translate([SOURCES[row] for row in rows], **options)
    return model.describe([IMAGES[row] for row in rows], **options)


def ids_of(sentence):
    """Return the tokens of the hub."""
    return [UNKNOWN if token == SPECIAL_TOKENS.unk else token - OFFSET for token in sentence.tokens]


def is_decoder(model):
    """Whether a network has the prompt and the sentence in one sequence."""
    return getattr(model.network, "is_decoder", False)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize(("width", "early"), [(1, None), (3, True), (3, False)])
def test_sequences_and_scores_equal_generate(pair, width, early, penalty):
    ours, theirs, inputs = pair
    options = {} if width == 1 else {"early_stopping": early, "length_penalty": penalty, "num_return_sequences": width}
    with torch.no_grad():
        expected = theirs.generate(
            **inputs, num_beams=width, max_new_tokens=10, return_dict_in_generate=True, output_scores=True, **options
        )
    stop = "full" if early else "improve"
    got = decode(ours, beam_size=width, n_best=width, length_penalty=penalty, stop=stop, max_length=10)
    start = inputs["input_ids"].shape[1] if is_decoder(ours) else 1
    sequences = expected.sequences.tolist()
    for row, sentence in enumerate(sentence for n_best in got for sentence in n_best):
        tokens = sequences[row][start:]
        tokens = tokens[: tokens.index(END)] if END in tokens else tokens
        assert ids_of(sentence) == tokens
        if width > 1:
            assert sentence.score == pytest.approx(float(expected.sequences_scores[row]), abs=1e-4)


def test_log_prob_of_a_caption_is_the_loss_of_the_model(pair):
    ours, theirs, inputs = pair
    if hasattr(ours, "translate"):
        pytest.skip("limner score is for captions; a test of their own has the translators")
    (first, *_), (second, *_) = ours.score(IMAGES[:2], CAPTIONS[:1] * 2)
    assert abs(first - second) > 1e-5, "the image counts"
    for row, score in enumerate(ours.score(IMAGES, CAPTIONS)):
        ids = [*ours.hub_tokenizer(CAPTIONS[row], add_special_tokens=False)["input_ids"], END]
        if ours.network.is_prompted:
            assert score[:2] == (pytest.approx(-loss_of(ours, theirs, row, ids), abs=1e-4), len(ids))
            continue
        pixels = {"pixel_values": inputs["pixel_values"][row : row + 1]}
        if theirs.config.model_type == "vision-encoder-decoder":
            pixels["labels"] = torch.tensor([ids])
        else:
            pixels["input_ids"] = pixels["labels"] = torch.tensor([[START, *ids]])
        with torch.no_grad():
            loss = float(theirs(**pixels).loss)
        assert score[:2] == (pytest.approx(-loss * len(ids), abs=1e-4), len(ids))
        assert (score.perplexity, score.unknown) == (pytest.approx(2 ** (loss / np.log(2)), rel=1e-4), 0)


def test_log_prob_of_a_translation_is_the_loss_of_the_model(pair):
    ours, theirs, inputs = pair
    if hasattr(ours, "describe"):
        pytest.skip("limner score has the captions")
    start, forced = theirs.generation_config.decoder_start_token_id, ours.network.forced
    for row, sentences in enumerate(decode(ours, beam_size=3, n_best=3, max_length=10)):
        for sentence in sentences:
            ids = torch.tensor([[*ids_of(sentence), *[END] * sentence.ended]])
            labels = ids.clone()
            labels[0, : int(forced is not None)] = -100
            source = {name: values[row : row + 1] for name, values in inputs.items()}
            read = torch.cat([torch.tensor([[start]]), ids[:, :-1]], 1)
            with torch.no_grad():
                loss = float(theirs(**source, decoder_input_ids=read, labels=labels).loss)
            assert sentence.log_prob == pytest.approx(-loss * int((labels >= 0).sum()), abs=1e-4)


def loss_of(ours, theirs, row, ids):
    """Return the loss of the library of a caption after the prompt and an image, summed over its tokens."""
    inputs = dict(ours.network.processor(text=[ours.network.text], images=[[IMAGES[row]]], return_tensors="pt"))
    prompt, caption = inputs["input_ids"], torch.tensor([ids])
    inputs["labels"] = caption
    if is_decoder(ours):
        inputs["input_ids"] = torch.cat([prompt, caption], 1)
        inputs["labels"] = torch.cat([torch.full_like(prompt, -100), caption], 1)
        for name, value in (
            ("attention_mask", 1),
            ("token_type_ids", int(ours.architecture == "paligemma")),
            ("mm_token_type_ids", 0),
        ):
            if name in inputs:
                inputs[name] = torch.cat([inputs[name], torch.full_like(caption, value)], 1)
    elif ours.network.forced is not None:
        inputs["decoder_input_ids"] = torch.tensor([[PAD, ours.network.forced, *ids[:-1]]])
        inputs["labels"] = torch.tensor([[-100, *ids]])
    with torch.no_grad():
        return float(theirs(**inputs).loss) * len(ids)


def test_batches_and_padding_change_nothing(pair):
    ours = pair[0]
    together = decode(ours, beam_size=3, max_length=10)
    for row in range(3):
        ((alone,),) = decode(ours, (row,), beam_size=3, max_length=10)
        assert alone.text == together[row][0].text
        assert alone.score == pytest.approx(together[row][0].score, abs=1e-4)


def test_words_and_the_prefix_are_in_the_sentence(pair):
    ours = pair[0]
    for (sentence,) in decode(ours, must_include=["red dog"], beam_size=3, max_length=12):
        assert "red dog" in sentence.text
    if not hasattr(ours, "translate"):
        ((caption,),) = ours.describe(IMAGES[:1], prefixes=["the red"], max_length=10)
        assert caption.text.startswith("the red")


def test_samples_have_the_probabilities_of_the_model(pair):
    samples = decode(pair[0], (0,), beam_size=50, n_best=50, sample={"seed": 3}, max_length=1)[0]
    drawn = {sentence.tokens: sentence.log_prob for sentence in samples}
    (best,) = decode(pair[0], (0,), max_length=1)[0]
    assert drawn.get(best.tokens, best.log_prob) == pytest.approx(best.log_prob, abs=1e-4)


@pytest.mark.parametrize("family", SPACES)
def test_scores_of_a_joint_space_equal_the_library(family, tmp_path):
    theirs = save_model(family, tmp_path)
    ours = HubSpace(tmp_path)
    read = [ours.read(image) for image in IMAGES]
    pixels = (
        {"pixel_values": torch.from_numpy(np.stack(read))}
        if family != "siglip2"
        else dict(transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")(IMAGES, return_tensors="pt"))
    )
    padding = {"padding": "max_length", "max_length": 64} if family.startswith("siglip") else {"padding": True}
    words = ours.tokenizer(CAPTIONS, return_tensors="pt", **padding)
    if family.startswith("siglip"):
        del words["attention_mask"]
    with torch.no_grad():
        expected = theirs(**pixels, input_ids=words["input_ids"], attention_mask=words.get("attention_mask"))
    scores = ours.score(IMAGES, CAPTIONS)
    assert [score.score for score in scores] == pytest.approx(expected.logits_per_image.diagonal().tolist(), abs=1e-4)
    if family == "clip":
        words = ours.tokenizer([f"A photo depicts {text}" for text in CAPTIONS], return_tensors="pt", **padding)
        with torch.no_grad():
            expected.text_embeds = theirs.get_text_features(**words).pooler_output
    cosine = torch.nn.functional.cosine_similarity(expected.image_embeds, expected.text_embeds)
    assert [score.clip_score for score in scores] == pytest.approx((2.5 * cosine.clamp(min=0)).tolist(), abs=1e-4)
    vectors = ours.project(np.stack([ours.vector_of(ours.features_of([image])[0]) for image in read]))
    searched = ours.scores(CAPTIONS[0], vectors, vectors)
    assert searched.tolist() == pytest.approx(expected.logits_per_text[0].tolist(), abs=1e-3)
