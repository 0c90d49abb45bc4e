/**
 * Make these nodes the children, in this order. A node that already has its place is not touched: a
 * moved one would lose the focus, and a screen reader would announce it again.
 *
 * @param {Element} parent
 * @param {Element[]} wanted
 */
export function arrange(parent, wanted) {
  let next = parent.firstElementChild;
  for (const node of wanted) {
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
  }
  while (next) {
    const extra = next;
    next = extra.nextElementSibling;
    extra.remove();
  }
}
