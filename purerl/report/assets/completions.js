// The section "Completions": filters, the list of rows, and the detail view of the selected row.

const ROWS_PER_PAGE = 60;
const MAX_LISTED_IMAGES = 3;

/** Compare the rewards of two rows, the smaller one first for `direction` 1. Rows without a number come last. */
const compareRewards = (a, b, direction) =>
  !isNumber(a.reward) - !isNumber(b.reward) || (isNumber(a.reward) ? direction * (a.reward - b.reward) : 0);

const SORT_ORDERS = {
  newest: ["newest first", (a, b) => b.step - a.step || b.maxAbsAdvantage - a.maxAbsAdvantage],
  oldest: ["oldest first", (a, b) => a.step - b.step || b.maxAbsAdvantage - a.maxAbsAdvantage],
  best: ["highest reward", (a, b) => compareRewards(a, b, -1)],
  worst: ["lowest reward", (a, b) => compareRewards(a, b, 1)],
  advantage: ["largest advantage", (a, b) => b.maxAbsAdvantage - a.maxAbsAdvantage],
  unlikely: ["lowest log-prob.", (a, b) => (a.logp ?? 0) - (b.logp ?? 0)],
  longest: ["longest", (a, b) => b.length - a.length],
};

const steps = [...new Set(rows.map((row) => row.step))].sort((a, b) => a - b);
const sources = [...new Set(rows.map((row) => row.source))];
const filter = {
  text: "",
  source: "",
  step: null,
  minReward: -Infinity,
  maxReward: Infinity,
  finish: "",
  run: "",
  sort: "newest",
  limit: ROWS_PER_PAGE,
};
let matches = []; // rows that match the filter, in the order of the list

/** A row whose reward is not a number matches only if there are no limits. */
const matchesReward = ({ reward }) =>
  !isNumber(reward)
    ? filter.minReward === -Infinity && filter.maxReward === Infinity
    : reward >= filter.minReward && reward <= filter.maxReward;

const matchesFilter = (row) =>
  isVisible(row.run) &&
  (filter.run === "" || row.run.index === Number(filter.run)) &&
  (filter.source === "" || row.source === filter.source) &&
  (filter.step === null || row.step === filter.step) &&
  (filter.finish === "" || row.finish === filter.finish) &&
  matchesReward(row) &&
  row.searchText.includes(filter.text);

/** Remove the prefix and suffix that all prompts share, such as the chat template. */
const withoutTemplate = (() => {
  const prompts = [...new Set(rows.map((row) => row.group.prompt ?? ""))];
  const sharedPrefix = ([first, ...others]) => {
    let length = 0;
    while (others.length && length < first.length && others.every((text) => text[length] === first[length])) length++;
    return length < 12 ? 0 : length;
  };
  const start = sharedPrefix(prompts);
  const end = sharedPrefix(prompts.map((prompt) => [...prompt.slice(start)].reverse().join("")));
  return (prompt) => prompt.slice(start, prompt.length - end);
})();

function listItem(row) {
  const prompt = toSingleLine(withoutTemplate(row.group.prompt ?? "").slice(0, 120));
  const images = imageStrip(row.run, (row.group.images ?? []).slice(0, MAX_LISTED_IMAGES), "icon");
  const cells = [
    h("td", {}, swatch(row.run)),
    h("td", { class: "number" }, row.step),
    h("td", { class: "prompt" }, images, h("bdi", {}, prompt)),
    h("td", { class: "completion" }, tokenPreview(row, 48)),
    h("td", { class: "number" }, formatNumber(row.reward)),
    h("td", { class: "number" }, formatNumber(row.advantage)),
    h("td", { class: "number" }, formatNumber(row.logp)),
    h("td", { class: "number" }, formatNumber(row.length)),
    h("td", { class: "muted" }, row.finish ?? ""),
    sources.length > 1 ? h("td", { class: "muted" }, escapeInvisible(row.source)) : null,
  ];
  return h("tr", { onclick: () => openRow(row), "aria-selected": row === view.selectedRow }, cells);
}

