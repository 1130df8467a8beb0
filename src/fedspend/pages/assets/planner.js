// Reads the form, asks the planner, and shows the answer. Everything is set as text, never as HTML.
const carried = JSON.parse(document.getElementById("data").textContent);
const state = structuredClone(carried.settings);
const FIELDS = [...document.querySelectorAll(".field[data-name]")].map((field) => field.dataset.name);
const WHOLE = new Set(["rounds", "transition", "tail", "parameters"]);

// --- charts ---------------------------------------------------------------------------------------
const niceStep = (rough) => {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-300)));
  return ([1, 2, 2.5, 5].find((m) => m * power >= rough * (1 - 1e-9)) ?? 10) * power;
};
const valueScale = (values, bottom, top, linear) => {
  let low = Math.min(...values), high = Math.max(...values);
  if (!linear && low > 0 && high > 12 * low) {
    const ticks = [];
    for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k++) {
      for (const digit of high > 1000 * low ? [1] : [1, 3]) {
        const tick = digit * 10 ** k;
        if (tick >= low / 1.2 && tick <= high * 1.2) ticks.push(tick);
      }
    }
    low = Math.min(low / 1.1, ...ticks);
    high = Math.max(high * 1.1, ...ticks);
    const place = (value) => bottom + (Math.log(value / low) / Math.log(high / low)) * (top - bottom);
    return { place, ticks };
  }
  low = Math.min(0, low);
  if (!(high > low)) high = low + 1;
  const step = niceStep((high - low) / 4), last = Math.ceil(high / step - 1e-9);
  const ticks = Array.from({ length: last + 1 }, (_, n) => n * step);
  return { place: (value) => bottom + (value / ticks.at(-1)) * (top - bottom), ticks };
};
const roundTicks = (last, room) => {
  if (last <= 1) return [1];
  const step = Math.max(1, niceStep((last - 1) / room));
  const whole = step === 2.5 ? 5 : step;
  const inner = [];
  for (let tick = whole; tick < last - 0.6 * whole; tick += whole) if (tick > 1 + 0.6 * whole) inner.push(tick);
  return [1, ...inner, last];
};
const drawing = ({ title, unit, series, references = [], linear = false }, width, height) => {
  const rounds = series[0].values.length;
  const values = [...series.flatMap((one) => one.values), ...references.map((one) => one.value)];
  const top = 14, bottom = height - 40, left = 52, right = width - 12;
  const y = valueScale(values, bottom, top, linear);
  const x = (round) => (rounds > 1 ? left + ((round - 1) / (rounds - 1)) * (right - left) : (left + right) / 2);
  const parts = y.ticks.flatMap((tick) => [
    svg("line", { class: "grid", x1: left, x2: right, y1: y.place(tick), y2: y.place(tick) }),
    svg("text", { x: left - 8, y: y.place(tick) + 4, "text-anchor": "end" }, shown(tick)),
  ]);
  for (const tick of roundTicks(rounds, width < 400 ? 4 : 6)) {
    parts.push(svg("text", { x: x(tick), y: bottom + 20, "text-anchor": tick === rounds && rounds > 1 ? "end" : "middle" }, String(tick)));
  }
  parts.push(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }), svg("text", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, "round"));
  for (const { value, colour } of references) {
    parts.push(svg("line", { class: `budget s${colour}`, x1: left, x2: right, y1: y.place(value), y2: y.place(value) }));
  }
  for (const { values: line, colour, dashed } of series) {
    if (rounds === 1) parts.push(svg("circle", { class: `dot s${colour}`, cx: x(1), cy: y.place(line[0]), r: 4 }));
    else parts.push(svg("path", { class: `line s${colour}${dashed ? " dashed" : ""}`, d: line.map((value, n) => `${n ? "L" : "M"}${x(n + 1).toFixed(1)} ${y.place(value).toFixed(1)}`).join("") }));
  }
  const words = series.map((one) => `${one.label} from ${shown(one.values[0])} in round 1 to ${shown(one.values.at(-1))} in round ${rounds}`).join("; ");
  return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}, ${unit}, by round. ${words}.` }, ...parts);
};
const chart = (what, room) => {
  const [width, height] = room < 460 ? [340, 252] : [560, 300];
  const legend = html(
    "ul",
    { class: "legend" },
    ...what.series.map((one) => html("li", {}, html("span", { class: `swatch s${one.colour}${one.dashed ? " dashed" : ""}` }), one.label)),
  );
  const rows = what.series[0].values.map((_, n) => [String(n + 1), ...what.series.map((one) => shown(one.values[n]))]);
  return html(
    "figure",
    {},
    html("h3", {}, what.title),
    html("p", { class: "under" }, what.unit),
    legend,
    html("div", { class: "canvas" }, drawing(what, width, height)),
    html("details", { class: "numbers" }, html("summary", {}, "Numbers"), table(["round", ...what.series.map((one) => one.label)], rows, 1)),
  );
};

// --- the answer -----------------------------------------------------------------------------------
let last = null;
const named = (groups) => groups.map((one, n) => ({ ...one, label: `budget ${one.label}`, colour: (n % 8) + 1 }));
const changes = (values) => Math.max(...values) > Math.min(...values) * (1 + 1e-9);

const showCharts = (answer) => {
  const groups = named(answer.groups);
  const of = (key) => groups.map((one) => ({ label: one.label, colour: one.colour, values: one[key] }));
  const parts = [
    { title: "Noise", unit: "multiple of a client's clip", series: of("noise") },
    { title: "Spending", unit: "epsilon spent; dashed: the budget", series: of("spent"), linear: true, references: groups.map((one) => ({ value: one.budget, colour: one.colour })) },
  ];
  if (groups.some((one) => changes(one.rate)) || changes(groups.map((one) => one.rate[0]))) parts.push({ title: "Sampling rate", unit: "chance to take part", series: of("rate") });
  if (changes(groups.map((one) => one.clip[0]))) parts.push({ title: "Clip", unit: "longest update of a client; larger budgets may send more", series: of("clip") });
  const room = at("charts").clientWidth;
  at("charts").replaceChildren(...parts.map((one) => chart(one, innerWidth > 820 ? (room - 44) / 2 : room)));
};
const showAverage = ({ average, gain }) => {
  const what = {
    title: "Signal and noise",
    unit: "length, in all coordinates together",
    series: [
      { label: "longest possible average update", values: average.signal, colour: 3, dashed: true },
      { label: "noise in it", values: average.noise, colour: 2 },
    ],
  };
  const words = html("p", { class: average.drowned ? "banner simulation warning" : "prose", id: "average-words" }, average.words);
  const better = gain && html("p", { class: "prose", id: "gain-words" }, `Policy optimal: ${gain.words}.`);
  at("average").replaceChildren(...[words, better, chart(what, at("average").clientWidth)].filter(Boolean));
};
const showMeaning = (answer) => {
  const worst = answer.meaning.reduce((one, other) => (other.epsilon > one.epsilon ? other : one));
  const head = ["budget", "epsilon", "odds change by up to", ...carried.headings, "best guess"];
  const rows = answer.meaning.map((one) => [one.label, shown(one.epsilon), one.odds, ...one.tests, one.best]);
  const note = `The table: the largest share of participating clients that a test can recognise if it wrongly accuses so many others, and how often the best guess is right if half took part. Upper bounds, from ${worst.from}.`;
  at("meaning").replaceChildren(html("p", { class: "prose" }, worst.words), table(head, rows, 1), html("p", { class: "note" }, note));
};
const showObservers = ({ observers, groups }) => {
  const rows = observers.map((one) => [
    html("span", {}, html(one.promised ? "b" : "span", {}, one.observer), html("span", { class: "note" }, ` ${one.who}`)),
    ...one.epsilon.map((value) => (value === null ? "no bound" : shown(value))),
  ]);
  at("observers").replaceChildren(table(["observer", ...groups.map((one) => `budget ${one.label}`)], rows, 1), html("p", { class: "note" }, "Epsilon against each. In bold: what the plan promises; the others say what is lost if they see more."));
};
const showTiles = (answer) => {
  const { noise_of_average: noise, clients } = answer.plan;
  const claims = answer.meaning.map((one) => one.epsilon);
  const parts = [
    tile("Largest epsilon", shown(Math.max(...claims)), `smallest ${shown(Math.min(...claims))}, ${clients.toLocaleString("en")} clients`),
    tile("Noise in the average update", shown(noise.at(-1)), `in each coordinate, last round; first ${shown(noise[0])}`),
    tile("Noise over signal", shown(answer.average.ratio), "length of noise over the longest average update, worst round"),
  ];
  if (answer.gain) parts.push(tile("Optimal against uniform", shown(answer.gain.variance), "noise variance in the final model: see below"));
  at("tiles").replaceChildren(...parts);
};
const show = (answer, took) => {
  last = answer;
  showTiles(answer);
  showCharts(answer);
  showAverage(answer);
  showMeaning(answer);
  showObservers(answer);
  at("command").textContent = `${answer.command} --output plan.json`;
  const { accountant, accountant_chosen: why } = answer.plan;
  const words = answer.exact
    ? `Exact, by accountant ${accountant}${why ? ` (${why})` : ""}.`
    : "At once, by Rényi curves; exact numbers follow in a moment.";
  say(words);
  at("glance").textContent = `Epsilon up to ${shown(Math.max(...answer.meaning.map((one) => one.epsilon)))} · noise over signal ${shown(answer.average.ratio)}${answer.exact ? "" : " · exact numbers follow"}`;
  Object.assign(at("results").dataset, { exact: answer.exact, hash: answer.plan.hash, took: took.toFixed(0) });
};
const say = (words, bad = false) => {
  at("status").textContent = words;
  at("status").className = bad ? "banner live bare" : "banner live";
  at("results").classList.toggle("waiting", bad);
  if (bad) at("glance").textContent = words;
};

// --- asking ---------------------------------------------------------------------------------------
let turn = 0, asking = false, again = false;
const refresh = async () => {
  const mine = ++turn;
  const wrong = read();
  if (wrong) return say(wrong, true);
  if (asking) return void (again = true);
  asking = true;
  const began = performance.now();
  try {
    show(await ask("quick", state), performance.now() - began);
  } catch (error) {
    say(error instanceof TypeError ? "The planner has stopped; start it again with fedspend planner." : error.message, true);
    return;
  } finally {
    asking = false;
    if (again) {
      again = false;
      refresh();
    }
  }
  await pause(400);
  if (mine !== turn) return;
  try {
    const exact = await ask("exact", state);
    if (mine === turn) show(exact, performance.now() - began);
  } catch (error) {
    if (mine === turn) say(error.message, true);
  }
};

// --- the form -------------------------------------------------------------------------------------
const number = (input, name, whole) => {
  const text = input.value.trim().replace(",", ".");
  const value = Number(text);
  const good = text !== "" && Number.isFinite(value) && (!whole || Number.isInteger(value));
  input.setAttribute("aria-invalid", !good);
  if (!good) throw new Error(`${name} must be ${whole ? "a whole number" : "a number"}, got "${input.value}".`);
  return value;
};
const read = () => {
  try {
    state.groups = [...at("groups").rows].map((row, n) => {
      const [epsilon, clients] = row.querySelectorAll("input");
      return [number(epsilon, `Epsilon of group ${n + 1}`, false), number(clients, `Clients of group ${n + 1}`, true)];
    });
    const used = carried.options[at("policy").value];
    for (const name of FIELDS) {
      const input = at(name), field = input.closest(".field");
      const optional = field.classList.contains("optional"), unused = optional && !used.includes(name);
      if (input.tagName === "SELECT") state[name] = unused ? null : input.value;
      else if (unused || (optional && input.value.trim() === "")) {
        state[name] = null;
        input.removeAttribute("aria-invalid");
      } else state[name] = number(input, field.querySelector("label").textContent, WHOLE.has(name));
    }
    arrange();
    return null;
  } catch (error) {
    return error.message;
  }
};
const arrange = () => {
  const policy = at("policy").value, used = carried.options[policy];
  for (const field of document.querySelectorAll(".field.optional")) field.hidden = !used.includes(field.dataset.name);
  for (const one of document.querySelectorAll("[data-policy]")) one.hidden = one.dataset.policy !== policy;
};
const sliders = [...document.querySelectorAll("input[type=range]")].map((slider) => {
  const [kind, low, high] = slider.dataset.scale.split(" ");
  const [from, to] = [Number(low), Number(high)];
  const name = slider.dataset.of;
  Object.assign(slider, { min: 0, max: 200, step: 1 });
  const value = () => {
    const part = slider.value / 200;
    const found = kind === "log" ? from * (to / from) ** part : from + (to - from) * part;
    return WHOLE.has(name) ? Math.round(found) : Number(found.toPrecision(2 + (kind === "linear")));
  };
  const follow = () => {
    const set = Number(at(name).value) || from;
    const part = kind === "log" ? Math.log(set / from) / Math.log(to / from) : (set - from) / (to - from);
    slider.value = Math.round(200 * Math.min(1, Math.max(0, part)));
    slider.setAttribute("aria-valuetext", at(name).value);
  };
  slider.addEventListener("input", () => {
    at(name).value = value();
    slider.setAttribute("aria-valuetext", at(name).value);
  });
  return { name, follow };
});
const groupRow = ([epsilon, clients]) => {
  const input = (value, label) => html("input", { inputmode: "decimal", "aria-label": label, value });
  const row = html("tr", {}, html("td", {}, input(epsilon, "epsilon")), html("td", {}, input(clients, "clients")));
  const remove = html("button", { type: "button", "aria-label": "remove this group" }, "×");
  remove.addEventListener("click", () => {
    if (at("groups").rows.length === 1) return;
    row.remove();
    refresh();
  });
  row.append(html("td", {}, remove));
  return row;
};
// As a person would write it: 1e-5 is easier to read than 0.00001.
const written = (value) => (typeof value === "number" && value > 0 && value < 1e-3 ? value.toExponential() : String(value ?? ""));
const fill = (settings) => {
  Object.assign(state, settings);
  at("groups").replaceChildren(...settings.groups.map(groupRow));
  for (const name of FIELDS) at(name).value = written(settings[name]);
  for (const slider of sliders) slider.follow();
  arrange();
};
const save = (name, text, kind) => {
  const link = html("a", { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
};

fill(state);
at("settings").addEventListener("submit", (event) => event.preventDefault());
at("settings").addEventListener("input", (event) => {
  if (event.target.id === "open") return;
  if (event.target.type !== "range") for (const slider of sliders) if (slider.name === event.target.id) slider.follow();
  refresh();
});
at("settings").addEventListener("change", (event) => event.target.tagName === "SELECT" && refresh());
at("add").addEventListener("click", () => {
  const largest = Math.max(...state.groups.map(([epsilon]) => epsilon));
  at("groups").append(groupRow([Number((2 * largest).toPrecision(3)), 10]));
  refresh();
});
at("open").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (!file) return;
  try {
    fill((await ask("open", { name: file.name, text: await file.text() })).settings);
    refresh();
  } catch (error) {
    turn += 1; // an answer that is on its way is not for this file
    say(error.message, true);
  } finally {
    event.target.value = ""; // so that the same file can be opened again
  }
});
at("save-config").addEventListener("click", () => last && save("config.toml", last.config, "application/toml"));
at("save-plan").addEventListener("click", async () => {
  try {
    save("plan.json", (await ask("plan", state)).text, "application/json");
  } catch (error) {
    say(error.message, true);
  }
});
at("copy").addEventListener("click", async () => {
  await navigator.clipboard?.writeText(at("command").textContent).catch(() => {});
  const range = document.createRange();
  range.selectNodeContents(at("command"));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width || !last) return;
  width = innerWidth;
  showCharts(last);
  showAverage(last);
});
refresh();
