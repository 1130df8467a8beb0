// Asks for what is shown, shows it, and looks every few seconds whether the ledger has grown. An address after # names the client or the run whose details are shown.
const carried = JSON.parse(at("data").textContent);
const EVERY = 3000; // milliseconds between two looks
const MANY = 60; // readings by PLD that are made without being asked for
const state = { project: carried.project, unit: "client", head: null, pages: { balances: 1, runs: 1, history: 1, detail: 1 } };
const words = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
const who = () => ({ project: state.project, unit: state.unit });
const plain = (value) => (value === null || value === undefined || value === "" ? "—" : String(value));
const when = (time) => plain(time).replace("T", " ").replace(/(:\d\d)?(\.\d+)?(\+00:00|Z)$/, "");

// --- addresses ------------------------------------------------------------------------------------
const link = (kind, name, content = name) => html("a", { href: `#${kind}=${encodeURIComponent(name)}`, "data-key": `${kind}=${name}`, class: "name" }, content);
const chosen = () => {
  const [kind, name] = location.hash.slice(1).split("=");
  try {
    return name && ["client", "run"].includes(kind) ? { kind, name: decodeURIComponent(name) } : null;
  } catch {
    return null;
  }
};

// --- what is shown --------------------------------------------------------------------------------
// Whoever is on a link or a button of a part stays there when the part is made anew.
const put = (id, ...parts) => {
  const held = at(id).contains(document.activeElement) ? document.activeElement.dataset.key : null;
  at(id).replaceChildren(...parts);
  at(id).classList.remove("stale");
  if (held) [...at(id).querySelectorAll("[data-key]")].find((one) => one.dataset.key === held)?.focus({ preventScroll: true });
};
const none = (text) => html("p", { class: "note" }, text);
const turner = (name, { page, pages, count }, what, again) => {
  state.pages[name] = page;
  const turn = (to, label, key) => {
    const made = html("button", { type: "button", "data-key": key, disabled: to < 1 || to > pages }, label);
    made.addEventListener("click", () => {
      state.pages[name] = to;
      again();
    });
    return made;
  };
  return [turn(page - 1, "← Previous", `${name}-previous`), html("span", {}, `Page ${page.toLocaleString("en")} of ${pages.toLocaleString("en")} · ${words(count, ...what)}`), turn(page + 1, "Next →", `${name}-next`)];
};
const showPager = (name, found, what, again) => {
  at(`${name}-pager`).hidden = found.pages === 1;
  put(`${name}-pager`, ...turner(name, found, what, again));
};
const bar = (row) => {
  const spent = html("span"), held = html("span", { class: "held" });
  const part = (value) => `${Math.min(100, (100 * value) / row.budget)}%`;
  spent.style.width = part(row.spent);
  held.style.width = part(row.reserved);
  const full = row.remaining <= 0 && !row.withdrawn;
  return html("span", { class: full ? "bar full-up" : "bar", "aria-hidden": true }, spent, held);
};
const standing = (row) => (row.withdrawn ? "withdrawn" : row.remaining <= 0 ? "nothing left" : "");
const BALANCES = ["budget", "spent", "remaining", "held"];
const amounts = (row) => [row.budget, row.spent, row.remaining, row.reserved];
const numbers = (row) => amounts(row).map(shown);