/** Redraw the list; with `resetLimit`, only its first page. */
function drawRows(resetLimit = true) {
  if (!rows.length) return;
  if (resetLimit) filter.limit = ROWS_PER_PAGE;
  matches = rows.filter(matchesFilter).sort(SORT_ORDERS[filter.sort][1]);
  const selectionChanges = view.selectedRow !== null && !matches.includes(view.selectedRow);
  if (selectionChanges) view.selectedRow = matches[0] ?? null;
  byId("rows").replaceChildren(...matches.slice(0, filter.limit).map(listItem));
  const count = `${matches.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} completions`;
  byId("count").textContent = matches.length ? count : `${count} match the filters`;
  byId("more").hidden = matches.length <= filter.limit;
  if (selectionChanges) drawDetail();
}

function drawDetail() {
  const detail = byId("detail");
  detail.classList.toggle("open", view.selectedRow !== null);
  const close = () => openRow(null);
  const recolor = () => (drawRows(false), drawDetail());
  const hint = h("p", { class: "muted empty" }, "Select a completion: click on it, or press j or k.");
  detail.replaceChildren(
    ...(view.selectedRow ? rowDetail(view.selectedRow, { open: (row) => openRow(row), close, recolor }) : [hint]),
  );
}

/**
 * Select `row` and show its detail view; null closes the view. On a small screen, where the view covers the list, it is
 * shown only if the user requested it.
 */
function openRow(row, byUser = true) {
  view.selectedRow = row;
  document.body.classList.toggle("detail-requested", byUser && row !== null);
  hideTooltip();
  const items = [...byId("rows").children];
  items.forEach((item, k) => item.setAttribute("aria-selected", matches[k] === row));
  drawDetail();
}

/** Select the row `offset` positions after the selected one. */
function moveSelection(offset) {
  const k = Math.min(Math.max(matches.indexOf(view.selectedRow) + offset, 0), matches.length - 1);
  if (!matches.length) return;
  if (k >= filter.limit) {
    filter.limit += ROWS_PER_PAGE;
    drawRows(false);
  }
  openRow(matches[k]);
  byId("rows").children[k].scrollIntoView({ block: "nearest" });
}

function onKeyDown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") return (event.target.blur(), openRow(null));
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "radio") return;
  const actions = {
    j: () => moveSelection(1),
    k: () => moveSelection(-1),
    "/": () => (event.preventDefault(), byId("search").focus()),
    "[": () => moveStep(-1),
    "]": () => moveStep(1),
  };
  actions[event.key]?.();
}

function moveStep(offset) {
  const slider = byId("step");
  slider.value = Number(slider.value) + offset;
  slider.dispatchEvent(new Event("input"));
}

function changeFilter(changes) {
  Object.assign(filter, changes);
  drawRows();
}

function selectControl(label, name, options) {
  const select = h(
    "select",
    { "data-filter": name },
    options.map(([value, text]) => h("option", { value }, text)),
  );
  select.addEventListener("change", () => changeFilter({ [name]: select.value }));
  return h("label", {}, h("span", {}, label), select);
}

/** An input for a limit of the reward; an empty input means `noLimit`. */
function rewardInput(name, placeholder, noLimit) {
  const input = h("input", {
    type: "number",
    step: "any",
    placeholder,
    "data-filter": name,
    "aria-label": `Reward, ${placeholder}`,
  });
  input.addEventListener("input", () => changeFilter({ [name]: input.value === "" ? noLimit : Number(input.value) }));
  return input;
}

