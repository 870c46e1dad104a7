// The section "Runs": progress and results of each run, and the settings that differ.

/** A cell with the first and the last value of a metric. */
function firstToLastCell(run, name) {
  if (!(name in run.last_values)) return h("td", { class: "muted" }, "–");
  const first = h("span", { class: "muted" }, `${formatNumber(run.first_values[name])} → `);
  return h("td", { class: "first-to-last" }, first, h("b", {}, formatNumber(run.last_values[name])));
}

function progressCell(run) {
  const fraction = run.finished ? 1 : run.last_step / run.max_steps;
  const bar = h("span", { class: "bar", "--progress": `${Math.round(fraction * 100)}%` });
  const text = run.finished
    ? `finished, ${formatNumber(run.last_step)} steps`
    : `step ${formatNumber(run.last_step)} of ${formatNumber(run.max_steps)}`;
  return h("td", {}, h("span", { class: "progress" }, bar, text));
}

function startCell(run) {
  const text = new Date(run.started).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
  return h("td", { class: "muted" }, h("time", { datetime: run.started }, text));
}

function runTable() {
  const metrics = LEARNING_METRICS.filter((name) => metricNames.includes(name));
  const labels = ["Run", "Algorithm", "Progress", ...metrics, "Tokens", "Time", "Started"];
  const head = labels.map((label) =>
    metrics.includes(label)
      ? withTooltip(h("th", { tabindex: 0 }, label), () => metricTooltip(label))
      : h("th", {}, label),
  );
  const body = runs.map((run) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, swatch(run), " ", h("bdi", {}, escapeInvisible(run.name))),
      h("td", {}, run.preset ?? run.config["algorithm.kind"] ?? "–"),
      progressCell(run),
      metrics.map((name) => firstToLastCell(run, name)),
      h("td", {}, formatCount(run.axes.tokens.at(-1))),
      h("td", {}, formatDuration(run.axes.seconds.at(-1))),
      startCell(run),
    ),
  );
  return h(
    "div",
    { class: "scroll-x card" },
    h("table", { class: "plain" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)),
  );
}

/** When a completion is correct, in each run with an accuracy; one paragraph if it is the same in all. */
function accuracyNote() {
  const sentences = [...new Set(runs.map((run) => run.accuracy).filter(Boolean))];
  const names = (sentence) => runs.filter((run) => run.accuracy === sentence).map((run) => escapeInvisible(run.name));
  const prefix = (sentence) => (sentences.length > 1 ? `${names(sentence).join(", ")}: ` : "Accuracy: ");
  return sentences.map((sentence) =>
    h("p", { class: "muted" }, `${prefix(sentence)}${escapeInvisible(sentence)}.`),
  );
}

/** A table with one column per run. `entries` are pairs of a row label and an array with one cell per run. */
function comparisonTable(entries) {
  const head = h(
    "tr",
    {},
    h("td"),
    runs.map((run) => h("th", {}, swatch(run), " ", h("bdi", {}, escapeInvisible(run.name)))),
  );
  const body = entries.map(([label, cells]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, label),
      cells.map((cell) => h("td", {}, escapeInvisible(cell ?? "–"))),
    ),
  );
  return h(
    "div",
    { class: "scroll-x" },
    h("table", { class: "plain narrow" }, h("thead", {}, head), h("tbody", {}, body)),
  );
}

function comparisonFold(title, entries) {
  return h("details", { class: "card fold" }, h("summary", {}, title), comparisonTable(entries));
}

const INITIAL_RUN = "initial_run.";

/** The section of a setting: what is before the last dot, within the initial run or the run itself. */
const sectionOf = (key) => key.slice(0, Math.max(key.lastIndexOf("."), 0));

