// Values that the server has too: tests/js/test_javascript.py compares them.

export const PROTOCOL_VERSION = 1;
export const SILENCE_SECONDS = 45; // time without a frame after which the connection counts as lost
export const MAX_FETCH = 100; // messages in one answer to a `fetch` frame
export const MAX_REPLACED = 200; // newest messages that an edit can reach

export const MAX_SHOWN_CHARS = 30_000; // a longer message is cut, with a link to its whole text
export const MAX_RENDERED = 100; // messages in one request for rendered Markdown

// Close codes after which a new connection would be closed too.
export const FATAL_CLOSES = [1008, 4401, 4403, 4404, 4409, 4426];
export const CLOSE_UNAUTHENTICATED = 4401;
export const CLOSE_NOT_FOUND = 4404;
export const CLOSE_TOO_MANY_CONNECTIONS = 4409;
export const CLOSE_RATE_LIMITED = 4429;
export const CLOSE_TOO_LARGE = 1009;

// Character classes in regular expressions with the flag `u`.

// Characters that change the direction of text, or that are invisible.
export const HIDDEN = "\\u202a-\\u202e\\u2066-\\u2069\\u{e0000}-\\u{e007f}";
// Letters by their Unicode category, but invisible.
export const BLANKS = "\\u115f\\u1160\\u2800\\u3164\\uffa0";
// Text that looks different when it is rendered as Markdown.
export const MARKUP = "[*_`#<>|~\\[\\]\\\\&\\n$@]|://|www\\.|^\\s*(?:[-+=]|\\d+[.)])";
