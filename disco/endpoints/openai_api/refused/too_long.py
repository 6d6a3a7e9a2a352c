"""Whether an error says that the prompt is too long for the endpoint, in any provider's words.

The patterns are general, so that they hold for neighbours of the wordings that are known. Those are listed, with their
sources, in `tests/refused/too_long.txt`. A limit in bytes of the whole request counts, too: another endpoint may have a
higher one. What does not count is a limit of the answer, of a rate, of an image or of a single field.
"""

from __future__ import annotations

import re
from typing import Final

from disco.endpoints.openai_api.refused.said import Said

__all__ = ["is_too_long"]

# Below 500. A status that says something else is believed: 429 is worded as "too many tokens", too.
_MAY_SAY_SO: Final = (400, 422)
_TOO_LARGE: Final = 413

_LENGTH: Final = r"(?:len(?:gth)?|window|size|limit)"
_WHAT: Final = (
    r"(?:prompts?|inputs?|requests?|messages?|conversation|history|context|text|sequence|query|payload|body)"
)
# What may stand between the prompt and the verb: figures, and words that say how it was counted.
_COUNTED: Final = (
    r"(?:[\s:;,=+()\[\]]|(?:\d+|the|this|your|our|its|of|in|for|to|ids?|text|total|number|is|was|are|were|has|have|been|had"
    r"|contains?|with|by|at|least|about|around|approximately|estimated|and|plus|max|maximum|output|new|draft|tokens?"
    rf"|{_LENGTH}|count|model|prompts?|inputs?|messages?|query|request|requested|body|payload|entity|data|content|chat"
    r"|conversation|history|sequence|completion|configured|currently|now|much|far|which|you|submitted|sent|provided)\b)"
    r"{0,60}?"
)
_OVER: Final = (
    r"(?:exceed\w*|exceeding|overflow\w*|surpass\w*|too (?:long|large|big)\b|(?:longer|larger|greater|bigger|more) than"
    r"|(?:cannot|can not|must not|should not|may not) exceed|above the|over the|> ?=? ?(?:\d|context|max))"
)
_SHORT_OF: Final = (
    r"(?:exceed\w*|overflow\w*|not enough|insufficient|too (?:small|short)|full\b|reached|limit\b)"
)
_MOST_OF: Final = r"(?:max(?:imum)?|supported)(?: \w+){0,2}?"
_TEXT: Final = r"(?:prompt|inputs?|messages?|conversation|text|context|history)"
_UNIT: Final = rf"(?:{_LENGTH}|tokens?|characters)"
_AT_MOST: Final = r"(?:must|should) (?:be|have) (?:less|fewer|shorter|at most|no more)"
_TOKENS: Final = r"(?<!output )(?<!completion )(?<!new )tokens?"
_THE_PROMPT: Final = r"(?:the |your )?(?:prompt|input|messages)"
_TOO_LONG: Final = re.compile(
    "|".join(
        (
            # The context by name: OpenAI and its many followers, vLLM, llama.cpp, Ollama, LM Studio, MiniMax, ...
            rf"(?:max(?:imum)?|available|configured|supported|allowed) (?:\w+ ){{0,2}}?context {_LENGTH}",
            rf"(?:context|\bn ctx)(?: {_LENGTH})?\b[^.;]{{0,50}}?{_SHORT_OF}",
            rf"context {_LENGTH} (?:is|of) (?:only )?\d|only supports? contexts?|(?:room|space)[^.;]{{0,20}}context",
            r"(?:exceed\w*|overflow\w*|surpass\w*|beyond|reached|fit (?:in|into|within))[^.;]{0,60}?\bcontext\b",
            r"(?:(?:longer|larger|greater|bigger|more) than|too (?:long|large|big) for)[^.;]{0,60}?\bcontext\b",
            rf"context ?{_LENGTH} ?exceeded",  # LiteLLM's class, the only words that are sure to come through
            # The limit by name: xAI, vLLM, SGLang, TensorRT-LLM, TabbyAPI, SambaNova, Bedrock, Baidu
            rf"{_MOST_OF} (?:model|prompt|inputs?|sequence|seq|session|message) (?:text )?{_UNIT}\b",
            r"max(?:imum)? length (?:is |was )?exceeded|(?:model|prompt|input) max length",
            # The prompt: Anthropic, Bedrock, Gemini, Together, Zhipu, Moonshot, Volcengine, Databricks, watsonx, ...
            rf"\b{_WHAT}\b{_COUNTED}{_OVER}",
            rf"\b{_WHAT}\b{_COUNTED}tokens?\b{_COUNTED}(?:must (?:be|have)|but the model only)",
            rf"\b{_WHAT}\b{_COUNTED}{_AT_MOST}[^.;]{{0,12}}\d+ tokens",
            r"must have (?:less|fewer|no more) than \d+ tokens|only supports up to \d+ (?:input |prompt )?tokens",
            rf"(?:input|prompt|message)s? length should be|length of {_THE_PROMPT}[^.;]{{0,60}}must be",
            r"(?:input ?text|prompt)\W+expected maxlength",  # Bedrock's Titan
            # Tokens: Cohere, Bedrock, GitHub Models, Spark, and generic
            r"too many (?:(?:input|prompt|total|context) )*tokens\b",
            rf"{_TOKENS} (?:limit|length|count)s? (?:\w+ ){{0,3}}?(?:exceed\w*|reached)",
            rf"exceed\w*[^.;]{{0,60}}?{_TOKENS} limit",
            r"exceed\w*[^.;]{0,60}?(?:input|prompt|message) tokens?\b",
            r"(?:total|input|prompt|message|number of) tokens? [^.;]{0,50}?exceed",
            rf"exceed\w* (?:the |our )?(?:max(?:imum)? )?(?:supported |allowed )?tokens in {_THE_PROMPT}",
            r"exceed\w* (?:the )?max(?:imum)? (?:supported|allowed|total) tokens",
            r"max(?:imum)? number of (?:input |prompt |total )?tokens",
            r"\b\d+ (?:input |prompt |total )?tokens? (?:exceed\w*|> ?\d|(?:is|are) (?:more|longer|greater))",
            # What to do: Groq, Cerebras, OpenAI, Anthropic, LM Studio
            rf"(?:reduce|shorten|decrease|trim|truncate) (?:(?:length|size|of|either) |the |your ){{0,4}}{_TEXT}\b",
            r"(?:reduce|decrease) (?:(?:the|your|number|count|of|input|prompt|total) ){0,5}tokens\b",
            r"(?:shorter|smaller) (?:prompt|input|message|conversation)",
            # LM Studio; vLLM, which takes the prompt off the context and finds less than nothing left for the answer
            r"keep the first \d+ tokens|tokens to keep from the initial prompt",
            r"must be at least 1, got -\d{2,}",
            # Zhipu, SiliconFlow, Baidu and Tencent in Chinese
            r"(?:输入|提示|上下文|内容|消息|文本|prompt ?|tokens? ?)[^。；，]{0,12}?(?:过长|超长|太长|超出|超过|超限)",
            r"(?:超出|超过|大于)[^。；，]{0,16}(?:上下文|最大长度|最大输入|token|长度限制)",
        )
    )
)
_OF_A_RATE: Final = re.compile(
    r"rate.?limit|too many requests|per (?:minute|min|hour|day|second)\b|\b[tr]p[mds]\b|throttl|please wait|quota"
    r"|(?:try again|retry) (?:in|after) \d|频率|速率|限流|每分钟"
)
_PARAMETER: Final = re.compile(
    r"(?:unknown|unsupported|unrecogni[sz]ed|unexpected|invalid) (?:request |keyword )?"
    r"(?:parameter|argument|field|key|property|option)s?\b(?! *:? *(?:input|prompt|context|total|range))|logit bias"
)
_OF_THE_ANSWER: Final = re.compile(
    r"\bmax (?:completion |output |new )?tokens\b|\b(?:output|completion) tokens\b"
)
_OF_THE_PROMPT: Final = re.compile(r"\b(?:prompts?|inputs?|messages?|context|conversation)\b|got -\d")
_OF_A_PART: Final = re.compile(
    r"\b(?:images?|pictures?|photos?|audio|videos?|files?|pdfs?|attachments?|tools?|functions?|stop|choices|metadata)\b"
)
_MEASURED: Final = re.compile(r"\b(?:tokens?|context|length)\b")
# A single field, with its place: OpenAI's `string_above_max_length`, and what pydantic says
_OF_A_STRING: Final = re.compile(r"string too long|string above max length|string should have at most")
_PLACE: Final = re.compile(r"invalid ([\w.\[\] ]+?) ?: string too long")
_MOST: Final = re.compile(r"(?:maximum length|at most) (\d+)")
_LONGEST_FIELD: Final = 10_000  # characters; a string that may be longer is a prompt
_TEXT_AT: Final = re.compile(
    r"(?:messages|input|prompt|instructions)(?:\[\d+\])?(?:\.content(?:\[\d+\])?(?:\.text)?)?"
)


