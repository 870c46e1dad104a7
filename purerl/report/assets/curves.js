// The section "Curves": main curves, all other curves by prefix, time by phase, and constant metrics.

const POLICY_METRICS = ["policy/margin", "policy/entropy", "policy/approx_kl", "rollout/length"];
const MAIN_CURVES = [...LEARNING_METRICS, "validation/margin", ...POLICY_METRICS];
const PREFIX_TITLES = {
  reward: "Reward",
  eval: "Evaluation",
  validation: "Validation",
  policy: "Policy",
  critic: "Critic",
  rollout: "Rollouts",
  environment: "Environment",
  mismatch: "Training-inference mismatch",
  time: "Time",
};

const charts = [];

const drawCurves = () => {
  charts.forEach((chart) => chart.draw());
  drawPhases();
};

/** Show the values at `x` in a tooltip, and a cursor in all charts. */
function showCursor(chart, x = null, event = null) {
  for (const other of charts) if (other !== chart) other.drawCursor(x);
  if (chart === null) return hideTooltip();
  const points = chart.drawCursor(x);
  const values = points.map(({ run, y, raw }) => [
    h("span", {}, swatch(run), " ", escapeInvisible(run.name)),
    view.smoothing ? `${formatNumber(y)} (${formatNumber(raw)})` : formatNumber(y),
  ]);
  const xs = [...new Set(points.map((point) => FORMAT_X[view.xAxis](point.x)))];
  const title = [h("b", {}, chart.metric), h("i", {}, ` ${view.xAxis} ${xs.join(", ")}`)];
  showTooltip([...title, definitionList(values)], event.clientX, event.clientY);
}

/** Whether a metric has the same value at every step of every run. */
function isConstant(name) {
  const values = new Set(runs.flatMap((run) => (run.metrics[name] ?? []).filter((value) => value !== null)));
  return values.size === 1;
}

function chartGrid(names) {
  const added = names.map((name) => makeChart(name, showCursor));
  charts.push(...added);
  return h(
    "div",
    { class: "charts" },
    added.map(({ card }) => card),
  );
}

/** Whether a horizontal axis has more than one value. */
const hasAxis = (axis) => runs.some(({ axes }) => axes[axis].at(-1) > 0);

function curveToolbar() {
  const change = (changes) => {
    Object.assign(view, changes);
    drawCurves();
  };
  const axisOption = (name, label) => {
    const input = h("input", { type: "radio", name: "x", value: name, checked: view.xAxis === name });
    input.addEventListener("change", () => change({ xAxis: name }));
    return h("label", {}, input, h("span", {}, label));
  };
  const smoothing = h("input", { type: "range", id: "smoothing", min: 0, max: 0.98, step: 0.02, value: 0 });
  const smoothingValue = h("output", { for: "smoothing" }, "0");
  smoothing.addEventListener("input", () => {
    smoothingValue.textContent = smoothing.value;
    change({ smoothing: Number(smoothing.value) });
  });
  const logScale = h("input", { type: "checkbox", id: "log" });
  logScale.addEventListener("change", () => change({ logScale: logScale.checked }));
  return h(
    "div",
    { class: "toolbar" },
    h(
      "fieldset",
      { class: "segments" },
      h("legend", {}, "Horizontal axis"),
      axisOption("step", "steps"),
      hasAxis("seconds") ? axisOption("seconds", "seconds") : null,
      hasAxis("tokens") ? axisOption("tokens", "tokens") : null,
    ),
    h("label", {}, "Smoothing ", smoothing, smoothingValue),
    h("label", {}, logScale, " Log scale"),
  );
}

function phaseCard() {
  return h(
    "figure",
    { class: "card chart", id: "phases" },
    h("figcaption", {}, "time by phase"),
    h("div", { class: "plot" }),
  );
}

