"""The settings of the demo, and an example of a project that uses chatmemory.

`DATABASE_URL` and `REDIS_URL` select the services. Without them: SQLite, and one process.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from project import environment
from project.demo_suggestions import SUGGESTIONS

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = BASE_DIR / "var"
VAR_DIR.mkdir(exist_ok=True)

DEBUG = os.environ.get("DEBUG", "1") not in {"", "0"}
SECRET_KEY = os.environ.get("SECRET_KEY") or environment.secret_key(VAR_DIR)
ALLOWED_HOSTS = os.environ.get("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",")

INSTALLED_APPS = [
    # Before staticfiles, whose runserver serves no websockets; if the extra `daphne` is installed
    *filter(find_spec, ("daphne",)),
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "chatmemory",
    "chatmemory.search",
    "chatmemory.statistics",
    *(["chatmemory.imports"] if find_spec("ijson") else []),  # the extra `imports`
    *(["chatmemory.langgraph"] if find_spec("langgraph") else []),  # the extra `langgraph`
    "project",
    # The description of the REST API, if the extra `openapi` is installed
    *filter(find_spec, ("drf_spectacular", "drf_spectacular_sidecar")),
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "project.urls"
ASGI_APPLICATION = "project.asgi.application"
WSGI_APPLICATION = "project.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {"default": environment.database(os.environ.get("DATABASE_URL", ""), VAR_DIR)}
CACHES = environment.caches(os.environ.get("REDIS_URL", ""))
CHANNEL_LAYERS = environment.channel_layers(os.environ.get("REDIS_URL", ""))
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DEMO_BOT = "project.demo_bot.answer"
RESPONDER = os.environ.get("RESPONDER", DEMO_BOT)
CHATMEMORY = {
    "RESPONDER": RESPONDER,
    "SUGGESTIONS": SUGGESTIONS if RESPONDER == DEMO_BOT else [],
    "ALLOW_ANONYMOUS": True,  # the visitors of the shop
    "AUDIT_KEY": os.environ.get("AUDIT_KEY", ""),
    "ERASURE_LIST": os.environ.get("ERASURE_LIST") or None,
}

if "drf_spectacular" in INSTALLED_APPS:
    REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema"}
SPECTACULAR_SETTINGS = {
    "TITLE": "django-chatmemory",
    "VERSION": "1",
    "OAS_VERSION": "3.1.1",
    "SERVE_AUTHENTICATION": [],
    "SERVE_INCLUDE_SCHEMA": False,
    "SWAGGER_UI_DIST": "SIDECAR",  # no CDN
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None},
}

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
LOGIN_URL = "login"
LOGOUT_REDIRECT_URL = "home"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "{asctime} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {"chatmemory": {"handlers": ["console"], "level": "INFO"}},
}
