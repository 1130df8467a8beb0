// What every page does: it says under a table that there is more beyond its edge, and only such tables are a stop for the Tab key.
"use strict";
const hintUnder = (scroll) => {
  const hint = document.createElement("p");
  hint.className = "hint";
  hint.hidden = true;
  hint.setAttribute("aria-hidden", "true"); // whoever hears the page hears the whole table
  hint.textContent = "Scroll sideways to see more →";
  scroll.after(hint);
  new ResizeObserver(() => {
    const wide = scroll.scrollWidth > scroll.clientWidth + 1;
    hint.hidden = !wide;
    if (wide || scroll.scrollHeight > scroll.clientHeight + 1) scroll.setAttribute("tabindex", "0");
    else scroll.removeAttribute("tabindex");
  }).observe(scroll);
};
document.querySelectorAll("div.scroll").forEach(hintUnder);
