"""Real checkpoints of the hub, for machines with a network, and the time of the search compared with `generate`.

    python benchmarks/hub.py IMAGE ...    captions, scores and times of real checkpoints; downloads them
    python benchmarks/hub.py --random     BLIP-base with random weights: processor time against the library; no network

The first form has not been run by the authors, who have no network to the hub: it prints what it finds, and the exit
status is 1 if a caption is not a sentence of 2 to 60 words, or a checkpoint cannot be loaded.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median

CAPTIONERS = (
    "Salesforce/blip-image-captioning-base",
    "microsoft/git-base-coco",
    "nlpconnect/vit-gpt2-image-captioning",
    "Salesforce/blip2-opt-2.7b",
    "florence-community/Florence-2-base",
    "HuggingFaceTB/SmolVLM-256M-Instruct",
    "Qwen/Qwen2-VL-2B-Instruct",
    "google/paligemma2-3b-mix-224",
)
SPACES = ("openai/clip-vit-base-patch32", "google/siglip2-base-patch16-224", "google/siglip2-base-patch16-naflex")
TRANSLATORS = (("Helsinki-NLP/opus-mt-en-de", {}), ("facebook/nllb-200-distilled-600M", {"to": "deu_Latn"}))


def real(images: list[str]) -> bool:
    """Caption images, score the captions and translate one by real checkpoints; whether all captions are sentences."""
    import limner
    from limner.inference.load import load_hub
    from limner.runs.pretrained import local_folder

    good, sentence = True, "A dog runs on the beach ."
    for name in (*CAPTIONERS, *SPACES, *(translator for translator, _ in TRANSLATORS)):
        began = time.perf_counter()
        try:
            if name in SPACES:
                scorer = load_hub(local_folder(f"hub:{name}"), tasks=("match",))
                results = [str(score) for score in scorer.score(images, [sentence] * len(images))]
            elif name in CAPTIONERS:
                results = [captions[0].text for captions in limner.load(f"hub:{name}").describe(images, max_length=60)]
                good &= all(2 <= len(text.split()) <= 60 for text in results)
            else:
                model = limner.load(f"hub:{name}", **dict(TRANSLATORS)[name])
                results = [model.translate([sentence])[0][0].text]
        except limner.LimnerError as error:
            results, good = [f"error: {error}"], False
        print(f"{name}  {time.perf_counter() - began:.1f} s with loading", *results, sep="\n  ")
    return good


def random(rounds: int = 3, tokens: int = 20, width: int = 3, count: int = 1) -> None:
    """Print the processor time of a caption of BLIP-base with random weights, by the library and by Limner."""
    import tokenizers
    import torch
    import transformers
    from PIL import Image

    from limner.hub.families.text_generation import Blip
    from limner.hub.generators import HubCaptioner

    with tempfile.TemporaryDirectory() as folder:
        config = transformers.BlipConfig()
        theirs = transformers.BlipForConditionalGeneration(config).eval()
        theirs.save_pretrained(folder)
        words = {f"w{number}": number for number in range(config.text_config.vocab_size)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0"))
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
        transformers.BlipImageProcessorPil().save_pretrained(folder)
        ours = HubCaptioner(Blip(Path(folder)))
        images = [Image.new("RGB", (384, 384), (40 * row, 90, 30)) for row in range(count)]
        pixels = {"pixel_values": torch.stack([torch.from_numpy(ours.backbone.read(image)) for image in images])}
        options = {"num_beams": width, "max_new_tokens": tokens, "min_new_tokens": tokens}
        times: dict[str, list[float]] = {"generate": [], "limner": []}
        for _ in range(rounds + 1):
            began = time.process_time()
            with torch.no_grad():
                theirs.generate(**pixels, **options)
            middle = time.process_time()
            ours.describe(images, beam_size=width, max_length=tokens, min_length=tokens, log_cut_off=False)
            times["generate"].append(middle - began)
            times["limner"].append(time.process_time() - middle)
    for name, values in times.items():
        print(f"{name}: {median(values[1:]):.2f} s of processor time for {count} x {tokens} tokens, beam {width}")
    ratio = median(ours / theirs for theirs, ours in zip(*(values[1:] for values in times.values()), strict=True))
    print(f"ratio {ratio:.3f}, median of {rounds} rounds")


if __name__ == "__main__":
    if sys.argv[1:] == ["--random"]:
        random()
    elif sys.argv[1:]:
        sys.exit(not real(sys.argv[1:]))
    else:
        sys.exit(__doc__)
