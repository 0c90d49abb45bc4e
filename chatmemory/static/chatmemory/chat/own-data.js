// What visitors can do with their own data: save a copy, and delete it.

import {words} from "../chat-words.js";
import {widgetWords} from "../widget-words.js";
import {button} from "./nodes.js";
import {setNoticeText, showNotice} from "./notice.js";

/** @import {Access} from "./access.js" */

const FILE_NAME = "chat.md";
const KEEP_FILE_MS = 60_000; // the browser reads it after the click

/**
 * Show the menu above the messages.
 *
 * @param {HTMLElement} root
 * @param {Access} access
 * @param {{erase: () => Promise<void>, closed: () => void}} actions
 */
export function showOwnData(root, access, {erase, closed}) {
  const save = button(widgetWords.saveCopy, async () => {
    save.disabled = true;
    try {
      saveFile(await (await access.exportData()).blob());
    } catch (error) {
      console.error("chatmemory: the data can't be exported.", error);
      setNoticeText(notice, widgetWords.notSaved);
    }
    enable(save);
  });
  const remove = button(widgetWords.deleteChat, () => askErasure(root, {erase, closed}));
  const close = button(words.close, () => {
    notice.remove();
    closed();
  });
  const notice = showNotice(root, widgetWords.yourData, [save, remove, close]);
  prepare(notice, save, close);
}

/**
 * @param {HTMLElement} root
 * @param {{erase: () => Promise<void>, closed: () => void}} actions
 */
function askErasure(root, {erase, closed}) {
  const confirm = button(widgetWords.confirmDelete, async () => {
    confirm.disabled = true;
    try {
      await erase();
    } catch (error) {
      console.error("chatmemory: the data can't be deleted.", error);
      enable(confirm);
      setNoticeText(notice, widgetWords.notDeleted);
    }
  });
  confirm.className = "cm-button cm-danger";
  const cancel = button(words.cancel, () => {
    notice.remove();
    closed();
  });
  const notice = showNotice(root, widgetWords.askDelete, [confirm, cancel]);
  prepare(notice, cancel, cancel);
}

/**
 * @param {HTMLElement} notice
 * @param {HTMLElement} first the button to focus
 * @param {HTMLElement} close what Esc presses
 */
function prepare(notice, first, close) {
  notice.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.preventDefault(); // the panel stays open
    close.click();
  });
  first.focus();
}

// A disabled button has lost the focus.
/** @param {HTMLButtonElement} node */
function enable(node) {
  node.disabled = false;
  node.focus();
}

/** @param {Blob} file */
function saveFile(file) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = FILE_NAME;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), KEEP_FILE_MS);
}
