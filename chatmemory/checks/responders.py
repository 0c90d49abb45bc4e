"""The check of the setting `RESPONDER`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from django.core import checks
from django.utils.module_loading import import_string

from chatmemory.checks.signatures import hint_for
from chatmemory.conf import settings

RESPONDER_HINT = "Use demo, a model string provider:model, or a dotted path."


def check_responder() -> list[checks.CheckMessage]:
    """Import the responder, so that a wrong path or a broken module is reported at start-up."""
    name: object = settings.RESPONDER
    if name == "demo":
        return []
    if isinstance(name, str) and ":" in name:
        return _check_model(name)
    if not isinstance(name, str) or "." not in name.strip("."):
        return [_responder_error(name, RESPONDER_HINT + _did_you_mean(str(name), ["demo"]))]
    try:
        found = import_string(name)
    except ImportError as error:
        return [_responder_error(name, import_hint(name, error, what="the responder"))]
    except Exception as error:  # the module is the host's code
        # Only a warning: `migrate` must run where the module's services or keys are missing.
        return [
            checks.Warning(
                f"CHATMEMORY['RESPONDER'] is {name!r}, whose import raises "
                f"{type(error).__name__}: {error}.",
                hint="Correct the module, or set what it needs. Until then all replies fail.",
                id="chatmemory.W021",
            )
        ]
    if isinstance(found, ModuleType):
        return [_responder_error(name, f"{name} is a module; name the responder in it.")]
    if hint := hint_for(found):
        return [_responder_error(name, hint, "cannot reply")]
    return []


def _responder_error(
    name: object, hint: str, problem: str = "cannot be imported"
) -> checks.CheckMessage:
    message = f"CHATMEMORY['RESPONDER'] is {name!r}, which {problem}."
    return checks.Error(message, hint=hint, id="chatmemory.E008")


def _check_model(name: str) -> list[checks.CheckMessage]:
    """Check that LangChain supports a model string's provider, and its package is installed."""
    provider, _, model = name.partition(":")
    if "." in provider:
        hint = f"A dotted path has no colon: {provider}.{model}"
        return [_responder_error(name, hint)]
    providers = provider_packages()
    if providers is None:
        hint = 'Model strings need LangChain: pip install "django-chatmemory[models]".'
        return [_responder_error(name, hint)]
    if not model:
        return [_responder_error(name, "The name of the model is missing; use provider:model.")]
    package = providers.get(provider)
    if package is None and providers:
        hint = f"LangChain has no provider {provider!r}; use provider:model."
        return [_responder_error(name, hint + _did_you_mean(provider, providers))]
    if package is None or find_spec(package):
        return []
    return [
        checks.Warning(
            f"CHATMEMORY['RESPONDER'] is {name!r}, which needs the package {package}.",
            hint=f"pip install {package.replace('_', '-')}",
            id="chatmemory.W016",
        )
    ]


def provider_packages() -> Mapping[str, str] | None:
    """Return the top-level package of each provider of `init_chat_model`.

    Empty if its source has another form; None without LangChain.
    """
    spec = find_spec("langchain")
    if spec is None:
        return None
    # Its source is parsed, since an import takes seconds.
    for location in spec.submodule_search_locations or ():
        file = Path(location) / "chat_models" / "base.py"
        if file.exists():
            return dict(_table_of_providers(file.read_text(encoding="utf-8")))
    return {}


def _table_of_providers(source: str) -> Iterator[tuple[str, str]]:
    for node in ast.parse(source).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id="_BUILTIN_PROVIDERS"), value=ast.Dict() as table):
                for key, value in zip(table.keys, table.values, strict=True):
                    match key, value:
                        case (
                            ast.Constant(value=str(name)),
                            ast.Tuple(elts=[ast.Constant(value=str(module)), *_]),
                        ):
                            yield name, module.partition(".")[0]


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    similar = get_close_matches(name, known, n=1)
    return f" Did you mean {similar[0]}?" if similar else ""


def import_hint(path: str, error: ImportError, *, what: str) -> str:
    """Return why a dotted path cannot be imported, with the nearest name that exists."""
    module_path, _, name = path.rpartition(".")
    module = sys.modules.get(module_path)
    if isinstance(error, ModuleNotFoundError) or module is None:
        return f"{error}.{_similar_module(module_path, error)}"
    if hasattr(module, "__path__") and find_spec(path):
        return f"{path} is a module; name {what} in it."
    return f"{error}.{_did_you_mean(name, vars(module))}"


def _similar_module(path: str, error: ImportError) -> str:
    """Return the suggestion for a module of this path that does not exist."""
    missing = error.name or ""
    if not f"{path}.".startswith(f"{missing}."):
        return f" It is imported by {path}: install its package, or correct that import."
    package, _, name = missing.rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", None) if package else None
    if package and folders is None:
        return ""
    similar = get_close_matches(name, [module.name for module in iter_modules(folders)], n=1)
    return f" Did you mean {'.'.join(filter(None, (package, *similar)))}?" if similar else ""
