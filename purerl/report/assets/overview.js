// The runs beside each other: how far they are, where they ended, and what they were told differently.

/** The first and the last value of a metric. */
function journey(run, name) {
  if (!(name in run.last)) return h("td", { class: "soft" }, "–");
  const [first, last] = [run.first[name], run.last[name]];
  return h("td", { class: "journey" }, h("span", { class: "soft" }, `${told(first)} → `), h("b", {}, told(last)));
}

function state(run) {
  const done = run.finished ? 1 : run.done / run.steps;
  const bar = h("span", { class: "bar", "--done": `${Math.round(done * 100)}%` });
  const text = run.finished ? `finished, ${told(run.done)} steps` : `step ${told(run.done)} of ${told(run.steps)}`;
  return h("td", {}, h("span", { class: "state" }, bar, text));
}

function runsTable() {
  const metrics = LEARNING.filter((name) => metricNames.includes(name));
  const heads = ["Run", "Algorithm", "Progress", ...metrics, "Tokens", "Time", "Began"];
  const lines = runs.map((run) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, swatch(run), " ", h("bdi", {}, visible(run.name))),
      h("td", {}, run.config["algorithm.kind"] ?? "–"),
      state(run),
      metrics.map((name) => journey(run, name)),
      h("td", {}, counted(run.axes.tokens.at(-1))),
      h("td", {}, duration(run.axes.seconds.at(-1))),
      h(
        "td",
        { class: "soft" },
        h(
          "time",
          { datetime: run.began },
          new Date(run.began).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" }),
        ),
      ),
    ),
  );
  const head = heads.map((text) =>
    metrics.includes(text) ? withTip(h("th", { tabindex: 0 }, text), () => explained(text)) : h("th", {}, text),
  );
  return h(
    "div",
    { class: "wide card" },
    h("table", { class: "plain" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, lines)),
  );
}

/** A table with a column for each run: `lines` are pairs of a heading and one cell for each run. */
function comparison(lines) {
  const head = h(
    "tr",
    {},
    h("td"),
    runs.map((run) => h("th", {}, swatch(run), " ", h("bdi", {}, visible(run.name)))),
  );
  const body = lines.map(([name, cells]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      cells.map((cell) => h("td", {}, visible(cell ?? "–"))),
    ),
  );
  return h("div", { class: "wide" }, h("table", { class: "plain narrow" }, h("thead", {}, head), h("tbody", {}, body)));
}

function settings() {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))];
  const lines = keys.map((key) => [key, runs.map((run) => run.config[key])]);
  const different = lines.filter(([, values]) => new Set(values).size > 1);
  const all = h("details", { class: "card fold" }, h("summary", {}, "All settings"), comparison(lines));
  const numbers = metricNames.map((name) => [
    withTip(h("span", { tabindex: 0 }, name), () => explained(name)),
    runs.map((run) => told(run.last[name])),
  ]);
  const finals = h(
    "details",
    { class: "card fold" },
    h("summary", {}, "Last value of every metric"),
    comparison(numbers),
  );
  if (runs.length === 1) return [all, finals];
  const text = different.length ? "Settings that differ" : "All settings are the same";
  return [h("div", { class: "card" }, h("h3", {}, text), different.length ? comparison(different) : null), all, finals];
}

function drawOverview() {
  const title = runs.length === 1 ? visible(runs[0].name) : `${runs.length} runs`;
  byId("runs").append(h("h1", {}, title), runsTable(), h("div", { class: "folds" }, settings()));
}

/** Chips that show and hide runs. */
function drawLegend(changed) {
  const toggle = (run, button) => {
    if (!view.hidden.delete(run.index)) view.hidden.add(run.index);
    button.setAttribute("aria-pressed", shown(run));
    changed();
  };
  const chips = runs.map((run) => {
    const chip = h(
      "button",
      { class: "chip", type: "button", "aria-pressed": "true", title: `Show or hide ${run.path}` },
      swatch(run),
      h("bdi", {}, visible(run.name)),
    );
    chip.addEventListener("click", () => toggle(run, chip));
    return chip;
  });
  byId("legend").append(...chips);
}
