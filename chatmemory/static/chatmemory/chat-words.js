// The texts of the element. A page can change them before the element is drawn.
//
// Texts about stored messages are in _row.html and pages/views.py too, for pages without JavaScript.

/** @typedef {Record<string, string>} Texts */

export const words = {
  close: "Close",
  /** @type {Texts} by role */
  authors: {user: "You", assistant: "Assistant", tool: "Tool", system: "Instructions"},
  log: "Conversation",
  label: "Message",
  placeholder: "Write a message",
  next: "Write the next message",
  answer: "Write your answer",
  send: "Send",
  stop: "Stop",
  stopping: "Stopping…",
  thinking: "Thinking…",
  tool: "Tool result",
  usingTool: (/** @type {string} */ name) => `Using ${name}…`,
  waitingForAnswer: "Waiting for your answer.",
  older: "Load earlier messages",
  loading: "Loading…",
  newer: "Newest messages",
  empty: "What would you like to talk about?",
  tooLong: (/** @type {number} */ excess) =>
    `Too long by ${excess.toLocaleString()} ${excess === 1 ? "character" : "characters"}`,
  length: (/** @type {number} */ length, /** @type {number} */ limit) =>
    `${length.toLocaleString()} of ${limit.toLocaleString()} characters`,
  wrapCode: "Wrap",
  copy: "Copy",
  copied: "Copied",
  notCopied: "Not copied",
  good: "Good reply",
  bad: "Bad reply",
  whyGood: "What was good? (optional)",
  whyBad: "What was wrong? (optional)",
  notRated: "Your rating was not saved. Try again.",
  showAll: "Show all",
  showLess: "Show less",
  showWhole: "Show the whole message",
  redacted: "This message was removed by an operator.",
  quarantined: "This message can't be read.",
  interrupted: "Stopped before the end.",
  failed: "The reply failed.",
  /** @type {Texts} by the error code of a message */
  errors: {
    model_error: "The model failed.",
    model_unavailable: "The model can't be reached.",
    model_timeout: "The model took too long.",
    model_rate_limited: "The model received too many requests. Try again in a moment.",
    model_access_denied: "The model denied access. An operator has to fix this.",
    model_not_found: "The configured model does not exist. An operator has to fix this.",
    context_too_long: "The conversation is too long for the model.",
    blocked: "The model refused to answer.",
    no_checkpointer: "The model asked a question, but this chat does not support questions.",
  },
  messagesLost: (/** @type {number | null} */ count) =>
    "The server was restored from a backup. " +
    (count === null
      ? "Some messages were lost."
      : `${count.toLocaleString()} ${count === 1 ? "message was" : "messages were"} lost.`),
  dismiss: "Dismiss",
  version: (/** @type {number} */ number, /** @type {number} */ count) => `${number} of ${count}`,
  previous: "Previous version",
  following: "Next version",
  olderVersion: "This is an older version.",
  newest: "Show the newest version",
  answerAgain: "Answer again",
  tryAgain: "Try again",
  change: "Edit message",
  /** @type {Texts} by the state of an outbox entry, or by its error code */
  outbox: {
    new: "Not sent yet.",
    sent: "Sending…",
    offline: "Not sent yet. It will be sent when the connection is back.",
    held: "Waiting until it can be sent.",
    busy: "Waiting for the previous reply.",
    queued: "Waiting for its turn.",
  },
  /** @type {Texts} by the error code of a refused message */
  refused: {
    too_large: "This message is too large.",
    history_cleared: "The history was cleared before this was sent.",
    outdated: "There is a newer message, so nothing was replaced.",
    busy: "Not sent because another reply was in progress.",
    archived: "This chat is archived and accepts no more messages.",
    bad_text: "This message has characters that can't be stored.",
    empty: "This message is empty.",
  },
  sendAgain: "Send again",
  edit: "Edit",
  discard: "Discard",
  cancel: "Cancel",
  connecting: "Connecting…",
  offline: "You are offline. Your messages are kept and sent later.",
  lost: "The connection is lost. Reconnecting… Your messages are kept and sent later.",
  /** @type {Texts} by close code */
  pauses: {
    4429: "Too much was sent in a short time. Reconnecting in a moment.",
    4503: "Reconnecting in a moment. Your messages are kept and sent later.",
  },
  delayed: "Live updates are delayed. Nothing is lost.",
  archived: "This chat is archived. You can read it, but it accepts no more messages.",
  /** @type {Texts} by close code */
  ended: {
    4401: "You are signed out.",
    4403: "You do not have permission to chat here.",
    4404: "This chat was removed.",
    4409: "Too many chat windows are open.",
    4426: "This page is out of date.",
    refused: "This site can't open the chat. Reloading will not help: its operator has to fix it.",
    other: "The connection was closed.",
  },
  // For staff users, and for all users if DEBUG is on. The browser's console has the details.
  refusedDetails:
    "The server answers, but refuses websockets: it needs an ASGI server such as daphne, and a route " +
    "in asgi.py. The browser's console lists the causes; “manage.py check” finds the most frequent ones.",
  signIn: "Sign in",
  reload: "Reload",
  continueHere: "Continue here",
};
