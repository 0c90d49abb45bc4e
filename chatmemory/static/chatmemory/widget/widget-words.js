// The texts that only a widget has, beside those of chat-words.js. A page can change them before the
// element is drawn.

import {gettext as _, ngettext} from "../shared/language.js";

export const widgetWords = {
  newChat: _("New chat"),
  signedOut: _("Sign in to chat."),
  tryAgain: _("Try again"),
  notStarted: _("The chat can't be started now. Your message is kept."),
  unknownChat: _("This chat does not exist."),
  visitorEnded: _("This chat has ended."),
  nextMessage: _("Your next message starts a new one."),
  adopt: _("Move your earlier chats to your account?"),
  andMore: (/** @type {number} */ count) =>
    ngettext("and %(count)s more", "and %(count)s more", count),
  move: _("Move"),
  notNow: _("Not now"),
  moved: _("Your earlier chats are in your account now."),
  notMoved: _("The chats can't be moved now. Try again in a moment."),
  chat: _("Chat"),
  options: _("Options"),
  saveCopy: _("Save a copy"),
  notSaved: _("No copy can be saved now. Try again in a moment."),
  deleteData: _("Delete my data"),
  askDelete: _("Delete all that you wrote here, with the replies? This can't be undone."),
  confirmDelete: _("Delete"),
  deleted: _("Your data was deleted."),
  partlyDeleted: _("Your data was deleted, except what has to be kept for now."),
  notDeleted: _("Your data can't be deleted now. Try again in a moment."),
};
