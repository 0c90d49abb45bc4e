"""The errors of providers' clients, as they were measured against a local server.

With openai 3.54.0, anthropic 2.12.0, google-genai 2.34.0, mistralai 3.7.0, groq 0.37.1,
cohere 5.21.1, ollama 0.6.3 and boto3 1.44.5, and with langchain-openai 1.7.3, langchain-anthropic
1.7.7, langchain-google-genai 4.4.2, langchain-mistralai 1.1.6, langchain-groq 1.1.3,
langchain-cohere 0.6.0, langchain-ollama 1.1.0 and langchain-aws 1.9.1. The classes here have the
same names.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chatmemory.errors import (
    Blocked,
    ContextTooLong,
    ModelAccessDenied,
    ModelNotFound,
    ModelRateLimited,
    ModelTimeout,
    ModelUnavailable,
)
from chatmemory.responders.failures import is_blocked, kind_of


def made(module: str, names: str, text: str = "", **fields: Any) -> Exception:
    """Build an error of a class with these names; each is a base class of the one before."""
    cls: type[Exception] = Exception
    for name in reversed(names.split()):
        cls = type(name, (cls,), {"__module__": module})
    error = cls(text)
    vars(error).update(fields)
    return error


def openai(status: int, text: str, code: str | None = None, kind: str = "") -> Exception:
    return made("openai", "APIStatusError APIError", text, status_code=status, code=code, type=kind)


def anthropic(status: int, kind: str, text: str = "") -> Exception:
    body = {"type": "error", "error": {"type": kind, "message": text}}
    said = f"Error code: {status} - {body}"
    return made("anthropic", "APIStatusError APIError", said, status_code=status, type=kind)


def google(code: int, status: str, text: str = "") -> Exception:
    return made(
        "google.genai.errors", "ClientError APIError", f"{code} {status}. {text}", code=code
    )


def groq(status: int, code: str) -> Exception:
    body = f"Error code: {status} - {{'error': {{'message': 'No.', 'code': '{code}'}}}}"
    return made("groq", "APIStatusError APIError GroqError", body, status_code=status)


def mistral(status: int, body: str = "{}") -> Exception:
    text = f"API error occurred: Status {status}. Body: {body}"
    module = "mistralai.client.errors.sdkerror"
    return made(module, "SDKError MistralError", text, status_code=status)


def langchain_mistral(status: int, body: str = "{}") -> Exception:
    url = "https://api.mistral.ai/v1/chat/completions"
    text = f"Error response {status} while fetching {url}: {body}"
    response = SimpleNamespace(status_code=status)
    return made("httpx", "HTTPStatusError HTTPError", text, response=response)


def cohere(status: int, name: str, text: str = "") -> Exception:
    body = f"headers: {{}}, status_code: {status}, body: {{'message': '{text}'}}"
    return made(f"cohere.errors.{name}", f"{name} ApiError", body, status_code=status)


def ollama(status: int, text: str) -> Exception:
    return made("ollama._types", "ResponseError", text, status_code=status)


def bedrock(status: int, code: str, text: str = "", call: str = "ConverseStream") -> Exception:
    said = f"An error occurred ({code}) when calling the {call} operation: {text}"
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    module = "botocore.errorfactory"
    return made(module, f"{code} ClientError", said, response=response, operation_name=call)


FOUND = [
    (openai(429, "Rate limit reached", "rate_limit_exceeded"), ModelRateLimited),
    (openai(429, "You exceeded your current quota", "insufficient_quota"), ModelAccessDenied),
    (openai(401, "Incorrect API key provided", "invalid_api_key"), ModelAccessDenied),
    (made("openai", "OpenAIError", "Missing credentials. Please pass"), ModelAccessDenied),
    (made("groq", "GroqError", "The api_key client option must be set"), ModelAccessDenied),
    (
        made(
            "pydantic_core._pydantic_core",
            "ValidationError",
            "1 validation error for ChatGoogleGenerativeAI\n  Value error, API key required for",
        ),
        ModelAccessDenied,
    ),
    (openai(403, "Country not supported", "unsupported_country"), ModelAccessDenied),
    (openai(404, "The model does not exist", "model_not_found"), ModelNotFound),
    (openai(400, "Rejected by our safety system", "content_policy_violation"), Blocked),
    (openai(400, "The response was filtered", "content_filter"), Blocked),  # Azure
    (openai(400, "Invalid prompt", "invalid_prompt"), Blocked),
    (openai(400, "200000 tokens", "context_length_exceeded"), ContextTooLong),
    (openai(503, "overloaded", None, "server_error"), ModelUnavailable),
    (openai(504, "", None), ModelTimeout),
    (made("openai", "APIConnectionError APIError", "Connection error."), ModelUnavailable),
    (made("openai", "APITimeoutError APIConnectionError APIError"), ModelTimeout),
    (anthropic(429, "rate_limit_error"), ModelRateLimited),
    (anthropic(402, "billing_error"), ModelAccessDenied),
    (
        anthropic(400, "invalid_request_error", "Your credit balance is too low"),
        ModelAccessDenied,
    ),
    (anthropic(401, "authentication_error"), ModelAccessDenied),
    (anthropic(403, "permission_error"), ModelAccessDenied),
    (anthropic(404, "not_found_error"), ModelNotFound),
    (
        anthropic(400, "invalid_request_error", "Output blocked by content filtering policy"),
        Blocked,
    ),
    (
        anthropic(400, "invalid_request_error", "prompt is too long: 210000 tokens"),
        ContextTooLong,
    ),
    (anthropic(413, "request_too_large"), ContextTooLong),
    (anthropic(504, "timeout_error"), ModelTimeout),
    (anthropic(529, "overloaded_error"), ModelUnavailable),
    (anthropic(200, "overloaded_error"), ModelUnavailable),  # an event of the stream
    (anthropic(200, "rate_limit_error"), ModelRateLimited),
    (anthropic(200, "timeout_error"), ModelTimeout),
    (google(429, "RESOURCE_EXHAUSTED"), ModelRateLimited),
    # This is Google's text for the limit of a minute, too.
    (google(429, "RESOURCE_EXHAUSTED", "You exceeded your current quota"), ModelRateLimited),
    (google(400, "INVALID_ARGUMENT", "API key not valid."), ModelAccessDenied),
    (google(403, "PERMISSION_DENIED"), ModelAccessDenied),
    (google(404, "NOT_FOUND"), ModelNotFound),
    (google(400, "INVALID_ARGUMENT", "The input token count exceeds"), ContextTooLong),
    (google(503, "UNAVAILABLE"), ModelUnavailable),
    (google(504, "DEADLINE_EXCEEDED"), ModelTimeout),
    (
        made("aiohttp.client_exceptions", "ClientConnectorError ClientConnectionError"),
        ModelUnavailable,
    ),
    (made("google.auth.exceptions", "DefaultCredentialsError GoogleAuthError"), ModelAccessDenied),
    (made("google.auth.exceptions", "RefreshError GoogleAuthError"), ModelAccessDenied),
    (mistral(429), ModelRateLimited),
    (mistral(401), ModelAccessDenied),
    (mistral(400, '{"message": "Invalid model: x", "type": "invalid_model"}'), ModelNotFound),
    (mistral(400, "too large for model with 32768 maximum context length"), ContextTooLong),
    (mistral(503), ModelUnavailable),
    (langchain_mistral(429), ModelRateLimited),
    (langchain_mistral(401), ModelAccessDenied),
    (langchain_mistral(400, '{"type": "invalid_model"}'), ModelNotFound),
    (langchain_mistral(503), ModelUnavailable),
    (groq(429, "rate_limit_exceeded"), ModelRateLimited),
    (groq(413, "rate_limit_exceeded"), ModelRateLimited),  # more tokens than in a minute
    (groq(401, "invalid_api_key"), ModelAccessDenied),
    (groq(400, "organization_restricted"), ModelAccessDenied),
    (groq(404, "model_not_found"), ModelNotFound),
    (groq(400, "model_decommissioned"), ModelNotFound),
    (groq(400, "context_length_exceeded"), ContextTooLong),
    (groq(498, "capacity_exceeded"), ModelUnavailable),
    (cohere(429, "TooManyRequestsError"), ModelRateLimited),
    (cohere(402, "ApiError"), ModelAccessDenied),
    (cohere(401, "UnauthorizedError"), ModelAccessDenied),
    (cohere(404, "NotFoundError"), ModelNotFound),
    (cohere(498, "InvalidTokenError"), Blocked),
    (cohere(400, "BadRequestError", "too many tokens: 4292"), ContextTooLong),
    (cohere(503, "ServiceUnavailableError"), ModelUnavailable),
    (cohere(504, "GatewayTimeoutError"), ModelTimeout),
    (ollama(404, "model 'x' not found"), ModelNotFound),
    (ollama(400, "the input length exceeds the context length"), ContextTooLong),
    (ollama(503, "server busy"), ModelUnavailable),
    (ConnectionError("Failed to connect to Ollama."), ModelUnavailable),
    (bedrock(429, "ThrottlingException"), ModelRateLimited),
    (bedrock(0, "throttlingException"), ModelRateLimited),  # an event of the stream
    (bedrock(0, "serviceUnavailableException"), ModelUnavailable),
    (bedrock(400, "ServiceQuotaExceededException"), ModelAccessDenied),
    (bedrock(403, "ExpiredTokenException"), ModelAccessDenied),
    (bedrock(404, "ResourceNotFoundException"), ModelNotFound),
    (
        bedrock(400, "ValidationException", "The provided model identifier is invalid."),
        ModelNotFound,
    ),
    (bedrock(400, "ValidationException", "Input is too long for requested model."), ContextTooLong),
    (bedrock(408, "ModelTimeoutException"), ModelTimeout),
    (bedrock(503, "ServiceUnavailableException", call="InvokeModel"), ModelUnavailable),
    (made("botocore.exceptions", "EndpointConnectionError ConnectionError"), ModelUnavailable),
    (made("botocore.exceptions", "NoCredentialsError BotoCoreError"), ModelAccessDenied),
    (made("httpx2", "RemoteProtocolError TransportError"), ModelUnavailable),
    (made("httpx2", "ReadTimeout TimeoutException TransportError"), ModelTimeout),
    (made("together.error", "RateLimitError APIStatusError", status_code=429), ModelRateLimited),
]


@pytest.mark.parametrize(("error", "kind"), FOUND)
def test_each_failure_of_a_provider_has_a_class(error, kind):
    assert kind_of(error) is kind


@pytest.mark.parametrize(
    "error",
    [
        openai(500, "The server had an error", None, "server_error"),
        openai(400, "Unknown parameter", "unknown_parameter"),
        google(500, "INTERNAL"),
        cohere(500, "InternalServerError"),
        bedrock(424, "ModelErrorException"),
    ],
)
def test_other_failures_of_a_provider_have_none(error):
    assert kind_of(error) is None


@pytest.mark.parametrize(
    "error",
    [
        made("httpx", "HTTPStatusError", "401", response=SimpleNamespace(status_code=401)),
        made("elastic", "NotFoundError ApiError", "content_filter", status_code=404),
        made("ollama_tools", "ResponseError", "too many tokens", status_code=404),
        bedrock(403, "AccessDeniedException", call="GetObject"),
    ],
)
def test_the_failed_request_of_a_tool_is_not_one_of_the_provider(error):
    assert kind_of(error) is None


def test_the_error_of_a_client_is_found_behind_one_that_wraps_it():
    error = RuntimeError("wrapped")
    error.__cause__ = google(404, "NOT_FOUND")
    assert kind_of(error) is ModelNotFound


def test_errors_can_be_the_cause_of_each_other():
    first, second = RuntimeError("first"), google(404, "NOT_FOUND")
    first.__cause__, second.__cause__ = second, first
    assert kind_of(first) is ModelNotFound


@pytest.mark.parametrize(
    "metadata",
    [
        {"finish_reason": "content_filter"},
        {"incomplete_details": {"reason": "content_filter"}, "status": "incomplete"},
        {"stop_reason": "refusal"},
        {"finish_reason": "SAFETY"},
        {"prompt_feedback": {"block_reason": "PROHIBITED_CONTENT"}},
        {"stopReason": "guardrail_intervened"},
    ],
)
def test_a_reply_that_a_filter_ended_is_blocked(metadata):
    assert is_blocked({"role": "assistant", "content": "So", "response_metadata": metadata})


def test_a_refusal_is_blocked():
    refusal = {"type": "refusal", "refusal": "I can't help."}
    assert is_blocked({"role": "assistant", "content": [refusal]})


@pytest.mark.parametrize("metadata", [None, {}, {"finish_reason": "stop", "prompt_feedback": {}}])
def test_other_replies_are_not_blocked(metadata):
    message = {"role": "assistant", "content": [{"type": "text", "text": "refusal"}]}
    assert not is_blocked({**message, "response_metadata": metadata})
