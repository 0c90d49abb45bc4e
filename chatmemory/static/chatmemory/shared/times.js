// Times in the zone and language of the user.

/**
 * Show a time, without the date if it is today; returns the node.
 *
 * @param {HTMLTimeElement} node
 * @param {string} moment
 * @param {string | undefined} language undefined for that of the browser
 */
export function showTime(node, moment, language) {
  const date = new Date(moment);
  if (Number.isNaN(date.valueOf())) return node;
  const isToday = date.toDateString() === new Date().toDateString();
  node.dateTime = moment;
  node.title = date.toLocaleString(language, {dateStyle: "full", timeStyle: "medium"});
  node.textContent = date.toLocaleString(language, {
    ...(!isToday && {dateStyle: "medium"}),
    timeStyle: "short",
  });
  return node;
}
