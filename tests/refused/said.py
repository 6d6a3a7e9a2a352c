"""Refusals in the providers' own words, each with whose fault it is."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from faults.in_memory import Reply

__all__ = ["SAID", "Said", "refusing"]


class Said(NamedTuple):
    """A refusal: who says it, the status, the fields of the error or its whole body, and the kind that it is."""

    who: str
    status: int
    error: Any
    kind: str


def refusing(status: int, error: Any = None) -> Reply:
    """A response that refuses; `error`: the fields of its error, or its whole body; None: it says nothing."""
    is_whole = isinstance(error, list) or (isinstance(error, dict) and "error" in error)
    body = error if is_whole else {"error": error or {"message": "No."}}
    return Reply([json.dumps(body).encode()], status, {"content-type": "application/json"})


def _message(text: str, **more: Any) -> dict[str, Any]:
    return {"message": text, **more}


def _said(kind: str, *rows: tuple[str, int, Any]) -> list[Said]:
    return [
        Said(who, status, _message(error) if isinstance(error, str) else error, kind)
        for who, status, error in rows
    ]


LIMIT = (
    "Rate limit reached for gpt-4o in organization org-402 on tokens per min (TPM): Limit 30000, Used 29402."
)
GEMINI = "You exceeded your current quota, please check your plan and billing details. * Quota exceeded for metric: x"
SAID = [
    *_said(
        "account",
        ("OpenAI", 429, _message("You exceeded your current quota.", code="insufficient_quota")),
        ("OpenAI, type alone", 429, _message("No.", type="insufficient_quota")),
        ("OpenAI, hard limit", 400, _message("No.", code="billing_hard_limit_reached")),
        (
            "OpenAI, inactive",
            429,
            "Your account is not active, please check your billing details on our website.",
        ),
        ("OpenAI, deactivated", 401, _message("No.", code="account_deactivated")),
        ("OpenAI, country", 403, _message("No.", code="unsupported_country_region_territory")),
        (
            "Anthropic",
            400,
            "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing.",
        ),
        (
            "Anthropic, limit",
            400,
            "You have reached your specified API usage limits. You will regain access later.",
        ),
        ("Anthropic, off", 400, "This organization has been disabled."),
        ("DeepSeek", 402, "Insufficient Balance"),
        ("DeepSeek, as 400", 400, "Insufficient Balance"),
        (
            "OpenRouter",
            402,
            _message("Insufficient credits. Add more using https://x.test/credits", code=402),
        ),
        ("Gemini, prepaid", 429, "Your prepayment credits are depleted. Please go to AI Studio."),
        ("Gemini, key", 400, "API key not valid. Please pass a valid API key."),
        (
            "xAI, key",
            400,
            {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xx."},
        ),
        (
            "xAI",
            429,
            "Your team has either used all available credits or reached its monthly spending limit.",
        ),
        ("Moonshot", 429, _message("Your account is suspended.", type="exceeded_current_quota_error")),
        ("Alibaba", 400, _message("Please make sure your account is in good standing.", code="Arrearage")),
        ("Volcengine", 403, _message("Overdue.", code="AccountOverdueError")),
        ("Groq", 400, _message("Organization has been restricted.", code="organization_restricted")),
        ("new-api", 403, _message("No.", code="insufficient_user_quota")),
        (
            "LiteLLM",
            400,
            _message("Budget has been exceeded! Current cost: 4.02", type="budget_exceeded", code="400"),
        ),
        ("Hugging Face", 402, "You have exceeded your monthly included credits for Inference Providers."),
        # amazon-bedrock-audio-summarizer #3; opencode #32051; Gemini's troubleshooting; one-api's model/token.go
        ("Bedrock", 400, "Your account is not authorized to invoke this API operation."),
        ("Cloudflare", 400, {"success": False, "error": [{"code": 2009, "message": "Unauthorized"}]}),
        ("Cloudflare, key", 400, {"error": [{"code": 10000, "message": "Authentication error"}]}),
        (
            "Gemini, country",
            400,
            _message(
                "Gemini API free tier is not available in your country. Please enable billing on your project.",
                status="FAILED_PRECONDITION",
            ),
        ),
        (
            "one-api",
            400,
            _message("\u8be5\u4ee4\u724c\u989d\u5ea6\u5df2\u7528\u5c3d", type="one_api_error"),
        ),
    ),
    *_said(
        "model",
        ("OpenAI", 404, _message("The model `x` does not exist.", code="model_not_found")),
        ("OpenAI, words alone", 404, "The model `x` does not exist or you do not have access to it."),
        (
            "OpenAI, project",
            403,
            _message("Project `p` does not have access to model `x`.", code="model_not_found"),
        ),
        ("OpenAI, retired", 404, "The model `x-003` has been deprecated, learn more here."),
        ("OpenAI, param", 400, _message("invalid model ID", param="model")),
        (
            "Azure",
            404,
            _message("The API deployment for this resource does not exist.", code="DeploymentNotFound"),
        ),
        ("vLLM", 404, _message("The model `x` does not exist.", type="NotFoundError", code=404)),
        ("Ollama", 404, _message("model 'x' not found", type="not_found_error")),
        ("Ollama, older", 404, 'model "x" not found, try pulling it first'),
        ("OpenRouter", 404, _message("No endpoints found for a/x:free.", code=404)),
        ("OpenRouter, name", 400, _message("a/x is not a valid model ID", code=400)),
        (
            "Gemini",
            404,
            _message("models/x is not found for API version v1beta.", code=404, status="NOT_FOUND"),
        ),
        (
            "Gemini, as a list",
            404,
            [{"error": {"message": "models/x is not found for API version v1.", "code": 404}}],
        ),
        ("Groq", 400, _message("The model `x` has been decommissioned.", code="model_decommissioned")),
        ("Groq, words alone", 400, "The model `x` has been decommissioned and is no longer supported."),
        (
            "DeepSeek",
            400,
            _message("Model Not Exist", type="invalid_request_error", code="invalid_request_error"),
        ),
        ("Mistral", 400, _message("Invalid model: x", type="invalid_model")),
        ("Anthropic", 404, _message("model: claude-x", type="not_found_error")),
        ("Together", 400, _message("Unable to access non-serverless model a/x.", code="model_not_available")),
        ("Fireworks", 404, "Model not found, inaccessible, and/or not deployed"),
        (
            "xAI",
            404,
            {"code": "not found", "error": "The model x does not exist or your team 4 does not have access."},
        ),
        (
            "Hugging Face",
            400,
            _message("The requested model 'x' is not supported.", code="model_not_supported"),
        ),
        ("LiteLLM", 401, _message("key not allowed to access model.", type="key_model_access_denied")),
        (
            "LiteLLM, name",
            400,
            "Invalid model name passed in model=x. Call `/v1/models` to view available models.",
        ),
        (
            "LiteLLM, router",
            400,
            _message(
                "litellm.BadRequestError: You passed in model=x. There is no 'model_name' with this string",
                type="invalid_request_error",
            ),
        ),
        ("a proxy, gone", 410, "The model x has been retired."),
    ),
    *_said(
        "rate_limit",
        ("OpenAI", 429, _message(LIMIT, code="rate_limit_exceeded")),
        (
            "Gemini",
            429,
            _message(f"{GEMINI}, limit: 15. Please retry in 25.4s.", status="RESOURCE_EXHAUSTED"),
        ),
        ("no words", 429, "Too many requests"),
    ),
    *_said(
        "unserved",
        ("OpenRouter", 404, "No endpoints found that support tool use."),
        # streams by the name of a code, of Bedrock's operation, and in Chinese
        ("a code", 400, _message("Not supported", code="streaming_not_supported")),
        ("a code in capitals", 400, {"error": "STREAM_NOT_SUPPORTED"}),
        ("a reason", 400, _message("Request failed", reason="streamingDisabled")),
        ("Bedrock", 400, "The model doesn't support the ConverseStream operation"),
        ("in Chinese", 400, "\u8be5\u6a21\u578b\u4e0d\u652f\u6301stream\u6a21\u5f0f"),
    ),
    *_said(
        "server",
        # LM Studio's bug tracker #1347, #1492
        ("LM Studio, a crash", 400, {"error": "The model has crashed without additional information."}),
        ("LM Studio, unloaded", 400, {"error": "Model unloaded."}),
        (
            "LM Studio, resources",
            400,
            {"error": 'Failed to load model "x". Error: insufficient system resources.'},
        ),
        ("Ollama", 400, "model requires more system memory (12.0 GiB) than is available (8.0 GiB)"),
        ("PyTorch", 400, _message("CUDA out of memory. Tried to allocate", type="BadRequestError", code=400)),
        ("vLLM", 400, _message("EngineCore encountered an issue. See stack trace.", type="BadRequestError")),
        # one-api's relay/controller/error.go; new-api: nothing is said, or nothing of the one behind it
        *(
            (
                who,
                400,
                _message(text, type="upstream_error", param=param, code="bad_response_status_code"),
            )
            for who, text, param in (
                ("one-api", "bad response status code 400", "400"),
                ("new-api", "openai_error (request id: x)", ""),
            )
        ),
    ),
    *_said(
        "content_filter", ("OpenRouter", 403, "x requires moderation. Your input was flagged for 'hate'.")
    ),
    *_said(
        "bad_request",  # digits and names of models and accounts decide nothing
        (
            "OpenAI, dialect",
            400,
            _message("Unsupported parameter: 'max_tokens' is not supported with this model."),
        ),
        ("digits", 400, "Invalid value 402: 'seed' must be below 401 (429)."),
        ("vLLM", 422, "messages.4.content: the model's template allows no 404"),
        ("a tool's name", 400, "Invalid schema for function 'account_balance': 'model' is not an object."),
        # words of an overload, which are the application's
        (
            "OpenAI, a tool's enum",
            400,
            _message(
                "Invalid schema for function 'report': In context=('properties', 'state'), enum value 'throttled' "
                "does not validate against {'type': 'integer'}.",
                type="invalid_request_error",
                param="tools[0].function.parameters",
                code="invalid_function_parameters",
            ),
        ),
        ("a parameter", 400, _message("Too many requests in a batch.", param="batch")),
        ("a code", 400, _message("Rate limited is no role.", type="x", code="invalid_value")),
        ("Gemini's status", 400, _message("Field state: throttled.", status="INVALID_ARGUMENT")),
        ("a field", 400, "Unknown parameter: 'overloaded'"),
        ("a limit", 422, "max_tokens is over capacity of 4096 tokens"),
        ("a function", 400, "Function name 'service unavailable handler' is invalid"),
        # and of a failure, of an account or of a stream
        (
            "one-api, its provider's words",
            400,
            _message("Invalid temperature.", type="upstream_error", code="bad_response_status_code"),
        ),
        ("an enum", 400, "Invalid schema for function 'report': enum value 'out of memory' is no integer."),
        ("a message", 400, 'messages.0: the text "The model has crashed" is in no field'),
        ("a parameter's name", 400, _message("The model has died is no value.", param="stop")),
        ("a header", 400, "Unauthorized field: authorization"),
        ("a tool's streams", 400, "Invalid schema for function 'streams': no type is given."),
        (
            "a mistake in streams",
            400,
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        ),
        ("a list", 422, 'state: must be one of ["ok", "throttled"], and no \u201cToo many requests\u201d'),
    ),
]
