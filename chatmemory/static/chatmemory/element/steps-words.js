// The texts of steps, beside those of chat-words.js. _row.html, _steps.html and _step.html have the same, for pages
// without JavaScript.

import {gettext as _, ngettext} from "../shared/language.js";

export const stepsWords = {
  reasoning: _("Reasoning"),
  arguments: _("Arguments"),
  result: _("Result"),
  seconds: _("%(seconds)s s"),
  used: (/** @type {number} */ count) =>
    ngettext("Used %(count)s tool", "Used %(count)s tools", count),
  failures: (/** @type {number} */ count) =>
    ngettext("%(count)s failed", "%(count)s failed", count),
  /** @type {import("./chat-words.js").Texts} by the state of a tool call */
  states: {running: _("Running…"), done: _("Done"), failed: _("Failed"), missing: _("No result")},
};
