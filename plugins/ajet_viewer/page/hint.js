// Words that appear beside what they explain, under the mouse and on focus.

export function explain(node, words) {
  const tip = document.getElementById("tip");
  const show = () => {
    const text = words();
    tip.hidden = !text;
    if (!text) return;
    (node.closest("dialog") ?? document.body).append(tip);  // above a dialog is only what is in it
    tip.textContent = text;
    const box = node.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${box.bottom + tip.offsetHeight + 8 > innerHeight ? box.top - tip.offsetHeight - 4 : box.bottom + 4}px`;
  };
  const hide = () => { tip.hidden = true; document.body.append(tip); };
  node.classList.add("explained");
  for (const event of ["mouseenter", "focus"]) node.addEventListener(event, show);
  for (const event of ["mouseleave", "blur"]) node.addEventListener(event, hide);
}