const showBalances = (found) => {
  const rows = found.rows.map((row) => [["names", link("client", row.name)], ...numbers(row), [null, bar(row)], [null, standing(row)]]);
  const empty = found.total.accounts === 0 ? "No accounts yet; fedspend ledger register opens them." : "Nobody fits this search.";
  put("balances", rows.length ? table([state.unit, ...BALANCES, [null, "of the budget"], [null, ""]], rows, 1, "full") : none(empty));
  showPager("balances", found, [state.unit], refreshBalances);
  const { accounts, exhausted, withdrawn, runs, open } = found.total;
  put(
    "tiles",
    tile(`${state.unit[0].toUpperCase()}${state.unit.slice(1)} accounts`, accounts.toLocaleString("en"), state.project ? `of project ${state.project}` : "each with a lifetime budget"),
    tile("Nothing left", exhausted.toLocaleString("en"), "can join no further run"),
    tile("Withdrawn", withdrawn.toLocaleString("en"), "take part in no further round"),
    tile("Runs", runs.toLocaleString("en"), open ? `${open.toLocaleString("en")} of them open` : "none of them open"),
  );
};
const progress = (run) => (run.tune ? "private tune" : `${run.begun} of ${run.rounds}`);
const showRuns = (found) => {
  const rows = found.rows.map((run) => [["names", link("run", run.run, html("span", { class: "code" }, run.run))], ["when", when(run.opened)], plain(run.method), run.status, run.members.toLocaleString("en"), progress(run), String(run.lost)]);
  put("runs", rows.length ? table(["run", "opened", "method", "status", "members", "rounds begun", "lost"], rows, 4, "full") : none(at("runs-search").value ? "No run fits this search." : "No runs yet."));
  showPager("runs", found, ["run"], refreshRuns);
};
const entryTable = (rows) =>
  table(
    ["entry", "time", "kind", "run", "about"],
    rows.map((line) => [String(line.entry), ["when", when(line.time)], line.kind, line.run ? link("run", line.run, html("span", { class: "code" }, line.run.slice(0, 12))) : "", ["about", line.project && line.project !== state.project ? `${line.about} (${line.project})` : line.about]]),
    5,
    "full",
  );
const showHistory = (found) => {
  put("history", found.rows.length ? entryTable(found.rows) : none("No entry fits this search."));
  showPager("history", found, ["entry", "entries"], refreshHistory);
};

// --- one client, one run --------------------------------------------------------------------------
const back = () => {
  const made = html("a", { href: "#", "data-key": "back" }, "Close");
  made.addEventListener("click", (event) => {
    event.preventDefault();
    history.pushState(null, "", location.pathname);
    const from = at("detail").dataset.of;
    showDetail();
    ([...document.querySelectorAll("#balances [data-key], #runs [data-key]")].find((one) => one.dataset.key === from) ?? at("balances-search")).focus();
  });
  return made;
};
const paged = (found) => [found.rows.length ? entryTable(found.rows) : none("No entries."), ...(found.pages > 1 ? [html("div", { class: "pager" }, ...turner("detail", found, ["entry", "entries"], showDetail))] : [])];
const clientParts = ({ name, balance, keys, sealed, history: entries }) => {
  const facts = [`Delta ${shown(balance.delta)}.`];
  if (balance.withdrawn) facts.push("Withdrawn: it takes part in no further round.");
  if (sealed) facts.push("Its rows are sealed: a run on other rows is refused until fedspend ledger accept-rows.");
  if (keys.length) facts.push(`Key of its node: ${keys.at(-1)}${keys.length > 1 ? `, after ${words(keys.length - 1, "earlier one")}` : ""}.`);
  const runs = balance.runs.map((run) => [link("run", run.run, html("span", { class: "code" }, run.run)), run.status, run.begun, run.rate, run["noise multiplier"]]).reverse();
  return [
    html("h2", {}, `${state.unit} ${name}`),
    html("p", { class: "note" }, facts.join(" ")),
    html("dl", { class: "tiles" }, ...BALANCES.map((label, n) => tile(label[0].toUpperCase() + label.slice(1), numbers(balance)[n], n ? `${((100 * amounts(balance)[n]) / balance.budget).toFixed(1)}% of the budget` : "for its lifetime, as epsilon"))),
    html("h3", {}, "Runs"),
    runs.length ? table(["run", "status", "rounds begun", "sampling rate", "noise multiplier"], runs, 2) : none("It has taken part in no run."),
    html("h3", {}, "Entries about it, newest first"),
    ...paged(entries),
  ];
};
const runParts = ({ run, members, history: entries }) => {
  const facts = [`Opened ${when(run.opened)}`, run.closed === null ? "open" : `closed: ${run.closed}`, run.method && `method ${run.method}`, run.accountant && `accountant ${run.accountant}`, `plan ${run.plan}`, run.folder && `directory ${run.folder}`];
  const head = run.classes.length ? Object.keys(run.classes[0]) : [];
  const rows = run.classes.map((one) => head.map((key) => plain(one[key])));
  const more = run.members > members.length ? [`, and ${(run.members - members.length).toLocaleString("en")} more`] : [];
  const named = members.flatMap((name, n) => [n ? ", " : "", link("client", name)]);
  return [
    html("h2", {}, `run ${run.run}`),
    html("p", { class: "note" }, `${facts.filter(Boolean).join(" · ")}.`),
    html("dl", { class: "tiles" }, tile("Members", run.members.toLocaleString("en"), `${run.unit} accounts`), ...(run.tune ? [tile("Rounds", "none", "a private tune is spent whole")] : [tile("Rounds begun", `${run.begun} of ${run.rounds}`, "spent from the moment they begin"), tile("Releases stored", String(run.committed), run.lost ? `${run.lost} lost: spent, with nothing to show` : "none lost")])),
    html("h3", {}, "What it may spend"),
    rows.length ? table(head, rows, 1) : none("Nothing."),
    html("h3", {}, "Members"),
    html("p", { class: "note prose" }, ...named, ...more),
    html("h3", {}, "Its entries, newest first"),
    ...paged(entries),
  ];
};
let detail = 0;
const showDetail = async ({ arrive = false } = {}) => {
  const mine = ++detail, asked = chosen();
  at("detail").hidden = asked === null;
  if (asked === null) return at("detail").replaceChildren();
  const page = state.pages.detail;
  let parts;
  try {
    parts = asked.kind === "client" ? clientParts(await ask("account", { ...who(), name: asked.name, page })) : runParts(await ask("run", { ...who(), run: asked.name, page }));
  } catch (error) {
    if (error instanceof TypeError) return stopped(error);
    parts = [html("h2", {}, asked.name), none(error.message)];
  }
  if (mine !== detail) return;
  at("detail").dataset.of = `${asked.kind}=${asked.name}`;
  put("detail", html("p", {}, back()), ...parts);
  if (arrive) {
    at("detail").scrollIntoView();
    at("detail").focus({ preventScroll: true });
  }
};

