// What the served pages have in common: elements, numbers, tables, and questions to their own server. Everything is set as text, never as HTML.
const at = (id) => document.getElementById(id);
const build = (made, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((one) => one !== null));
  return made;
};
const html = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const shown = (value) => {
  if (value === null || value === undefined) return "none";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(1).replace(".0e", "e").replace("e+", "e");
  if (size >= 1000) return value.toFixed(0);
  return Number(value.toPrecision(4)).toString();
};
// A cell is text, an element, or [class, text or element]. All but the first `words` columns are numbers.
const table = (head, rows, words, kind = null) => {
  const cell = (tag, one, n) => {
    const [class_, content] = Array.isArray(one) ? one : [n < words ? null : "n", one];
    return html(tag, { class: class_, scope: tag === "th" ? "col" : null }, content);
  };
  const scroll = html(
    "div",
    { class: "scroll" },
    html(
      "table",
      { class: kind },
      html("thead", {}, html("tr", {}, ...head.map((one, n) => cell("th", one, n)))),
      html("tbody", {}, ...rows.map((row) => html("tr", {}, ...row.map((one, n) => cell("td", one, n))))),
    ),
  );
  const whole = html("div", {}, scroll);
  hintUnder(scroll);
  return whole;
};
const tile = (name, value, note) => html("div", {}, html("dt", {}, name), html("dd", {}, html("div", { class: "value" }, value), html("div", { class: "note" }, note)));

const ask = async (what, body) => {
  const reply = await fetch(what, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const found = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(found.error ?? "the server gave no answer");
  return found;
};
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