/** Seconds per step by phase: one stacked bar per run, all with the same scale. */
function drawPhases() {
  const phases = [...new Set(runs.flatMap((run) => Object.keys(run.phase_seconds)))];
  const visible = runs.filter(isVisible);
  const total = (run) => Object.values(run.phase_seconds).reduce((sum, value) => sum + value, 0);
  const perStep = (run, seconds) => seconds / Math.max(run.last_step, 1);
  const maxSeconds = Math.max(...visible.map((run) => perStep(run, total(run))), 1e-9);
  const makeSegment = (run, phase) => {
    const seconds = run.phase_seconds[phase];
    const width = `${(100 * perStep(run, seconds)) / maxSeconds}%`;
    const fill = `var(--phase-${phases.indexOf(phase) % 9})`;
    const values = [
      ["per step", formatDuration(perStep(run, seconds))],
      ["total", formatDuration(seconds)],
      ["fraction", `${formatNumber((100 * seconds) / total(run))}%`],
    ];
    const segment = h("span", { class: "phase", "--width": width, "--fill": fill });
    return withTooltip(segment, () => [h("b", {}, phase), definitionList(values)]);
  };
  const bars = visible.map((run) => {
    const label = h(
      "div",
      { class: "split" },
      h("span", {}, swatch(run), " ", h("bdi", {}, escapeInvisible(run.name))),
      h("span", { class: "muted" }, `${formatDuration(perStep(run, total(run)))} per step`),
    );
    const segments = phases.filter((phase) => run.phase_seconds[phase]).map((phase) => makeSegment(run, phase));
    return h("div", {}, label, h("div", { class: "phases" }, segments));
  });
  const key = phases.map((phase, k) => h("span", {}, h("i", { "--fill": `var(--phase-${k % 9})` }), phase));
  byId("phases")
    .querySelector(".plot")
    .replaceChildren(...bars, h("div", { class: "key" }, key));
}

function chartFold(prefix, names) {
  const title = h("summary", {}, PREFIX_TITLES[prefix] ?? prefix, " ", h("small", {}, names.length));
  const fold = h("details", { class: "fold group" }, title, chartGrid(names));
  fold.addEventListener("toggle", drawCurves);
  return fold;
}

function constantMetric(name) {
  const value = runs.map((run) => run.last_values[name]).find((last) => last !== undefined);
  const text = `${name} = ${formatNumber(value)}`;
  return withTooltip(h("span", { class: "constant", tabindex: 0 }, text), () => metricTooltip(name));
}

function drawCurveSection() {
  const changing = metricNames.filter((name) => !isConstant(name));
  const main = MAIN_CURVES.filter((name) => changing.includes(name));
  const prefixOf = (name) => name.split("/")[0];
  const prefixes = [...new Set([...Object.keys(PREFIX_TITLES), ...changing.map(prefixOf)])];
  const mainGrid = chartGrid(main);
  mainGrid.append(phaseCard());
  const folds = prefixes
    .map((prefix) => [prefix, changing.filter((name) => prefixOf(name) === prefix && !main.includes(name))])
    .filter(([, names]) => names.length)
    .map(([prefix, names]) => chartFold(prefix, names));
  const constants = metricNames.filter(isConstant).map(constantMetric);
  const thinned = runs
    .filter((run) => run.records.shown < run.records.total)
    .map((run) => `${run.records.shown} of ${formatNumber(run.records.total)} of ${run.name}`);
  const title = runs.length === 1 ? escapeInvisible(runs[0].name) : `${runs.length} runs`;
  byId("curves").append(
    h("h1", {}, title),
    h("div", { class: "head" }, h("h2", {}, "Curves"), curveToolbar()),
    mainGrid,
    ...folds,
    constants.length ? h("p", { class: "facts" }, "Constant metrics: ", constants) : "",
    thinned.length
      ? h("p", { class: "muted" }, `Steps in the curves: ${thinned.join(", ")}. All steps are in metrics.jsonl.`)
      : "",
  );
  drawCurves();
}