def is_too_long(said: Said) -> bool:
    """Return whether an error says that the prompt is too long for this endpoint; another one may have more room."""
    if said.status == _TOO_LARGE:
        return True
    if said.status is not None and said.status < 500 and said.status not in _MAY_SAY_SO:
        return False
    codes = " | ".join(map(_plain, said.codes))
    if _OF_A_STRING.search(codes) or any(_OF_A_STRING.search(_plain(text)) for text in said.words):
        return _is_text_of_prompt(said)
    if _TOO_LONG.search(codes) and not _OF_A_RATE.search(codes):
        return True
    return any(_is_worded_so(_plain(text)) for text in said.words)


def _is_worded_so(text: str) -> bool:
    if not _TOO_LONG.search(text) or _OF_A_RATE.search(text) or _PARAMETER.search(text):
        return False
    if _OF_THE_ANSWER.search(text) and not _OF_THE_PROMPT.search(text):
        return False
    return not _OF_A_PART.search(text) or bool(_MEASURED.search(text))


def _is_text_of_prompt(said: Said) -> bool:
    """Return whether the string that is too long is a text of the prompt."""
    words = " | ".join(map(_plain, said.words))
    named = _PLACE.search(words)
    place = said.param or (named[1] if named else "")
    if place:
        return _TEXT_AT.fullmatch(place) is not None
    most = _MOST.search(words)
    return most is None or len(most[1]) > 9 or int(most[1]) >= _LONGEST_FIELD


def _plain(text: str) -> str:
    """Return a text in lower case, without quotation marks, "_" and the marks within a number."""
    text = re.sub(r"(?<=\d)[.,](?=\d)", "", text.lower())
    return re.sub(r"(?:[\s_`'\"*“”‘’]|(?<=[a-z])-(?=[a-z]))+", " ", text)
