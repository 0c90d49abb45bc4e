// The menu of a widget: another chat, and what visitors can do with their own data.

import {words} from "../element/chat-words.js";
import {button} from "../element/nodes.js";
import {setNoticeText, showNotice} from "./notice.js";
import {widgetWords} from "./widget-words.js";

/** @import {Access} from "./access.js" */

const FILE_NAME = "chat.md";
const KEEP_FILE_MS = 60_000; // the browser reads it after the click

/** @typedef {{begin: () => void, erase: () => Promise<void>, closed: () => void}} Actions */

/**
 * Show the menu above the messages.
 *
 * @param {HTMLElement} root
 * @param {Access} access
 * @param {Actions} actions `closed` is called if nothing was chosen
 */
export function showOptions(root, access, actions) {
  const close = button(words.close, () => {
    notice.remove();
    actions.closed();
  });
  const controls = [
    ...(access.canBegin ? [button(widgetWords.newChat, actions.begin)] : []),
    ...(access.hasVisitorData ? ownData(root, access, actions) : []),
    close,
  ];
  const notice = showNotice(root, widgetWords.options, controls);
  prepare(notice, controls[0], close);
}

/**
 * @param {HTMLElement} root
 * @param {Access} access
 * @param {Actions} actions
 */
function ownData(root, access, actions) {
  const save = button(widgetWords.saveCopy, async () => {
    save.disabled = true;
    try {
      saveFile(await (await access.exportData()).blob());
    } catch (error) {
      console.error("chatmemory: the data can't be exported.", error);
      const notice = save.parentElement;
      if (notice) setNoticeText(notice, widgetWords.notSaved);
    }
    enable(save);
  });
  return [save, button(widgetWords.deleteData, () => askErasure(root, actions))];
}

/**
 * @param {HTMLElement} root
 * @param {Actions} actions
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
