// All curves: the ones to look at first, then every group, then what never changed.

const FIRST = [...LEARNING, "policy/margin", "policy/entropy", "policy/approx_kl", "rollout/length"];
const GROUPS = ["reward", "eval", "policy", "critic", "rollout", "time"];
const GROUP_NAMES = {
  reward: "Reward",
  eval: "Evaluation",
  policy: "Policy",
  critic: "Critic",
  rollout: "Rollouts",
  time: "Time",
};

const charts = [];

const drawCurves = () => {
  charts.forEach((one) => one.draw());
  drawPhases();
};

function hover(chart, place = null, event = null) {
  for (const one of charts) if (one !== chart) one.cross(place);
  if (chart === null) return hideTip();
  const found = chart.cross(place);
  const lines = found.map(({ run, y, raw }) => [
    h("span", {}, swatch(run), " ", visible(run.name)),
    view.smoothing ? `${told(y)} (${told(raw)})` : told(y),
  ]);
  const places = [...new Set(found.map(({ x }) => X_TOLD[view.x](x)))];
  showTip(
    [h("b", {}, chart.metric), h("i", {}, ` ${view.x} ${places.join(", ")}`), pairs(lines)],
    event.clientX,
    event.clientY,
  );
}

/** Whether a metric has one and the same value at every step of every run. */
function isConstant(name) {
  const values = new Set(runs.flatMap((run) => (run.metrics[name] ?? []).filter((value) => value !== null)));
  return values.size === 1;
}

function grid(names) {
  const found = names.map((name) => chart(name, hover));
  charts.push(...found);
  return h(
    "div",
    { class: "charts" },
    found.map(({ card }) => card),
  );
}

/** Whether there is anything to tell the steps apart by, along an axis. */
const hasPlaces = (axis) => runs.some(({ axes }) => axes[axis].at(-1) > 0);

function toolbar() {
  const axis = (name, label) => {
    const input = h("input", { type: "radio", name: "x", value: name, checked: view.x === name });
    input.addEventListener("change", () => choose({ x: name }));
    return h("label", {}, input, h("span", {}, label));
  };
  const choose = (change) => {
    Object.assign(view, change);
    drawCurves();
  };
  const smoothing = h("input", { type: "range", id: "smoothing", min: 0, max: 0.98, step: 0.02, value: 0 });
  const amount = h("output", { for: "smoothing" }, "0");
  smoothing.addEventListener("input", () => {
    amount.textContent = smoothing.value;
    choose({ smoothing: Number(smoothing.value) });
  });
  const log = h("input", { type: "checkbox", id: "log" });
  log.addEventListener("change", () => choose({ log: log.checked }));
  return h(
    "div",
    { class: "toolbar" },
    h(
      "fieldset",
      { class: "segments" },
      h("legend", {}, "Over"),
      axis("step", "steps"),
      hasPlaces("seconds") ? axis("seconds", "seconds") : null,
      hasPlaces("tokens") ? axis("tokens", "tokens") : null,
    ),
    h("label", {}, "Smoothing ", smoothing, amount),
    h("label", {}, log, " Logarithmic"),
  );
}

/** Seconds by phase: a bar for each run, one beside the other to the same scale. */
function phasesCard() {
  return h(
    "figure",
    { class: "card chart", id: "phases" },
    h("figcaption", {}, "time by phase"),
    h("div", { class: "plot" }),
  );
}

function drawPhases() {
  const phases = [...new Set(runs.flatMap((run) => Object.keys(run.seconds)))];
  const total = (run) => Object.values(run.seconds).reduce((sum, value) => sum + value, 0);
  const perStep = (run, seconds) => seconds / Math.max(run.done, 1);
  const most = Math.max(...runs.filter(shown).map((run) => perStep(run, total(run))), 1e-9);
  const bars = runs.filter(shown).map((run) => {
    const cells = phases
      .filter((phase) => run.seconds[phase])
      .map((phase) => {
        const seconds = run.seconds[phase];
        const tip = () => [
          h("b", {}, phase),
          pairs([
            ["a step", duration(perStep(run, seconds))],
            ["in all", duration(seconds)],
            ["share", `${told((100 * seconds) / total(run))} %`],
          ]),
        ];
        const width = `${(100 * perStep(run, seconds)) / most}%`;
        return withTip(
          h("span", { class: "phase", "--width": width, "--fill": `var(--phase-${phases.indexOf(phase) % 9})` }),
          tip,
        );
      });
    const label = h(
      "div",
      { class: "split" },
      h("span", {}, swatch(run), " ", h("bdi", {}, visible(run.name))),
      h("span", { class: "soft" }, `${duration(perStep(run, total(run)))} a step`),
    );
    return h("div", {}, label, h("div", { class: "phases" }, cells));
  });
  const key = phases.map((phase, k) => h("span", {}, h("i", { "--fill": `var(--phase-${k % 9})` }), phase));
  byId("phases")
    .querySelector(".plot")
    .replaceChildren(...bars, h("div", { class: "key" }, key));
}

function drawCurveSection() {
  const changing = metricNames.filter((name) => !isConstant(name));
  const first = FIRST.filter((name) => changing.includes(name));
  const others = (group) => changing.filter((name) => name.split("/")[0] === group && !first.includes(name));
  const groups = [...GROUPS, ...new Set(changing.map((name) => name.split("/")[0]))].filter(
    (group, k, all) => all.indexOf(group) === k,
  );
  const shownFirst = grid(first);
  shownFirst.append(phasesCard());
  const folds = groups
    .filter((group) => others(group).length)
    .map((group) => {
      const fold = h(
        "details",
        { class: "fold group" },
        h("summary", {}, GROUP_NAMES[group] ?? group, " ", h("small", {}, others(group).length)),
        grid(others(group)),
      );
      fold.addEventListener("toggle", drawCurves);
      return fold;
    });
  const constant = metricNames.filter(isConstant).map((name) => {
    const value = runs.map((run) => run.last[name]).find((one) => one !== undefined);
    return withTip(h("span", { class: "fact", tabindex: 0 }, `${name} = ${told(value)}`), () => explained(name));
  });
  const left = runs
    .filter((run) => run.lines.shown < run.lines.all)
    .map((run) => `${run.lines.shown} of ${told(run.lines.all)} of ${run.name}`);
  byId("curves").append(
    h("div", { class: "head" }, h("h2", {}, "Curves"), toolbar()),
    shownFirst,
    ...folds,
    constant.length ? h("p", { class: "facts" }, "The same at every step: ", constant) : "",
    left.length ? h("p", { class: "soft" }, `Steps drawn: ${left.join(", ")}; the others are in metrics.jsonl.`) : "",
  );
  drawCurves();
}