/** Folds of the `settings` that differ, without those of sections that a run does not have, which are named. */
function differenceFolds(title, settings) {
  const hasSection = (run, section) => !section || Object.keys(run.config).some((key) => key.startsWith(`${section}.`));
  const isCommon = (key) => runs.every((run) => hasSection(run, sectionOf(key)));
  const different = settings.filter(([, cells]) => new Set(cells).size > 1);
  const common = different.filter(([key]) => isCommon(key));
  const sections = [...new Set(different.filter(([key]) => !isCommon(key)).map(([key]) => sectionOf(key)))];
  const names = `Only in some of the runs: ${sections.join(", ")}`;
  const rest = sections.length ? h("p", { class: "muted note" }, names) : null;
  if (!different.length) return [];
  const empty = h("details", { class: "card fold" }, h("summary", {}, title));
  const fold = common.length ? comparisonFold(title, common) : empty;
  fold.append(rest ?? "");
  return [fold];
}

function settingsAndValues() {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))];
  const all = keys.map((key) => [key, runs.map((run) => run.config[key])]);
  const initial = all.filter(([key]) => key.startsWith(INITIAL_RUN));
  const settings = all.filter(([key]) => !key.startsWith(INITIAL_RUN));
  const values = metricNames.map((name) => [
    withTooltip(h("span", { tabindex: 0 }, name), () => metricTooltip(name)),
    runs.map((run) => formatNumber(run.last_values[name])),
  ]);
  const folds = [
    comparisonFold("All settings", settings),
    initial.length ? comparisonFold("All settings of initial_run", initial) : null,
    comparisonFold("Last value of every metric", values),
  ];
  if (runs.length === 1) return folds;
  const different = [
    ...differenceFolds("Settings that differ", settings),
    ...differenceFolds("Settings of initial_run that differ", initial),
  ];
  if (!different.length) different.push(h("div", { class: "card" }, h("h3", {}, "All settings are equal")));
  return [...different, ...folds];
}

/** A box with the warnings of all runs: what the metrics show, the likely cause, and what to try. */
function warningBox() {
  const items = runs.flatMap((run) =>
    run.warnings.map((warning) =>
      h(
        "li",
        { class: warning.end === null ? "present" : "ended" },
        swatch(run),
        h("b", {}, ` ${warning.name} `),
        h("span", { class: "muted" }, warningSteps(warning)),
        h("p", {}, `${escapeInvisible(warning.text)}.`),
        h("p", {}, h("span", { class: "muted" }, "Likely cause: "), ...withCode(`${warning.cause}.`)),
        h("p", {}, h("span", { class: "muted" }, "Try: "), ...withCode(`${warning.do}.`)),
      ),
    ),
  );
  if (!items.length) return null;
  const box = { class: "card warnings", role: "note", "aria-label": "Warnings" };
  return h("div", box, h("h3", {}, "Warnings"), h("ul", {}, items));
}

/** A box with the steps after which code of the user was edited, and the files. */
function codeBox() {
  const items = runs.flatMap((run) =>
    run.code_changes.map(({ step, text }) =>
      h("li", {}, swatch(run), h("b", {}, ` after step ${formatNumber(step)} `), escapeInvisible(text)),
    ),
  );
  if (!items.length) return null;
  const box = { class: "card warnings", role: "note", "aria-label": "Changed code" };
  return h("div", box, h("h3", {}, "Code that was changed during a run"), h("ul", {}, items));
}

const warningSteps = ({ step, end }) =>
  end === null ? `since step ${formatNumber(step)}` : `steps ${formatNumber(step)} to ${formatNumber(end)}`;

function drawOverview() {
  const folds = h("div", { class: "folds" }, settingsAndValues());
  const boxes = [warningBox() ?? "", codeBox() ?? ""];
  byId("runs").append(h("div", { class: "head" }, h("h2", {}, "Runs")), ...accuracyNote(), runTable(), ...boxes, folds);
}

/** Buttons that show and hide runs. */
function drawLegend(onChange) {
  const toggle = (run, button) => {
    if (!view.hiddenRuns.delete(run.index)) view.hiddenRuns.add(run.index);
    button.setAttribute("aria-pressed", isVisible(run));
    onChange();
  };
  const buttons = runs.map((run) => {
    const button = h(
      "button",
      { class: "chip", type: "button", "aria-pressed": "true", title: `Show or hide ${run.path}` },
      swatch(run),
      h("bdi", {}, escapeInvisible(run.name)),
    );
    button.addEventListener("click", () => toggle(run, button));
    return button;
  });
  byId("legend").append(...buttons);
}
