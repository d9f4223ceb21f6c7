"""Tiny random models in the format of transformers, with tokenizers made here; nothing is downloaded."""

from pathlib import Path

import tokenizers
import torch
import transformers

SPECIAL = ("[PAD]", "[DEC]", "[SEP]", "[UNK]", "__en__", "__de__")
WORDS = ("a", "red", "dog", "runs", "on", "the", "beach", "de", *(f"w{number}" for number in range(24)))
PAD, START, END, UNKNOWN, ENGLISH, GERMAN = range(len(SPECIAL))
SIZE = len(SPECIAL) + len(WORDS)
TOWER = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION = {**TOWER, "image_size": 32, "patch_size": 8, "projection_dim": 16}
TEXT = {**TOWER, "vocab_size": SIZE, "projection_dim": 16, "max_position_embeddings": 64, "initializer_range": 0.6}
IDS = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
SEQUENCES = {
    **{"vocab_size": SIZE, "d_model": 32, "max_position_embeddings": 64, "init_std": 0.3, **IDS},
    **{f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")},
    **{f"{part}_ffn_dim": 40 for part in ("encoder", "decoder")},
    "decoder_start_token_id": PAD,
}


def build_config(family: str) -> transformers.PreTrainedConfig:
    """Return the configuration of a tiny model of a family."""
    text = TEXT | IDS
    if family == "blip":
        decoder = text | {"encoder_hidden_size": 32, "sep_token_id": END}
        return transformers.BlipConfig(text_config=decoder, vision_config=VISION)
    if family == "git":
        return transformers.GitConfig(vision_config=VISION, **text)
    if family == "vision-encoder-decoder":
        names = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64, "add_cross_attention": True}
        decoder = transformers.GPT2Config(vocab_size=SIZE, is_decoder=True, initializer_range=0.4, **names, **IDS)
        encoder = transformers.ViTConfig(**VISION)
        config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
        config.decoder_start_token_id, config.eos_token_id, config.pad_token_id = START, END, PAD
        return config
    if family == "marian":
        return transformers.MarianConfig(**SEQUENCES)
    if family == "m2m_100":
        return transformers.M2M100Config(**SEQUENCES)
    joint = {"text_config": text, "vision_config": VISION}
    return (
        transformers.CLIPConfig(**joint, projection_dim=16) if family == "clip" else transformers.SiglipConfig(**joint)
    )


def save_model(family: str, folder: Path, **generation: object) -> torch.nn.Module:
    """Write a tiny model with its tokenizer and preprocessing to a folder, and return it."""
    config = build_config(family)
    torch.manual_seed(1)
    kind = {"marian": "AutoModelForSeq2SeqLM", "m2m_100": "AutoModelForSeq2SeqLM", "clip": "AutoModel"}
    kind["siglip"] = "AutoModel"
    model = getattr(transformers, kind.get(family, "AutoModelForImageTextToText")).from_config(config).eval()
    if family not in ("clip", "siglip"):
        model.generation_config.update(**generation)
    model.save_pretrained(folder)
    words = tokenizers.models.WordLevel({word: token for token, word in enumerate((*SPECIAL, *WORDS))}, "[UNK]")
    inner = tokenizers.Tokenizer(words)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(list(SPECIAL))
    if family not in ("blip", "git", "vision-encoder-decoder"):
        ends = [("[SEP]", END)]
        inner.post_processor = tokenizers.processors.TemplateProcessing(single="$A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[DEC]", "eos_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names).save_pretrained(folder)
    if family not in ("marian", "m2m_100"):
        processor = {"git": "CLIP", "clip": "CLIP", "siglip": "Siglip", "blip": "Blip"}.get(family, "ViT")
        sides = {"size": {"height": 32, "width": 32}, "crop_size": {"height": 32, "width": 32}}
        getattr(transformers, f"{processor}ImageProcessorPil")(**sides).save_pretrained(folder)
    return model
