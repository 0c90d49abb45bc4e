// The texts of steps, beside those of chat-words.js. _row.html and _step.html have the same, for pages
// without JavaScript.

import {gettext as _} from "../shared/language.js";

export const stepsWords = {
  reasoning: _("Reasoning"),
  arguments: _("Arguments"),
  result: _("Result"),
  /** @type {import("./chat-words.js").Texts} by the state of a tool call */
  states: {running: _("Running…"), done: _("Done"), failed: _("Failed"), missing: _("No result")},
};
