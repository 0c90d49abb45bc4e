"""Our error classes for the errors of providers' clients, and for replies that a filter ended.

By names, statuses and texts: to import the classes would import each provider's package.
docs/howto/responders.md has the versions with which they were measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set

from chatmemory.errors import (
    Blocked,
    ContextTooLong,
    ModelAccessDenied,
    ModelError,
    ModelNotFound,
    ModelRateLimited,
    ModelTimeout,
    ModelUnavailable,
    ResponderError,
)
from chatmemory.logs import attribute_of, text_of

_CLASSES: Sequence[tuple[type[ModelError], Set[str], Set[int], Sequence[str]]] = (
    (
        ModelTimeout,
        {"ModelTimeoutError", "APITimeoutError", "TimeoutError", "TimeoutException"},
        {408, 504},
        ["timeout_error"],
    ),
    (
        Blocked,
        {"InvalidTokenError"},  # of Cohere, for a word on its deny list
        set(),
        [
            "content_filter",
            "content_policy_violation",
            "content filtering policy",
            "invalid_prompt",
        ],
    ),
    (
        ModelUnavailable,
        {
            "ModelConnectionError",
            "APIConnectionError",
            "ClientConnectionError",
            "ConnectionError",
            "TransportError",
        },
        {498, 502, 503, 529},  # 498 of Groq, 529 of Anthropic: overloaded
        ["overloaded_error", "serviceunavailableexception"],
    ),
    (
        ModelAccessDenied,
        {
            "ModelAuthenticationError",
            "ModelPermissionDeniedError",
            "DefaultCredentialsError",
            "NoCredentialsError",
            "RefreshError",
        },
        {401, 402, 403},
        [
            "insufficient_quota",
            "servicequotaexceeded",
            "credit balance is too low",
            "api key not valid",
            "api key required",
            "api_key client option must be set",
            "missing credentials",
            "organization_restricted",
        ],
    ),
    (
        ModelRateLimited,
        {"ModelRateLimitError"},
        {429},
        ["rate_limit_exceeded", "rate_limit_error", "throttlingexception"],
    ),
    (
        ModelNotFound,
        {"ModelNotFoundError"},
        {404},
        ["invalid_model", "model_decommissioned", "model identifier is invalid"],
    ),
    (
        ContextTooLong,
        {"ContextOverflowError"},
        {413},
        [
            "context_length_exceeded",
            "context length",
            "prompt is too long",
            "input is too long",
            "input token count",
            "too many tokens",
        ],
    ),
)
"""For each of our classes: the names of classes; and of the errors of providers' clients, the HTTP
statuses, and parts of their text in lower case. The first that matches wins."""

_CLIENTS = re.compile(
    r"(?:anthropic|cohere|google\.genai|groq|mistralai|ollama|openai)\b|.*\.APIStatusError$"
)
"""Full names of the classes of providers' clients; the last one is that of generated clients."""

_MODELS = re.compile(
    r"validation errors? for Chat(?:Anthropic|Bedrock|Cohere|GoogleGenerativeAI|Groq|MistralAI|"
    r"Ollama|OpenAI|VertexAI)\b"
)
"""In the text of Pydantic's error for a wrong argument of LangChain's model."""

_BEDROCK = {"Converse", "ConverseStream", "InvokeModel", "InvokeModelWithResponseStream"}

_FILTER_REASONS = {
    "content_filter",
    "refusal",
    *("content_filtered", "guardrail_intervened"),  # Bedrock
    *("blocklist", "image_safety", "prohibited_content", "safety", "spii"),  # Google
}
"""Reasons for the end of a reply, in lower case."""


def kind_of(error: BaseException) -> type[ModelError] | None:
    """Return our class for an error that a responder raised; None if no class fits."""
    causes = list(_causes(error))
    names = {cls.__name__ for cause in causes for cls in type(cause).__mro__}
    clients = list(filter(_is_of_client, causes))
    statuses = set(map(_status_of, clients))
    text = " ".join(map(_error_text, clients))
    for kind, known, known_statuses, phrases in _CLASSES:
        if names & known or statuses & known_statuses or any(part in text for part in phrases):
            return kind
    return None


def code_of(error: BaseException) -> str:
    """Return the code of an error for which `kind_of` returns None."""
    is_of_provider = any(map(_is_of_client, _causes(error)))
    return (ModelError if is_of_provider else ResponderError).code


def is_blocked(message: Mapping[str, object]) -> bool:
    """Whether a filter of the provider ended this reply, or the model refused to answer."""
    match message.get("response_metadata"):
        case {"prompt_feedback": {"block_reason": reason}} if reason:
            return True
        case {"incomplete_details": {"reason": "content_filter"}}:
            return True
        case Mapping() as metadata:
            reasons = (metadata.get(key) for key in ("finish_reason", "stop_reason", "stopReason"))
            if any(str(reason).lower() in _FILTER_REASONS for reason in reasons):
                return True
    content = message.get("content")
    blocks = content if isinstance(content, list) else []
    return any(isinstance(block, Mapping) and block.get("type") == "refusal" for block in blocks)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:  # errors can be the cause of each other
        seen.add(id(error))
        yield error
        error = error.__cause__


def _is_of_client(error: BaseException) -> bool:
    """Whether a provider's client raised it: the request of a tool can also fail with 401."""
    if any(_CLIENTS.match(f"{cls.__module__}.{cls.__name__}") for cls in type(error).__mro__):
        return True
    if attribute_of(error, "operation_name") in _BEDROCK:
        return True
    # LangChain's client of Mistral raises the error of httpx, and its models that of Pydantic.
    match type(error).__name__:
        case "HTTPStatusError":
            return "/chat/completions" in text_of(error)
        case "ValidationError":
            return bool(_MODELS.search(text_of(error)))
    return False


def _status_of(error: BaseException) -> int | None:
    response = attribute_of(error, "response")
    for value, name in ((error, "status_code"), (error, "code"), (response, "status_code")):
        if isinstance(found := attribute_of(value, name), int):
            return found
    match response:
        case {"ResponseMetadata": {"HTTPStatusCode": int(status)}}:
            return status
    return None


def _error_text(error: BaseException) -> str:
    return f"{text_of(error)} {attribute_of(error, 'code')} {attribute_of(error, 'type')}".lower()
