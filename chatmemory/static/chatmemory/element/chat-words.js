// The texts of the element; a page can change them before it is drawn. _row.html and
// pages/views.py repeat some.

import {gettext as _, interpolate, ngettext} from "../shared/language.js";

/** @typedef {Record<string, string>} Texts */

export const words = {
  close: _("Close"),
  /** @type {Texts} by role */
  authors: {user: _("You"), assistant: _("Assistant"), tool: _("Tool"), system: _("Instructions")},
  log: _("Conversation"),
  label: _("Message"),
  placeholder: _("Write a message"),
  next: _("Write the next message"),
  answer: _("Write your answer"),
  send: _("Send"),
  stop: _("Stop"),
  stopping: _("Stopping…"),
  thinking: _("Thinking…"),
  usingTool: (/** @type {string} */ name) => interpolate(_("Using %(name)s…"), {name}),
  older: _("Load earlier messages"),
  loading: _("Loading…"),
  newer: _("Newest messages"),
  empty: _("What would you like to talk about?"),
  tooLong: (/** @type {number} */ excess) =>
    ngettext("Too long by %(count)s character", "Too long by %(count)s characters", excess),
  length: (/** @type {number} */ length, /** @type {number} */ limit) =>
    interpolate(_("%(length)s of %(limit)s characters"), {length, limit}),
  wrapCode: _("Wrap"),
  copy: _("Copy"),
  copied: _("Copied"),
  notCopied: _("Not copied"),
  good: _("Good reply"),
  bad: _("Bad reply"),
  showAll: _("Show all"),
  showLess: _("Show less"),
  showWhole: _("Show the whole message"),
  redacted: _("This message was removed by an operator."),
  quarantined: _("This message can't be read."),
  interrupted: _("Stopped before the end."),
  failed: _("The reply failed."),
  /** @type {Texts} by error code */
  errors: {
    model_error: _("The model failed."),
    responder_error: _("The bot failed. An operator has to fix this."),
    instructions_failed: _("The bot failed. An operator has to fix this."),
    turn_end_error: _("The bot failed. An operator has to fix this."),
    model_unavailable: _("The model is not available. Try again in a moment."),
    model_timeout: _("The model took too long."),
    model_rate_limited: _("The model received too many requests. Try again in a moment."),
    model_access_denied: _("The model denied access. An operator has to fix this."),
    model_not_found: _("The configured model does not exist. An operator has to fix this."),
    context_too_long: _("Too long for the model. Shorten your message, or start a new chat."),
    blocked: _("A content filter stopped the reply. Change your message."),
    no_checkpointer: _("The model asked a question, but this chat does not support questions."),
  },
  messagesLost: (/** @type {number | null} */ count) =>
    `${_("The server was restored from a backup.")} ${
      count === null
        ? _("Some messages were lost.")
        : ngettext("%(count)s message was lost.", "%(count)s messages were lost.", count)
    }`,
  dismiss: _("Dismiss"),
  answerAgain: _("Answer again"),
  tryAgain: _("Try again"),
  change: _("Edit message"),
  /** @type {Texts} by state or error code */
  outbox: {
    new: _("Not sent yet."),
    sent: _("Sending…"),
    offline: _("Not sent yet. It will be sent when the connection is back."),
    held: _("Waiting until it can be sent."),
    busy: _("Waiting for the previous reply."),
    queued: _("Waiting for its turn."),
  },
  /** @type {Texts} by error code */
  refused: {
    too_large: _("This message is too large."),
    history_cleared: _("The history was cleared before this was sent."),
    outdated: _("There is a newer message, so nothing was replaced."),
    busy: _("Not sent because another reply was in progress."),
    archived: _("This chat is archived and accepts no more messages."),
    bad_text: _("This message has characters that can't be stored."),
    empty: _("This message is empty."),
    impersonated: _("You view this as another person, so you can't do this."),
  },
  sendAgain: _("Send again"),
  edit: _("Edit"),
  discard: _("Discard"),
  cancel: _("Cancel"),
  connecting: _("Connecting…"),
  offline: _("You are offline. Your messages are kept and sent later."),
  lost: _("The connection is lost. Reconnecting… Your messages are kept and sent later."),
  /** @type {Texts} by close code */
  pauses: {
    4429: _("Too much was sent in a short time. Reconnecting in a moment."),
    4503: _("Reconnecting in a moment. Your messages are kept and sent later."),
  },
  delayed: _("Live updates are delayed. Nothing is lost."),
  archived: _("This chat is archived. You can read it, but it accepts no more messages."),
  /** @type {Texts} by close code, or reason */
  ended: {
    other_person: _("You are signed in as someone else."),
    4401: _("You are signed out."),
    4403: _("You do not have permission to chat here."),
    4404: _("This chat was removed."),
    4409: _("Too many chat windows are open."),
    4426: _("This page is out of date."),
    refused: _(
      "This site can't open the chat. Reloading will not help: its operator has to fix it.",
    ),
    other: _("The connection was closed."),
  },
  signIn: _("Sign in"),
  reload: _("Reload"),
  continueHere: _("Continue here"),
};