// --- asking ---------------------------------------------------------------------------------------
const say = (text, bad = false) => {
  if (at("status").textContent !== text) at("status").textContent = text;
  at("status").className = bad ? "banner live bare" : "banner live";
};
const PARTS = ["tiles", "balances", "runs", "history", "detail"];
const stopped = (error) => {
  say(error instanceof TypeError ? "The server has stopped. This is what it showed last; start it again with fedspend ledger page." : `This is not what the ledger says now: ${error.message}`, true);
  for (const id of PARTS) at(id).classList.add("stale");
};
// The newest question of a kind counts; answers to older ones are dropped.
const latest = (show) => {
  let turn = 0;
  return async (what, body) => {
    const mine = ++turn;
    try {
      const found = await ask(what, body);
      if (mine === turn) show(found);
    } catch (error) {
      if (mine === turn) stopped(error);
    }
  };
};
const askBalances = latest((found) => {
  showBalances(found);
  sayStanding(found.lacking);
});
const askRuns = latest(showRuns), askHistory = latest(showHistory);
const refreshBalances = () => askBalances("accounts", { ...who(), search: at("balances-search").value, show: at("show").value, sort: at("sort").value, page: state.pages.balances });
const refreshRuns = () => askRuns("runs", { ...who(), search: at("runs-search").value, page: state.pages.runs });
const refreshHistory = () => askHistory("history", { search: at("history-search").value, page: state.pages.history });
const refresh = () => Promise.all([refreshBalances(), refreshRuns(), refreshHistory(), showDetail()]);

