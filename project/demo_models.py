"""How to use the model of a provider whose key is in the environment."""

from __future__ import annotations

from collections.abc import Mapping

MODELS = {
    "OPENAI_API_KEY": ("openai:gpt-5-mini", "langchain-openai"),
    "ANTHROPIC_API_KEY": ("anthropic:claude-sonnet-4-5", "langchain-anthropic"),
    "GOOGLE_API_KEY": ("google_genai:gemini-2.5-flash", "langchain-google-genai"),
    "MISTRAL_API_KEY": ("mistralai:mistral-medium-latest", "langchain-mistralai"),
    "DEEPSEEK_API_KEY": ("deepseek:deepseek-chat", "langchain-deepseek"),
    "GROQ_API_KEY": ("groq:llama-3.3-70b-versatile", "langchain-groq"),
    "OPENROUTER_API_KEY": ("openrouter:openrouter/auto", "langchain-openrouter"),
    "PERPLEXITY_API_KEY": ("perplexity:sonar", "langchain-perplexity"),
    "XAI_API_KEY": ("xai:grok-4", "langchain-xai"),
}
"""For each variable, a model for LangChain's `init_chat_model`, and its package."""


def model_hint(environment: Mapping[str, str]) -> str | None:
    """Return one line about the first key that is set; it never contains the key."""
    for variable, (model, package) in MODELS.items():
        if environment.get(variable):
            return (
                f"{variable} is set. To chat with its model: .venv/bin/pip install "
                f"-e '.[models]' {package} && RESPONDER={model} make demo"
            )
    return None
