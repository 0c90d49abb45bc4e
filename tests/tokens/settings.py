"""The settings of the project, with tokens of REST framework, JSON Web Tokens and CORS."""

from __future__ import annotations

import corsheaders.defaults

from project.settings import *  # noqa: F403  # with the changes below
from project.settings import INSTALLED_APPS, MIDDLEWARE

SECRET_KEY = "a key that is long enough for HS256"
ALLOWED_HOSTS = ["testserver"]
INSTALLED_APPS = [*INSTALLED_APPS, "corsheaders", "rest_framework.authtoken"]
MIDDLEWARE = ["corsheaders.middleware.CorsMiddleware", *MIDDLEWARE]
CORS_ALLOWED_ORIGINS = ["https://app.example"]
CORS_EXPOSE_HEADERS = ["Allow", "Content-Disposition", "ETag", "Retry-After", "WWW-Authenticate"]
CORS_ALLOW_HEADERS = [*corsheaders.defaults.default_headers, "if-none-match"]
CORS_URLS_REGEX = "^/api/"
CHATMEMORY = {
    "API_AUTHENTICATION": [
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework_simplejwt.authentication.JWTAuthentication",
    ],
    "VALID_LOGINS": "chatmemory.api.tokens.valid_logins",
}
