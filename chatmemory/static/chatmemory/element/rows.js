// The rows of a table that is streamed.

const MAX_OPEN_CELLS = 2000; // a row that is only "|" has all cells of its head

/**
 * Add HTML that continues a table; return the nodes after the table.
 *
 * @param {Element} block the table, whose HTML ends after its head or a row
 * @param {string} html
 * @param {(html: string) => Element[]} parsed
 */
export function continued(block, html, parsed) {
  removeOpenRows(block);
  const open = block.querySelector("tbody") ?? block.querySelector("table");
  // The parser needs the tags that are open.
  const [first, ...others] = parsed(
    `<div><table>${open?.matches("tbody") ? "<tbody>" : ""}${html}`,
  );
  open?.append(...(first.querySelector(open.localName)?.childNodes ?? []));
  return others;
}

/**
 * Show the lines of rows that are not finished as text; return the rest of the text.
 *
 * @param {Element} block
 * @param {string} text
 */
export function drawOpenRows(block, text) {
  removeOpenRows(block);
  const heads = [...block.querySelectorAll("th")];
  const body = document.createElement("tbody");
  body.className = "cm-open";
  const lines = text.split("\n");
  for (let left = MAX_OPEN_CELLS; left > 0 && lines[0]?.includes("|"); left -= heads.length) {
    const cells = (lines.shift() ?? "").replace(/^\s*\|/, "").split(/(?<!\\)\|/);
    const row = document.createElement("tr");
    for (const [index, {className}] of heads.entries()) {
      const cell = document.createElement("td");
      cell.className = className;
      cell.textContent = cells[index]?.trim().replaceAll("\\|", "|") ?? "";
      row.append(cell);
    }
    body.append(row);
  }
  if (body.firstChild) block.querySelector("table")?.append(body);
  return lines.join("\n");
}

/** @param {Element} block */
function removeOpenRows(block) {
  block.querySelector(".cm-open")?.remove();
}
