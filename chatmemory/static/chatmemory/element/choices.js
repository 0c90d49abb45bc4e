// A message that waits for an answer, and the short answers that it offers.

import {gettext as _} from "../shared/language.js";
import {addStyle} from "../shared/style.js";
import {button, find} from "./nodes.js";
import {isBlank, visible} from "./text.js";

/** @import {MessageFrame} from "../client/types.d.ts" */

const MAX_CHOICES = 8;
const MAX_CHOICE_CHARS = 80;

/**
 * Mark a message that waits for an answer, with a button for each offered answer; without the class
 * `cm-asking`, remove the mark. Browsers end simultaneous imports of a module in any order, so the
 * class is that of the last drawing when the call of an earlier one arrives.
 *
 * @param {HTMLElement} node
 * @param {MessageFrame["asks"]} asks
 * @param {(choice: string) => void} answer
 * @param {(change: () => void) => void} keep the scroll position during a change
 */
export async function setQuestion(node, asks, answer, keep) {
  await addStyle(node, ["element/choices.css"]);
  const question = node.matches(".cm-asking") ? asks : null;
  const mark = node.querySelector(":scope > .cm-asks");
  if (Boolean(question) === Boolean(mark)) return;
  keep(() => {
    mark?.remove();
    if (question) find(node, ".cm-note", HTMLElement).after(markOf(question, answer));
  });
}

/**
 * @param {NonNullable<MessageFrame["asks"]>} question
 * @param {(choice: string) => void} answer
 */
function markOf(question, answer) {
  const made = document.createElement("p");
  made.className = "cm-asks";
  made.append(_("Waiting for your answer."));
  for (const choice of choicesOf(question)) {
    const offer = button(visible(choice), () => answer(choice), "cm-choice");
    offer.dir = "auto";
    made.append(offer);
  }
  return made;
}

/**
 * The `choices` of a question; none if one of them is unusable.
 *
 * @param {NonNullable<MessageFrame["asks"]>} question
 * @returns {string[]}
 */
export function choicesOf({value}) {
  const {choices} = /** @type {{choices?: unknown}} */ (value ?? {});
  if (!Array.isArray(choices) || choices.length > MAX_CHOICES) return [];
  return choices.every(isChoice) ? choices : [];
}

/** @param {unknown} choice */
function isChoice(choice) {
  return typeof choice === "string" && !isBlank(choice) && choice.length <= MAX_CHOICE_CHARS;
}
