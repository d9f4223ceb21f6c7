"""Tiny random models in the format of transformers, with tokenizers made here; nothing is downloaded."""

import json
from pathlib import Path

import tokenizers
import torch
import transformers

SPECIAL = (
    *("[PAD]", "[DEC]", "[SEP]", "[UNK]", "__en__", "__de__", "<image>", "<video>", "<vision>", "</vision>"),
    *("<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)
WORDS = ("a", "red", "dog", "runs", "on", "the", "beach", "de", *(f"w{number}" for number in range(24)))
PAD, START, END, UNKNOWN, ENGLISH, GERMAN, IMAGE, VIDEO, BEGIN, FINISH = range(10)
SIZE = len(SPECIAL) + len(WORDS)
TOWER = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION = {**TOWER, "image_size": 32, "patch_size": 8, "projection_dim": 16, "initializer_range": 0.1}
TEXT = {**TOWER, "vocab_size": SIZE, "projection_dim": 16, "max_position_embeddings": 64, "initializer_range": 0.6}
IDS = {"bos_token_id": START, "eos_token_id": END, "pad_token_id": PAD}
SEQUENCES = {
    **{"vocab_size": SIZE, "d_model": 32, "max_position_embeddings": 64, "init_std": 0.3, **IDS},
    **{f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")},
    **{f"{part}_ffn_dim": 40 for part in ("encoder", "decoder")},
    "decoder_start_token_id": PAD,
}
CODES = ("<s>", "<pad>", "</s>", "<unk>", "en_XX", "de_DE")  # the tokenizer adds the other 50 languages, and <mask>
MBART = {"bos_token_id": 0, "pad_token_id": 1, "decoder_start_token_id": END, "vocab_size": 57 + len(WORDS)}
MBART["init_std"] = 0.25  # with 0.3, a sentence ends at the last step, where the search differs from `generate`
LLAMA = {**TOWER, "vocab_size": SIZE, "max_position_embeddings": 256, "initializer_range": 0.5, **IDS}
SPACES = ("clip", "siglip", "siglip2", "metaclip_2", "chinese_clip")
PROMPTED = ("smolvlm", "idefics3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "paligemma", "gemma3", "llava", "florence2")
PROMPTED += ("blip-2-opt", "blip-2-t5")
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}:{% for part in message['content'] %}"
    "{{ '<vision><image></vision>' if part['type'] == 'image' else ' ' + part['text'] }}{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
PIXELS = {"size": {"height": 32, "width": 32}, "crop_size": {"height": 32, "width": 32}}
TILES = {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
PATCHES = {"patch_size": 8, "min_pixels": 256, "max_pixels": 2048}


def build_prompted_config(family: str) -> transformers.PreTrainedConfig:
    """Return the configuration of a tiny model with a prompt."""
    image = {"image_token_id": IMAGE}
    if family in ("smolvlm", "idefics3"):
        kind = transformers.SmolVLMConfig if family == "smolvlm" else transformers.Idefics3Config
        text = {"model_type": "llama", **LLAMA}
        return kind(vision_config=VISION, text_config=text, scale_factor=2, pad_token_id=PAD, **image)
    if family.startswith("qwen"):
        name = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[family]
        vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 8}
        vision |= {"out_hidden_size": 32, "intermediate_size": 40, "window_size": 32, "fullatt_block_indexes": [1]}
        vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 16} if family == "qwen3_vl" else {}
        text = LLAMA | {"num_key_value_heads": 2, "head_dim": 8}
        text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
        places = {"video_token_id": VIDEO, "vision_start_token_id": BEGIN, "vision_end_token_id": FINISH}
        return getattr(transformers, f"{name}Config")(vision_config=vision, text_config=text, **image, **places)
    if family in ("paligemma", "gemma3"):
        name = "gemma" if family == "paligemma" else "gemma3_text"
        text = {"model_type": name, "head_dim": 8, "num_key_value_heads": 2, **LLAMA}
        vision = {"model_type": "siglip_vision_model", **VISION}
        if family == "gemma3":
            layers = ["sliding_attention", "full_attention"]
            text |= {"sliding_window": 8, "layer_types": layers, "query_pre_attn_scalar": 8}
            places = {"boi_token_index": BEGIN, "eoi_token_index": FINISH, "image_token_index": IMAGE}
            return transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **places)
        sizes = {"projection_dim": 32, "hidden_size": 32, "image_token_index": IMAGE, "vocab_size": SIZE}
        return transformers.PaliGemmaConfig(vision_config=vision, text_config=text, **sizes)
    if family == "llava":
        text, vision = {"model_type": "llama", **LLAMA}, {"model_type": "clip_vision_model", **VISION}
        return transformers.LlavaConfig(
            vision_config=vision, text_config=text, image_token_index=IMAGE, image_seq_length=16
        )
    if family == "florence2":
        vision = {"depths": [1], "patch_size": [7], "patch_stride": [8], "patch_padding": [3], "patch_prenorm": [False]}
        vision |= {
            "embed_dim": [32],
            "num_heads": [4],
            "num_groups": [4],
            "window_size": 4,
            "projection_dim": 32,
            "initializer_range": 0.5,
        }
        text = {"model_type": "bart", **SEQUENCES}
        return transformers.Florence2Config(text_config=text, vision_config=vision, is_encoder_decoder=True, **image)
    text = {"model_type": "opt", **LLAMA, "ffn_dim": 40, "word_embed_proj_dim": 32}
    if family == "blip-2-t5":
        text = {"model_type": "t5", "d_model": 32, "d_ff": 40, "d_kv": 8, "num_layers": 2, "num_heads": 4, **IDS}
        text |= {"vocab_size": SIZE, "decoder_start_token_id": PAD, "initializer_factor": 2.0}
    former = {**TOWER, "encoder_hidden_size": 32}
    parts = {"vision_config": VISION | {"initializer_range": 0.5}, "qformer_config": former, "text_config": text}
    return transformers.Blip2Config(**parts, num_query_tokens=4, image_token_index=IMAGE)


def save_processor(family: str, folder: Path, tokenizer: transformers.PreTrainedTokenizerFast) -> None:
    """Write the preprocessing of images and prompts."""
    names = {"qwen2_5_vl": "Qwen2VL", "qwen3_vl": "Qwen2VL", "qwen2_vl": "Qwen2VL", "smolvlm": "SmolVLM"}
    names |= {"idefics3": "Idefics3", "paligemma": "Siglip", "gemma3": "Gemma3", "llava": "CLIP", "florence2": "CLIP"}
    sides = PATCHES if family.startswith("qwen") else TILES if family in ("smolvlm", "idefics3") else PIXELS
    images = getattr(transformers, f"{names.get(family, 'Blip')}ImageProcessorPil")(**sides)
    images.image_seq_length = 17 if family == "florence2" else 16
    images.save_pretrained(folder)
    settings = {"smolvlm": {"image_seq_len": 4}, "idefics3": {"image_seq_len": 4}, "gemma3": {"image_seq_length": 4}}
    settings["llava"] = {"patch_size": 8, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    used = settings.get(family, {"num_query_tokens": 4} if family.startswith("blip") else {})
    if used:
        (folder / "processor_config.json").write_text(json.dumps(used))
    if family not in ("paligemma", "florence2", "blip-2-opt", "blip-2-t5"):
        (folder / "chat_template.jinja").write_text(TEMPLATE if family != "gemma3" else TEMPLATE.replace("<image>", ""))
    tokenizer.save_pretrained(folder)


def build_config(family: str) -> transformers.PreTrainedConfig:
    """Return the configuration of a tiny model of a family."""
    text = TEXT | IDS
    if family in PROMPTED:
        return build_prompted_config(family)
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
        return transformers.M2M100Config(**SEQUENCES | {"decoder_start_token_id": END})  # padding has no position
    if family == "mbart":
        return transformers.MBartConfig(**SEQUENCES | MBART)
    joint = {"text_config": text, "vision_config": VISION}
    if family == "siglip2":
        joint["vision_config"] = VISION | {"num_patches": 16}
    kinds = {"clip": "CLIP", "metaclip_2": "MetaClip2", "chinese_clip": "ChineseCLIP", "siglip2": "Siglip2"}
    kind = getattr(transformers, f"{kinds.get(family, 'Siglip')}Config")
    return kind(**joint) if family.startswith("siglip") else kind(**joint, projection_dim=16)


def save_model(family: str, folder: Path, **generation: object) -> torch.nn.Module:
    """Write a tiny model with its tokenizer and preprocessing to a folder, and return it."""
    config = build_config(family)
    torch.manual_seed(1)
    kind = dict.fromkeys(("marian", "m2m_100", "mbart"), "AutoModelForSeq2SeqLM")
    kind |= dict.fromkeys(SPACES, "AutoModel")
    model = getattr(transformers, kind.get(family, "AutoModelForImageTextToText")).from_config(config).eval()
    if family == "gemma3":
        model.model.multi_modal_projector.mm_input_projection_weight.data.normal_()  # zero at the start of a training
    if family not in SPACES:
        model.generation_config.update(**generation)
    model.save_pretrained(folder)
    if family == "mbart":
        vocabulary = [(code, 0.0) for code in CODES] + [(f"▁{word}", -1.0) for word in WORDS]
        transformers.MBart50Tokenizer(vocabulary).save_pretrained(folder)
        return model
    words = tokenizers.models.WordLevel({word: token for token, word in enumerate((*SPECIAL, *WORDS))}, "[UNK]")
    inner = tokenizers.Tokenizer(words)
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(list(SPECIAL))
    if family not in ("blip", "git", "vision-encoder-decoder"):
        ends = [("[SEP]", END)]
        inner.post_processor = tokenizers.processors.TemplateProcessing(single="$A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[DEC]", "eos_token": "[SEP]"}
    if family in PROMPTED:
        places = {"image_token": "<image>", "boi_token": "<vision>", "eoi_token": "</vision>"}
        places["video_token"] = "<video>"
        names |= {} if family.startswith("blip") else {"extra_special_tokens": places}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    if family in PROMPTED:
        save_processor(family, folder, tokenizer)
        return model
    tokenizer.save_pretrained(folder)
    if family not in ("marian", "m2m_100"):
        names = {"siglip": "Siglip", "siglip2": "Siglip2", "blip": "Blip", "vision-encoder-decoder": "ViT"}
        sides = {"patch_size": 8, "max_num_patches": 16} if family == "siglip2" else PIXELS
        getattr(transformers, f"{names.get(family, 'CLIP')}ImageProcessorPil")(**sides).save_pretrained(folder)
    return model