function filterToolbar() {
  const search = h("input", { type: "search", id: "search", placeholder: "prompt or completion  ( / )" });
  search.addEventListener("input", () => changeFilter({ text: search.value.toLowerCase() }));
  const slider = h("input", { type: "range", id: "step", min: 0, max: steps.length, value: 0 });
  const stepValue = h("output", { for: "step" }, "all");
  slider.addEventListener("input", () => {
    const step = Number(slider.value) ? steps[slider.value - 1] : null;
    stepValue.textContent = step === null ? "all" : step;
    changeFilter({ step });
  });
  const rewardInputs = [rewardInput("minReward", "min", -Infinity), rewardInput("maxReward", "max", Infinity)];
  const reasons = [...new Set(rows.map((row) => row.finish).filter(Boolean))].map((name) => [name, name]);
  const sourceOptions = sources.map((name) => [name, escapeInvisible(name)]);
  const runOptions = runs.map((run) => [run.index, escapeInvisible(run.name)]);
  const sortOptions = Object.entries(SORT_ORDERS).map(([name, [label]]) => [name, label]);
  return h(
    "div",
    { class: "toolbar filters" },
    h("label", { class: "grow" }, h("span", {}, "Text"), search),
    h("label", { class: "grow" }, h("span", {}, "Step ", stepValue), slider),
    h("div", { class: "field" }, h("span", {}, "Reward"), h("span", {}, rewardInputs)),
    reasons.length > 1 ? selectControl("Finish reason", "finish", [["", "any"], ...reasons]) : null,
    sources.length > 1 ? selectControl("Source", "source", [["", "all"], ...sourceOptions]) : null,
    runs.length > 1 ? selectControl("Run", "run", [["", "all"], ...runOptions]) : null,
    selectControl("Sort", "sort", sortOptions),
  );
}

/** How many of the stored steps and evaluations of a run the page contains. */
function coverageOf({ completions, name }) {
  const count = (shown, stored, unit) => (stored ? `${formatNumber(shown)} of ${formatNumber(stored)} ${unit}` : null);
  const parts = [
    count(completions.num_steps, completions.num_stored_steps, "steps"),
    count(completions.num_evaluations, completions.num_stored_evaluations, "evaluations"),
  ].filter(Boolean);
  return parts.length ? `${parts.join(" and ")} of ${escapeInvisible(name)}` : null;
}

/** Which part of the stored completions the page contains. */
function coverageText() {
  const parts = runs.map(coverageOf).filter(Boolean);
  return (
    `This page contains groups from ${parts.join(", ")}. The directories rollouts and evaluations of a run contain ` +
    "all rows. Groups that the algorithm discarded are not stored."
  );
}

/** A message for each file that could not be read. */
function skippedFiles() {
  return runs
    .flatMap(({ completions }) => completions.skipped)
    .map((message) => h("p", { class: "skipped" }, `Left out: ${escapeInvisible(message)}`));
}

function emptySectionText() {
  return runs.some((run) => coverageOf(run))
    ? "No completion fits into the size limit of this page."
    : "There are no rollouts yet, or the algorithm does not sample completions.";
}

function rowTable() {
  const labels = ["", "step", "prompt", "completion", "reward", "advantage", "log-prob.", "tokens", "finish reason"];
  const head = [...labels, ...(sources.length > 1 ? ["source"] : [])].map((label) => h("th", {}, label));
  return h("table", { class: "list" }, h("thead", {}, h("tr", {}, head)), h("tbody", { id: "rows" }));
}

function drawCompletionSection() {
  const section = byId("completions");
  if (!rows.length) {
    section.append(h("h2", {}, "Completions"), h("p", { class: "muted" }, emptySectionText()), ...skippedFiles());
    return;
  }
  const more = h("button", { id: "more", type: "button" }, "Show more");
  more.addEventListener("click", () => {
    filter.limit += ROWS_PER_PAGE;
    drawRows(false);
  });
  const count = h("span", { class: "muted", id: "count", role: "status" });
  section.append(
    h("div", { class: "head" }, h("h2", {}, "Completions"), count),
    filterToolbar(),
    h(
      "div",
      { class: "browser" },
      h("div", { class: "card scroll" }, rowTable(), more),
      h("aside", { class: "card", id: "detail", "aria-label": "Completion" }),
    ),
    h("p", { class: "muted" }, coverageText()),
    ...skippedFiles(),
  );
  drawRows();
  openRow(matches[0], false);
  document.addEventListener("keydown", onKeyDown);
}
