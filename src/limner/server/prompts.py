"""What the text of a request means to a model that follows no instructions.

The Ollama and OpenAI interfaces send free text with every image, which a captioning model cannot follow. Text that only
asks for a description of the whole image is accepted, with wishes about its form, which have no effect; text after
"Caption:" is the prefix of the caption. Everything else is refused, so that a caption is not taken for an answer. To
a translation model the text is the source sentence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from limner.server.errors import NotSupportedError

MAX_SHOWN = 80
"""Maximum number of characters of a prompt in a message."""
MAX_PROMPT = 4_000
"""Maximum number of characters of a prompt to a captioning model."""

_IMAGE = r"(?:image|picture|photo(?:graph)?|pic|scene|screenshot)s?"
_THIS = r"(?:this|that|the|these|my|your|attached|following|given|provided|uploaded)"
_FILLERS = (
    r"a|all|and|are|accurately|briefly|can|carefully|clear|concisely|contents?|detail|detailed|everything|for|happening|"
    r"in|is|main|me|objectively|objects|of|on|one|sentences?|short|shortly|shown|single|subject|succinctly|to|two|"
    r"visible|visual|what|you|see"
)
_BILD = r"(?:bild|foto|fotografie|aufnahme|szene|motiv)\w*"
_FÜLLWÖRTER = (
    r"mir|uns|dies\w*|das|den|die|dem|der|des|was|du|sie|auf|in|im|inhalt\w*|alles|kurz|genau|ausführlich|knapp|sachlich|"
    r"detailliert|objektiv|siehst|sehen|zu|ist|hier|einem|satz"
)
_IMAGE_FR = r"(?:image|photo(?:graphie)?|scène)s?"
_REQUESTS = {
    "en": (
        rf"describe(?: (?:{_THIS}|{_FILLERS}))* (?:{_IMAGE}|(?:visual )?contents?|you(?: can)? see)\b.*",
        r"describe (?:it|this|that|only what|the main)\b.*",
        rf"caption(?: (?:it|{_THIS}))+(?: {_IMAGE})?\b.*",
        r"(?:write|create|generate|provide|give|make|produce|return|output|suggest|add)\b.*"
        r"\b(?:captions?|descriptions?|alt(?:ernative)?[- ]?text)\b.*",
        r"(?:write|create|generate|provide|give|produce|return)\b.*\bsentences?\b.*\bdescrib\w+\b.*",
        r"what(?:['’]s| is| are| can be seen| do you see| can you see)"
        rf"(?: shown| visible| depicted| happening| going on)? (?:in|on)(?: {_THIS})* {_IMAGE}",
        rf"what (?:does|do)(?: {_THIS})* {_IMAGE} (?:show|depict|contain|represent)",
        r"what (?:do|can) you see(?: here)?",
        r"(?:a )?(?:detailed |short |brief )?(?:image |photo )?(?:caption|description|alt(?:ernative)?[- ]?text)",
    ),
    "de": (
        rf"beschreib\w*(?: (?:{_FÜLLWÖRTER}))* (?:{_BILD}|siehst|sehen)\b.*",
        r"(?:schreib|erstell|erzeug|generier|formulier|gib)\w*\b.*"
        r"\b(?:bildunterschrift|bildbeschreibung|beschreibung|alternativtext|alt-?text)\w*\b.*",
        r"was (?:ist|sieht man|siehst du|sehen sie|erkennst du|gibt es|kann man)"
        rf"(?: hier)?(?: (?:auf|in)(?: (?:diesem|dem|der|dieser))? {_BILD})?"
        r"(?: zu)?(?: sehen| abgebildet| dargestellt)?",
        rf"was zeigt (?:dieses|das|die|diese) {_BILD}",
        r"(?:bildbeschreibung|bildunterschrift|beschreibung|alternativtext)",
    ),
    "fr": (
        rf"décri(?:s|vez|re|s-moi)(?: (?:moi|cette|la|le|les|ce|que|tu|vous|vois|voyez|sur|dans|contenu de|brièvement|"
        rf"précisément|en détail))* (?:l['’])?(?:{_IMAGE_FR}|vois|voyez)\b.*",
        r"(?:écri[svt]\w*|donne\w*|génère\w*|rédige\w*|crée\w*)\b.*\b(?:légende|description|texte alternatif)\b.*",
        rf"(?:que (?:vois-tu|voyez-vous)|qu['’]y a-t-il)(?: ici)?(?: (?:sur|dans) (?:cette|la|l['’]) ?{_IMAGE_FR})?",
        rf"que (?:montre|représente) (?:cette|la|l['’]) ?{_IMAGE_FR}",
    ),
    "zh": (
        r".*(?:描述|说明|介绍)(?:一下)?(?:这|此|该|上|下|里|中|的|张|幅|个|内容|所见|你看到){0,6}(?:图|照片|画面|相片|图像|内容).*",
        r".*(?:图|照片|画面|相片)(?:片|像)?(?:里|中|上)?(?:面)?(?:有|是|显示)(?:了)?(?:些)?什么(?:内容|东西)?",
        r".*(?:写|生成|创建|给出).*(?:标题|描述|说明|替代文本).*",
    ),
}
"""Requests for a description, by the language of the request."""
_WISHES = (
    r"(?:be|keep|use|avoid|do not|don['’]t|never|begin|start|focus|include|mention|limit|make|describe|write|respond|"
    r"answer|reply|return|output|provide|give|only|just|no|not|if|then|and|in|with|at most|up to|ensure|you are|you're|"
    r"act as|help|thank|hello|hi)\b.*",
    r"(?:nutze|verwende|vermeide|sei|halte|beginne|antworte|schreibe|nenne|erwähne|gib|keine?|nicht|nur|wenn|falls|"
    r"du bist|sie sind|in|auf|mit|höchstens|danke|hallo)\b.*",
    r"(?:utilise|évite|sois|soyez|commence|réponds|répondez|mentionne|ne|n['’]|pas|si|tu es|vous êtes|en|dans|avec|"
    r"merci|bonjour)\b.*",
    r"(?:请|用|使用|不要|不|避免|以|简|如果|你是|只|最多|一句).*",
)
"""Wishes about the form of the description, which have no effect."""
_OTHER_TASKS = (
    r"\b(?:json|xml|yaml|csv|html|bullets?|list|labels?|tags?|keywords?|count|how many|translat\w+|poems?|"
    r"stor(?:y|ies)|songs?|haikus?|jokes?|transcri\w+|ocr|classif\w+|rate|scores?|question|compare|python|code)\b",
    r"\b(?:übersetz\w*|gedicht\w*|geschichte\w*|zähl\w*|wie viele|liste|auflist\w*|schlagw\w+|stichw\w+|frage)\b",
    r"\b(?:tradui\w*|poème|histoire|compte[rz]?|combien|liste[rz]?|mots-clés|question)\b",
    r"翻译|诗|故事|多少|列出|列表|标签|关键词|问题",
)
_NEGATIONS = (
    r"\b(?:not|no|never|without|avoid|don['’]t|nicht|keine?n?|ohne|vermeide|pas|sans|évite[rz]?)\b|不要|避免|不"
)
_COURTESIES = (
    r"^(?:(?:please|kindly|can you|could you|would you|will you|i want you to|i'd like you to|bitte|kannst du|"
)
_COURTESIES += r"könntest du|s['’]il (?:te|vous) pla[iî]t|peux-tu|pouvez-vous)[, ]+)+"
_LANGUAGES = {
    "en": r"english|englisch\w*|anglais|英语|英文",
    "de": r"german|deutsch\w*|allemand|德语|德文",
    "fr": r"french|französisch\w*|français|法语|法文",
    "zh": r"(?:simplified )?chinese|mandarin|chinesisch\w*|chinois|中文|汉语",
    "": r"spani\w+|espagnol|italian|portuguese|russian|japanese|korean|arabic|dutch|polish|czech|turkish|hindi",
}
_TRANSLATES = r"translat|übersetz|tradui|traduct|翻译"
_CAPTION = re.compile(r"^\s*(?:caption|bildunterschrift|légende|标题|描述)\s*[:：]\s*", re.IGNORECASE)
_CLAUSES = re.compile(r"[\n\r]+|(?<=[.!?:;])[\"'”’)]*\s+(?=[\W\d_]*[^\W\d_])|(?<=[。！？：；])")
_EDGES = re.compile(r"^[\W_]+|[\W_]+$")


class PromptError(NotSupportedError):
    """The text of a request asks for something that the model cannot do."""


class Instruction(NamedTuple):
    """What a captioning model does with the text of a request."""

    prefix: str = ""
    """Words that the caption starts with."""
    lang: str | None = None
    """Language of the caption: the one that is named, or that of the request; None where the model has neither."""


def read_prompt(texts: Sequence[str], languages: Sequence[str], *, any_prompt: bool = False) -> Instruction:
    """Return what a captioning model does with the texts of a request.

    Args:
        texts: system prompts and the prompt of the user, in this order.
        languages: languages that the model describes images in.
        any_prompt: whether text that the model cannot follow is ignored instead of refused.

    Raises:
        PromptError: a clause is neither a request for a description of the image nor a wish about its form, or it names
            a language that the model does not have.
    """
    *_, last = texts or [""]
    caption = _CAPTION.match(last)
    prefix = "" if caption is None else last[caption.end() :].strip()
    try:
        langs = _read_clauses(_clauses(texts if caption is None else texts[:-1]), languages)
        if langs is None and caption is None and last.strip():
            raise PromptError(_message(last))
    except PromptError:
        if not any_prompt:
            raise
        langs = None
    return Instruction(prefix, next((lang for lang in langs or () if lang in languages), None))


def require_source_prompts(texts: Sequence[str], *, any_prompt: bool = False) -> None:
    """Check that system prompts ask a translation model for nothing but a translation.

    Raises:
        PromptError: a clause neither asks for a translation nor is a wish about its form.
    """
    for clause in () if any_prompt else _clauses(texts):
        text = re.sub(_COURTESIES, "", clause.casefold())
        if not re.search(_TRANSLATES, text) and not _any_matches(_WISHES, text):
            raise PromptError(
                f"expected a system prompt that asks for a translation, got '{_shown(clause)}'; this model translates "
                "its input and follows no other instruction ('limner serve --any-prompt' ignores the text of prompts)"
            )


def _clauses(texts: Sequence[str]) -> list[str]:
    if (length := sum(map(len, texts))) > MAX_PROMPT:
        raise PromptError(f"expected a prompt of at most {MAX_PROMPT:,} characters, got {length:,}; shorten it")
    parts = (_EDGES.sub("", part) for text in texts for part in _CLAUSES.split(text))
    return [part for part in parts if part]


def _read_clauses(clauses: Sequence[str], languages: Sequence[str]) -> list[str] | None:
    """Check each clause; return the languages that are named and those of the requests, None without a request."""
    named: list[str] = []
    requested: list[str] = []
    for clause in clauses:
        text = re.sub(_COURTESIES, "", " ".join(clause.casefold().split()))
        asks = [lang for lang, patterns in _REQUESTS.items() if _any_matches(patterns, text)]
        requested += asks
        if not (asks or _any_matches(_WISHES, text)) or _asks_for_another_task(text):
            raise PromptError(_message(clause))
        here = [lang for lang, names in _LANGUAGES.items() if re.search(rf"(?:\b(?:in|auf|en) |用)(?:{names})", text)]
        if not set(here) <= {*languages}:
            raise PromptError(
                f"this model describes images in the languages {', '.join(languages)}, got '{_shown(clause)}'; name "
                "one of them, or none"
            )
        named += here
    return named + requested if requested else None


def _any_matches(patterns: Sequence[str], text: str) -> bool:
    return any(re.fullmatch(pattern, text) for pattern in patterns)


def _asks_for_another_task(text: str) -> bool:
    return not re.search(_NEGATIONS, text) and any(re.search(pattern, text) for pattern in _OTHER_TASKS)


def _message(clause: str) -> str:
    return (
        f"expected a request to describe the image, such as 'Describe this image.', got '{_shown(clause)}'; this model "
        "describes images and follows no other instruction ('limner serve --any-prompt' ignores the text of prompts)"
    )


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
