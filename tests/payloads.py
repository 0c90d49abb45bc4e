"""Texts that try to run a script, to load a resource, or to deceive the reader."""

from __future__ import annotations

ELSEWHERE = "evil.example"
"""The host from which the payloads try to load."""

PAYLOADS = (
    "<script>alert(1)</script>",
    f'<script src="https://{ELSEWHERE}/x.js"></script>',
    f"<img src=x onerror=alert(1)><img src=https://{ELSEWHERE}/x.png>",
    '"><svg/onload=alert(1)>',
    "<svg><script>alert(1)</script></svg>",
    f'<iframe src="https://{ELSEWHERE}/"></iframe><iframe srcdoc="<script>alert(1)</script>">',
    "<a href='javascript:alert(1)'>click</a>",
    "[click](javascript:alert(1)) [click](JaVaScRiPt:alert(1)) [click](java\nscript:alert(1))",
    "[click](&#x6A;avascript:alert(1)) [click](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2Ny)",
    "[click](vbscript:msgbox(1)) <javascript:alert(1)> <data:text/html,x>",
    f"![x](https://{ELSEWHERE}/x.png) ![x](//{ELSEWHERE}/x.png 'y')",
    f"![x][1]\n\n[1]: https://{ELSEWHERE}/x.png",
    '[x](https://example.com" onmouseover="alert(1)) [x](https://a.example "t\\" onload=alert(1)")',
    f"<style>@import 'https://{ELSEWHERE}/x.css'; body {{ display: none }}</style>",
    f'<link rel=stylesheet href=https://{ELSEWHERE}/x.css><base href="https://{ELSEWHERE}/">',
    f"<meta http-equiv=refresh content='0;url=https://{ELSEWHERE}/'>",
    f"<form action=https://{ELSEWHERE}/><input autofocus onfocus=alert(1)></form>",
    "<math><mtext><table><mglyph><style><!--</style>"
    "<img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "</div></article></chat-memory><script>alert(1)</script>",
    "```html\n</code></pre><script>alert(1)</script>\n```",
    "`</code><img src=x onerror=alert(1)>`",
    "{{ constructor.constructor('alert(1)')() }} ${alert(1)} {% debug %}",
    "&lt;script&gt;alert(1)&lt;/script&gt; &#60;img src=x onerror=alert(1)&#62;",
    "\u202etxt.exe\u202c \u2066a\u2069 \U000e0041\U000e0041\U000e0042 &#x202e;txt",
)
