// Completions: filters, a list, and the one that is open.

const PAGE = 60;
const SORTS = {
  newest: ["newest first", (a, b) => b.step - a.step || b.advantageSize - a.advantageSize],
  oldest: ["oldest first", (a, b) => a.step - b.step || b.advantageSize - a.advantageSize],
  best: ["highest reward", (a, b) => b.score - a.score],
  worst: ["lowest reward", (a, b) => a.score - b.score],
  advantage: ["largest advantage", (a, b) => b.advantageSize - a.advantageSize],
  unlikely: ["least likely", (a, b) => (a.logp ?? 0) - (b.logp ?? 0)],
  longest: ["longest", (a, b) => b.length - a.length],
};

const steps = [...new Set(rows.map((row) => row.step))].sort((a, b) => a - b);
const filter = {
  text: "",
  step: null,
  low: -Infinity,
  high: Infinity,
  finish: "",
  run: "",
  sort: "newest",
  count: PAGE,
};
let listed = [];

const isWanted = (row) =>
  shown(row.run) &&
  (filter.run === "" || row.run.index === Number(filter.run)) &&
  (filter.step === null || row.step === filter.step) &&
  (filter.finish === "" || row.finish === filter.finish) &&
  row.score >= filter.low &&
  row.score <= filter.high &&
  row.words.includes(filter.text);

/** What a prompt does not share with all others: without the template around it. */
const ownPart = (() => {
  const prompts = [...new Set(rows.map((row) => row.group.prompt ?? ""))];
  const shared = (texts) => {
    const [one, ...others] = texts;
    let count = 0;
    while (others.length && count < one.length && others.every((other) => other[count] === one[count])) count++;
    return count < 12 ? 0 : count;
  };
  const before = shared(prompts);
  const after = shared(prompts.map((prompt) => [...prompt.slice(before)].reverse().join("")));
  return (prompt) => prompt.slice(before, prompt.length - after);
})();

function listRow(row) {
  const cells = [
    h("td", {}, swatch(row.run)),
    h("td", { class: "number" }, row.step),
    h("td", { class: "prompt" }, h("bdi", {}, inOneLine(ownPart(row.group.prompt ?? "").slice(0, 120)))),
    h("td", { class: "said" }, tokenLine(row, 48)),
    h("td", { class: "number" }, told(row.score)),
    h("td", { class: "number" }, told(row.advantage)),
    h("td", { class: "number" }, told(row.logp)),
    h("td", { class: "number" }, told(row.length)),
    h("td", { class: "soft" }, row.finish ?? ""),
  ];
  return h("tr", { onclick: () => openRow(row, true), "aria-selected": row === view.selected }, cells);
}

/** Draw the list anew; with `again`, from its beginning. */
function drawRows(again = true) {
  if (!rows.length) return;
  if (again) filter.count = PAGE;
  listed = rows.filter(isWanted).sort(SORTS[filter.sort][1]);
  const gone = view.selected !== null && !listed.includes(view.selected);
  if (gone) view.selected = listed[0] ?? null;
  byId("rows").replaceChildren(...listed.slice(0, filter.count).map(listRow));
  const of = `${listed.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} completions`;
  byId("count").textContent = listed.length ? of : `${of}: nothing fits these filters`;
  byId("more").hidden = listed.length <= filter.count;
  if (gone) drawDetail();
}

function drawDetail() {
  const place = byId("detail");
  place.classList.toggle("open", view.selected !== null);
  const close = () => openRow(null);
  const recolor = () => (drawRows(false), drawDetail());
  const hint = h("p", { class: "soft empty" }, "Choose a completion: click it, or press j and k.");
  place.replaceChildren(
    ...(view.selected ? detail(view.selected, { open: (row) => openRow(row), close, recolor }) : [hint]),
  );
}

/** Open `row`; null closes. With `asked`, on a small screen too, where it covers the list. */
function openRow(row, asked = true) {
  view.selected = row;
  document.body.classList.toggle("asked", asked && row !== null);
  hideTip();
  const lines = [...byId("rows").children];
  lines.forEach((line, k) => line.setAttribute("aria-selected", listed[k] === row));
  drawDetail();
}

