// Shows the numbers of the round or step under the pointer. They are read from the table below the chart and set as text, never as HTML.
for (const figure of document.querySelectorAll("figure")) {
  const canvas = figure.querySelector(".canvas");
  const head = [...figure.querySelectorAll(".numbers th")].map((cell) => cell.textContent);
  const rows = [...figure.querySelectorAll(".numbers tbody tr")].map((row) => [...row.cells].map((cell) => cell.textContent));
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  canvas.append(tip);

  const hide = () => {
    tip.hidden = true;
    for (const line of canvas.querySelectorAll(".cursor")) line.style.visibility = "hidden";
  };

  for (const svg of canvas.querySelectorAll("svg")) {
    const { first, last, left, right } = Object.fromEntries(Object.entries(svg.dataset).map(([key, text]) => [key, Number(text)]));
    const cursor = svg.querySelector(".cursor");
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / box.width;
      const round = first + (((event.clientX - box.left) * scale - left) / (right - left)) * (last - first);
      const row = rows.reduce((best, one) => (Math.abs(one[0] - round) < Math.abs(best[0] - round) ? one : best));
      const x = left + ((row[0] - first) / (last - first)) * (right - left);
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      cursor.style.visibility = "visible";
      const title = document.createElement("b");
      title.textContent = `${head[0]} ${row[0]}`;
      const lines = row.slice(1).map((value, n) => {
        const line = document.createElement("div");
        line.textContent = `${head[n + 1]}: ${value}`;
        return line;
      });
      tip.replaceChildren(title, ...lines);
      tip.hidden = false;
      const place = x / scale;
      tip.style.left = `${place + 14 + tip.offsetWidth > box.width ? Math.max(0, place - 14 - tip.offsetWidth) : place + 14}px`;
    });
    svg.addEventListener("pointerleave", hide);
  }
}
// On paper nothing can be unfolded. Runs stay open afterwards, everything else folds again.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not(.run, [open])")];
  for (const one of document.querySelectorAll("details")) one.open = true;
});
addEventListener("afterprint", () => {
  for (const one of folded) one.open = false;
  folded = [];
});
