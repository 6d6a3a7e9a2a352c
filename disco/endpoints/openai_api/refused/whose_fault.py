"""Whose fault a refusal is: the account's, the model's at that endpoint, the endpoint's own, or the request's.

OpenAI's codes and types decide first, whatever the status. Then what the error says of itself (`param`), then the
server's words, and only at the statuses at which providers say such things. Digits in a message decide nothing: a
prompt, an identifier or a price may hold any number.
"""

from __future__ import annotations

import re
from typing import Final

from disco.endpoints.openai_api.refused.said import Said
from disco.errors import FailureKind

__all__ = ["SAID_WITHIN", "kind_of_refusal"]

SAID_WITHIN: Final = 400
"""So many characters of a text count; what follows is mostly a quotation of the request."""

# As in the providers' lists of errors, lower case. An account that is refused, has no credit, or may not be served.
_ACCOUNT_CODES: Final = frozenset(
    {
        # OpenAI, "Error codes"; many others have taken these over
        *("insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "invalid_api_key"),
        *("account_deactivated", "access_terminated", "unsupported_country_region_territory"),
        *(
            "invalid_organization",
            "organization_deactivated",
            "mismatched_organization",
            "mismatched_project",
        ),
        *("authentication_error", "permission_error", "billing_error"),  # Anthropic, "Errors"
        *("insufficient_credits", "payment_required"),  # OpenRouter
        *("insufficient_balance", "insufficient_funds", "credit_limit"),  # DeepSeek, Novita, Together
        *("exceeded_current_quota_error", "invalid_authentication_error"),  # Moonshot
        *("arrearage", "allocationquota.freetieronly"),  # Alibaba Cloud Model Studio
        *("accountoverdueerror", "accessdenied"),  # Volcengine Ark
        *("organization_restricted", "blocked_api_access", "project_spend_limit_reached"),  # Groq
        *("insufficient_user_quota", "pre_consume_token_quota_failed"),  # one-api, new-api
        *("budget_exceeded", "expired_key"),  # LiteLLM's proxy
    }
)
# A model that the endpoint does not have, no longer has, or does not give to this key.
_MODEL_CODES: Final = frozenset(
    {
        *("model_not_found", "model_deprecated"),  # OpenAI; vLLM and SGLang since 2025
        *("deploymentnotfound", "deployment_not_found", "deploymentmodelnotsupported"),  # Azure
        *("model_decommissioned", "model_terms_required"),  # Groq
        *("model_permission_blocked_org", "model_permission_blocked_project"),  # Groq
        *("model_not_available", "invalid_model", "model_not_exist"),  # Together, Mistral
        *(
            "model_not_supported",
            "unknown_model",
            "unavailable_model",
            "no_access",
        ),  # Hugging Face, GitHub Models
        "operationnotsupported",  # Azure: the model does not do what is asked
        *("modelnotopen", "invalidendpointormodel.notfound", "model_not_found_error"),  # Volcengine, Alibaba
        *(
            "key_model_access_denied",
            "team_model_access_denied",
            "project_model_access_denied",
        ),  # LiteLLM's proxy
    }
)
_ACCOUNT_AT: Final = frozenset({None, 400, 402, 403, 429})
_ACCOUNT_WORDS: Final = re.compile(
    r"credit balance is too low"  # Anthropic, with 400
    r"|insufficient (?:account )?(?:balance|credits?|funds|quota)"  # DeepSeek, OpenRouter, Novita, Fireworks
    r"|(?:balance|credits?) (?:is|are) (?:insufficient|exhausted|depleted|not enough)"  # Gemini's prepaid, SiliconFlow
    r"|exceeded your current quota"  # OpenAI, Moonshot
    r"|billing (?:hard )?limit|billing (?:account )?(?:is )?not active|check your billing details"  # OpenAI
    r"|used all (?:of )?(?:your )?available credits|(?:out of|no (?:remaining )?) ?credits"  # xAI, Perplexity
    r"|(?:monthly|usage|your) (?:included credits|spend(?:ing)? limit)"  # Hugging Face, xAI, Groq, Mistral
    r"|spend(?:ing)? limit (?:has been )?(?:reached|exceeded)"
    r"|reached your specified api usage limits"  # Anthropic, with 400
    r"|budget has been exceeded|exceeded budget"  # LiteLLM's proxy
    r"|(?:account|organi[sz]ation|project|workspace)\b[^.]{0,60}"
    r"\b(?:suspended|deactivated|disabled|restricted|overdue|in arrears|not active|in good standing)"
    r"|account is not authori[sz]ed to invoke\b"  # Bedrock, with 400
    r"|^(?:unauthori[sz]ed|authentication (?:error|failed))\.?$"  # Cloudflare's gateway (2009, 10000), with 400
    r"|(?:incorrect|invalid|expired) api key|api key (?:is )?(?:not valid|invalid|expired|disabled)"  # xAI, Gemini
    r"|country, region, or territory|user location is not supported"  # OpenAI; Gemini, with 400
    r"|free tier is not available|please enable billing"  # Gemini, with 400
    # In Chinese: a token's or a user's quota is used up (one-api, new-api), no balance, in arrears (Zhipu)
    r"|(?:\u4ee4\u724c|\u7528\u6237)\u989d\u5ea6(?:\u5df2\u7528\u5c3d|\u4e0d\u8db3)|\u4f59\u989d\u4e0d\u8db3|\u6b20\u8d39",
    re.IGNORECASE | re.MULTILINE,
)
# Gemini words its limits per minute and day as OpenAI words an account without credit, and says when they end.
_PASSES: Final = re.compile(
    r"quota exceeded for metric|(?:retry|try again) (?:in|after)|per (?:minute|day)", re.IGNORECASE
)
_MODEL_AT: Final = frozenset({None, 400, 403, 404, 410, 422})
_NAME: Final = r"[ :/]*[\"'`\u201c]?[^\s\"'`\u201d]{0,200}[\"'`\u201d]?,?"
_MODEL_WORDS: Final = re.compile(
    # OpenAI, vLLM, Ollama, DeepSeek, Gemini, Groq, Fireworks, xAI, llama-cpp-python, LM Studio
    rf"\bmodels?\b(?: id| name)?{_NAME} ?(?:(?:is|was|has been|currently|either) ){{0,3}}"
    r"(?:do(?:es)? not exist|not exist|not found|not available|no longer (?:available|supported)"
    r"|decommissioned|(?:retired|discontinued|deprecated) (?:and|on|since|as of)|discontinued|retired|unknown)\b"
    rf"|\bmodels?\b{_NAME} has been deprecated"  # OpenAI
    r"|^model: \S+$"  # Anthropic, with 404
    r"|model identifier is invalid|on-demand throughput isn.t supported"  # Bedrock, with 400
    r"|must be verified to use (?:the |this )?model"  # OpenAI: an organisation that is not verified
    r"|does not work with the specified model"  # Azure
    r"|not a valid model|(?:invalid|unknown|no such|unsupported) model\b"  # OpenRouter, Mistral, LiteLLM's proxy
    r"|no endpoints found (?:for|matching your data)|no allowed providers"  # OpenRouter
    r"|(?:not |no )(?:have )?access to (?:the |this )?(?:requested )?model"  # OpenAI, Bedrock
    r"|not allowed to access (?:the |this )?model|unable to access (?:non-serverless )?model"  # LiteLLM, Together
    r"|deployment for this resource does not exist"  # Azure
    r"|no [\"'`]?model_name[\"'`]? with this string"  # LiteLLM's router, with 400
    r"|model[^.]{0,80}do(?:es)? not exist or you(?:r team)?\b[^.]{0,80} not have access",  # OpenAI, xAI
    re.IGNORECASE | re.MULTILINE,
)
# The endpoint serves this model to this account, and not such a request.
_UNFIT_WORDS: Final = re.compile(
    r"no endpoints found that support"  # OpenRouter, with 404
    r"|organization must be verified"  # OpenAI, with 400: to stream, or to be told a summary of the thoughts
    # Streams are refused to all; whoever else is asked may have them.
    r"|\bstream(?:ing|s)?[\"'`]?(?: \w+)? (?:is|are) (?:\w+ )?(?:not |un)(?:yet )?"
    r"(?:supported|implemented|available|enabled|allowed|permitted)"
    r"|n[o'\u2019]t (?:yet )?(?:support|allow|offer) (?:\w+ ){0,2}(?:converse)?stream(?:ing|s)?\b"
    r"|\b(?:cannot|not) be streamed\b"
    r"|\b(?:sse|event-stream)[\"'`]? (?:is|are) (?:not |un)(?:supported|available|enabled|allowed)"
    r"|\bset [\"'`]?stream[\"'`]? ?(?:=|:|to) ?false\b"
    r"|\u4e0d\u652f\u6301 ?(?:\u6d41\u5f0f|stream)"  # "does not support streams"
    r"|\bstream(?:ing|s)?_?(?:is_|are_)?(?:not_?|un)supported\b|\bstream(?:ing|s)?_?disabled\b",  # as a code
    re.IGNORECASE,
)
# The endpoint's own failure at a status that blames the request: a gateway passes on what the server behind it said.
_OWN_AT: Final = frozenset({400, 422})
_OWN_WORDS: Final = re.compile(
    r"\boverloaded\b|\btoo many requests\b|\bthrottl(?:ed|ing)"  # Anthropic, OpenAI, Bedrock; OpenRouter with 400
    r"|\brate.?limit(?:ed\b| (?:is |was |has been )?(?:exceeded|reached))"
    r"|\bcapacity exceeded\b|\b(?:over|at|insufficient|no) capacity\b(?! of\b)"  # Mistral, Groq; a limit is "of 4096"
    r"|\b(?:server|service|system|engine|provider)\b[^.]{0,30}\b(?:busy|temporarily unavailable)\b"
    r"|\b(?:internal server error|service unavailable|bad gateway|gateway time-?out)\b"  # HTTP's phrases
    r"|\bupstream (?:\w+ )?(?:error|time-?out)\b"
    r"|^openai_error\b|\bbad response status code\b"  # one-api, new-api: the server behind has said nothing else
    # Its model: LM Studio, with 400 and nothing beside it; vLLM, PyTorch and others behind gateways
    r"|\b(?:model|engine|server|worker|process|runner|backend) (?:has |have |was )?(?:crashed|died)\b"
    r"|\bmodel (?:is |was |has been |got )?(?:unloaded|not loaded)\b|\bfailed to load (?:the )?model\b"
    r"|\bengine(?:core)? (?:encountered an issue|(?:is |loop )*(?:dead|not running))"
    r"|\bout of memory\b|\b(?:insufficient|not enough|more system) (?:system )?(?:memory|resources)\b|\bcuda error\b",
    re.IGNORECASE | re.MULTILINE,
)
# None of them counts where the error says which part of the request is at fault, or within quotation marks: a schema
# may hold any word. OpenAI's general type says nothing; gateways give it to all that their providers said.
_OF_THE_REQUEST: Final = re.compile(r"invalid_(?!request_error$)")
# Not the values in a provider's JSON, which gateways put into their own text.
_QUOTED: Final = re.compile(
    r"(?<!\w)(?<![\"']:)(?<![\"']: )(?:([\"'`]).*?(?:\1(?!\w)|$)|\u201c[^\u201d\n]*)", re.MULTILINE
)
_FLAGGED_WORDS: Final = re.compile(r"\bflagged\b|\bmoderation\b", re.IGNORECASE)  # OpenRouter, with 403


def kind_of_refusal(said: Said, words: str) -> FailureKind | None:
    """Return whose fault a refusal is; None where it says nothing of an account, a model or the endpoint itself.

    Args:
        said: what the error says.
        words: its texts, each within `SAID_WITHIN`, without what they quote of the request.
    """
    if said.codes & _MODEL_CODES:
        return (
            FailureKind.MODEL
        )  # before the account: one server gives both, of which the model's is the narrower
    if said.codes & _ACCOUNT_CODES:
        return FailureKind.ACCOUNT
    status = said.status
    if status == 403 and _FLAGGED_WORDS.search(words):
        return FailureKind.CONTENT_FILTER
    if status in _ACCOUNT_AT and _ACCOUNT_WORDS.search(words) and not _PASSES.search(words):
        return FailureKind.ACCOUNT
    if status in _MODEL_AT:
        if said.param == "model" or _MODEL_WORDS.search(words):
            return FailureKind.MODEL
        if said.param == "stream" or _UNFIT_WORDS.search("\n".join((words, *said.codes))):
            return FailureKind.UNSERVED
    is_of_request = said.param or any(map(_OF_THE_REQUEST.match, said.codes))
    if status in _OWN_AT and not is_of_request and _OWN_WORDS.search(_QUOTED.sub("", words)):
        return FailureKind.SERVER
    return None