let reading = false;
const sayStanding = (lacking) => {
  const good = `Up to date: ${words(state.entries, "entry", "entries")}, each linked to the one before.`;
  if (!lacking) return say(good);
  if (reading) return say(`${good} Spending is an upper bound by Rényi curves; exact numbers follow.`);
  if (lacking > MANY) {
    say(`${good} Spending is an upper bound by Rényi curves. `);
    const button = html("button", { type: "button" }, `Read ${words(lacking, "history", "histories")} exactly (up to a second each)`);
    button.addEventListener("click", readExactly);
    return at("status").append(button);
  }
  readExactly();
};
const readExactly = async () => {
  if (reading) return;
  reading = true;
  sayStanding(1);
  try {
    await ask("exact", who());
    await pause(200);
  } catch (error) {
    return stopped(error);
  } finally {
    reading = false;
  }
  refreshBalances();
  showDetail();
};
const HOLDER = ({ project, unit, accounts }) => `${project || "no project"}: ${words(accounts, unit)}`;
const showOverview = (found) => {
  state.head = found.head;
  state.entries = found.entries;
  const { holders } = found;
  if (holders.length && !holders.some((one) => one.project === state.project && one.unit === state.unit)) {
    const first = holders.find((one) => one.project === state.project) ?? holders[0];
    Object.assign(state, { project: first.project, unit: first.unit });
  }
  at("holders").hidden = holders.length < 2;
  const value = (one) => JSON.stringify([one.project, one.unit]);
  at("holder").replaceChildren(...holders.map((one) => html("option", { value: value(one) }, HOLDER(one))));
  at("holder").value = value(state);
  at("facts").textContent = `Ledger ${found.ledger.slice(0, 12)}, begun ${when(found.begun)} · last entry ${when(found.last)}`;
};
const look = async () => {
  try {
    const found = await ask("overview", {});
    const news = found.head !== state.head || at("status").classList.contains("bare");
    if (!news) return;
    showOverview(found);
    await refresh();
  } catch (error) {
    stopped(error);
  }
};

// --- verification ---------------------------------------------------------------------------------
const MARKS = new Map([[true, ["pass", "OK"]], [false, ["fail", "FAILED"]], [null, ["none", "not checked"]]]);
const showVerified = (found) => {
  const rows = found.checks.map((one) => {
    const [kind, mark] = MARKS.get(one.ok);
    return [one.check, [null, html("span", { class: `verdict ${kind}` }, mark)], ["about", one.detail]];
  });
  const verdict = html("p", { class: found.ok ? "banner real" : "banner bare", role: "status" }, html("strong", {}, found.ok ? "Intact" : "Not intact"), ` Checked ${found.time}.`);
  const head = found.head && html("p", { class: "note prose" }, "Write the head down: with it, anyone can tell later whether entries were cut off or replaced. ", html("span", { class: "code" }, found.head));
  put("verification", ...[verdict, table(["check", [null, ""], "what was found"], rows, 3, "full"), head].filter(Boolean));
};
at("verify").addEventListener("click", async () => {
  at("verify").disabled = true;
  put("verification", none("Checking everything; this can take a while …"));
  try {
    showVerified(await ask("verify", {}));
  } catch (error) {
    put("verification", html("p", { class: "banner bare", role: "status" }, error instanceof TypeError ? "The server has stopped." : error.message));
  } finally {
    at("verify").disabled = false;
    at("verify").focus({ preventScroll: true });
  }
});

// --- the controls ---------------------------------------------------------------------------------
const first = (name, again) => () => {
  state.pages[name] = 1;
  again();
};
at("balances-search").addEventListener("input", first("balances", refreshBalances));
at("show").addEventListener("change", first("balances", refreshBalances));
at("sort").addEventListener("change", first("balances", refreshBalances));
at("runs-search").addEventListener("input", first("runs", refreshRuns));
at("history-search").addEventListener("input", first("history", refreshHistory));
at("holder").addEventListener("change", () => {
  const [project, unit] = JSON.parse(at("holder").value);
  Object.assign(state, { project, unit });
  for (const name of Object.keys(state.pages)) state.pages[name] = 1;
  refresh();
});
for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", () => {
  state.pages.detail = 1;
  showDetail({ arrive: true });
});
addEventListener("popstate", () => showDetail());
look().then(() => setInterval(() => document.hidden || look(), EVERY));
