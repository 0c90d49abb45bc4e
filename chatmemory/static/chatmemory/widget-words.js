// The texts that only a widget has, beside those of chat-words.js. A page can change them before the
// element is drawn.

export const widgetWords = {
  newChat: "New chat",
  tryAgain: "Try again",
  notStarted: "The chat can't be started now. Your message is kept.",
  visitorEnded: "This chat has ended.",
  adopt: "Move your earlier chats to your account?",
  andMore: (/** @type {number} */ count) => `and ${count.toLocaleString()} more`,
  move: "Move",
  notNow: "Not now",
  notMoved: "The chats can't be moved now. Try again in a moment.",
  chat: "Chat",
};
