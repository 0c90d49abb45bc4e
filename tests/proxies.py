"""An nginx in front of the servers of tests, which also serves the static files."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import chatmemory
from tests.conftest import missing
from tests.servers import free_port, is_listening, wait_for

FILES = Path(chatmemory.__file__).parent / "static"

CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
  types {{ text/css css; text/javascript js; image/svg+xml svg; }}
  access_log off;
  client_body_temp_path {folder};
  proxy_temp_path {folder};
  fastcgi_temp_path {folder};
  uwsgi_temp_path {folder};
  scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{port};
    proxy_http_version 1.1;
    proxy_set_header Host $http_host;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection "upgrade";
    {locations}
  }}
}}
"""


@contextmanager
def nginx(folder: Path, locations: str) -> Iterator[str]:
    """Run nginx with these locations; yield its address."""
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    program = shutil.which("nginx", path=path) or missing("nginx is not installed")
    port = free_port()
    config, log = folder / "nginx.conf", folder / "nginx.log"
    config.write_text(CONFIG.format(folder=folder, port=port, locations=locations))
    command = [program, "-e", "stderr", "-p", str(folder), "-c", str(config)]
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)  # noqa: S603  # our own
    try:
        wait_for(lambda: is_listening(port), "nginx does not start", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