/** The row `by` places further down the list. */
function move(by) {
  const k = Math.min(Math.max(listed.indexOf(view.selected) + by, 0), listed.length - 1);
  if (!listed.length) return;
  if (k >= filter.count) {
    filter.count += PAGE;
    drawRows(false);
  }
  openRow(listed[k]);
  byId("rows").children[k].scrollIntoView({ block: "nearest" });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") return (event.target.blur(), openRow(null));
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "radio") return;
  const keys = {
    j: () => move(1),
    k: () => move(-1),
    "/": () => (event.preventDefault(), byId("search").focus()),
    "[": () => stepBy(-1),
    "]": () => stepBy(1),
  };
  keys[event.key]?.();
}

function stepBy(by) {
  const slider = byId("step");
  slider.value = Number(slider.value) + by;
  slider.dispatchEvent(new Event("input"));
}

function filters() {
  const changed = (change) => {
    Object.assign(filter, change);
    drawRows();
  };
  const select = (label, name, options) => {
    const chosen = h(
      "select",
      { "data-filter": name },
      options.map(([value, text]) => h("option", { value }, text)),
    );
    chosen.addEventListener("change", () => changed({ [name]: chosen.value }));
    return h("label", {}, h("span", {}, label), chosen);
  };
  const number = (name, nothing) => {
    const input = h("input", {
      type: "number",
      step: "any",
      placeholder: nothing < 0 ? "from" : "to",
      "data-filter": name,
      "aria-label": `Reward ${nothing < 0 ? "from" : "to"}`,
    });
    input.addEventListener("input", () => changed({ [name]: input.value === "" ? nothing : Number(input.value) }));
    return input;
  };
  const search = h("input", { type: "search", id: "search", placeholder: "prompt or completion  ( / )" });
  search.addEventListener("input", () => changed({ text: search.value.toLowerCase() }));
  const slider = h("input", { type: "range", id: "step", min: 0, max: steps.length, value: 0 });
  const label = h("output", { for: "step" }, "all");
  slider.addEventListener("input", () => {
    const step = Number(slider.value) ? steps[slider.value - 1] : null;
    label.textContent = step === null ? "all" : step;
    changed({ step });
  });
  const finishes = [...new Set(rows.map((row) => row.finish).filter(Boolean))];
  return h(
    "div",
    { class: "toolbar filters" },
    h("label", { class: "grow" }, h("span", {}, "Text"), search),
    h("label", { class: "grow" }, h("span", {}, "Step ", label), slider),
    h(
      "div",
      { class: "field" },
      h("span", {}, "Reward"),
      h("span", {}, number("low", -Infinity), number("high", Infinity)),
    ),
    finishes.length > 1
      ? select("Ended by", "finish", [["", "anything"], ...finishes.map((name) => [name, name])])
      : null,
    runs.length > 1 ? select("Run", "run", [["", "all"], ...runs.map((run) => [run.index, visible(run.name)])]) : null,
    select(
      "Sort",
      "sort",
      Object.entries(SORTS).map(([name, [text]]) => [name, text]),
    ),
  );
}

/** What of the stored rollouts is in the page. */
function extent() {
  const stored = runs.filter((run) => run.completions.stored);
  const parts = stored.map(
    (run) => `${run.completions.steps} of ${told(run.completions.stored)} steps of ${visible(run.name)}`,
  );
  const rest = "All that was trained on is in each run's rollouts folder; groups that were not kept are not stored.";
  return `In this page: groups from ${parts.join(", ")}. ${rest}`;
}

function drawCompletionSection() {
  const section = byId("completions");
  if (!rows.length) {
    const stored = runs.some((run) => run.completions.stored);
    const why = stored
      ? "No completion fits into a page of this size."
      : "There are no rollouts yet, or the algorithm trains on given texts.";
    section.append(h("h2", {}, "Completions"), h("p", { class: "soft" }, why));
    return;
  }
  const heads = ["", "step", "prompt", "completion", "reward", "advantage", "log-prob.", "tokens", "ended by"];
  const more = h("button", { id: "more", type: "button" }, "Show more");
  more.addEventListener("click", () => {
    filter.count += PAGE;
    drawRows(false);
  });
  const table = h(
    "table",
    { class: "list" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        heads.map((text) => h("th", {}, text)),
      ),
    ),
    h("tbody", { id: "rows" }),
  );
  section.append(
    h("div", { class: "head" }, h("h2", {}, "Completions"), h("span", { class: "soft", id: "count", role: "status" })),
    filters(),
    h(
      "div",
      { class: "browser" },
      h("div", { class: "card scroll" }, table, more),
      h("aside", { class: "card", id: "detail", "aria-label": "Completion" }),
    ),
    h("p", { class: "soft" }, extent()),
  );
  drawRows();
  openRow(listed[0], false);
  document.addEventListener("keydown", onKey);
}
