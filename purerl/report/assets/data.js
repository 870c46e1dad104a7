// What the page is about: runs, and their completions as one list of rows.

const report = JSON.parse(byId("data").textContent);

const runs = report.runs.map((run, index) => ({
  ...run,
  index,
  color: `var(--run-${index % 6})`,
  dash: ["", "6 3", "2 3"][Math.floor(index / 6) % 3],
}));

/** What the reader has chosen. Those who change it say what is drawn anew. */
const view = { hidden: new Set(), x: "step", smoothing: 0, log: false, color: "advantage", selected: null };

const shown = (run) => !view.hidden.has(run.index);

/** A small line in the color of `run`. */
function swatch(run) {
  const line = svg("line", {
    x1: 1,
    x2: 17,
    y1: 5,
    y2: 5,
    stroke: run.color,
    "stroke-width": 3,
    "stroke-dasharray": run.dash,
  });
  return svg("svg", { class: "swatch", width: 18, height: 10, "aria-hidden": "true" }, line);
}

/** The value of a field at token `t`: a list, or one value that all tokens have. */
const at = (field, t) => (Array.isArray(field) ? field[t] : field);

/** The sampler's log-probability, or the trainer's where nothing was sampled. */
const logpOf = (tokens) => tokens.rollout_logp ?? tokens.old_logp;

function rowOf(run, group, row) {
  const tokens = row.at;
  const own = tokens.text.map((_, t) => t).filter((t) => at(tokens.action, t));
  const among = (field) => (field === undefined ? [] : own.map((t) => at(field, t)).filter(isNumber));
  const advantages = among(tokens.advantage);
  return {
    ...row,
    run,
    group,
    step: group.step,
    length: own.length,
    counted: tokens.mask === undefined ? own.length : own.filter((t) => at(tokens.mask, t)).length,
    logp: mean(among(logpOf(tokens))),
    advantage: mean(advantages),
    advantageSize: advantages.reduce((most, value) => Math.max(most, Math.abs(value)), 0),
    words: `${group.prompt ?? ""}\n${row.completion ?? tokens.text.join("")}`.toLowerCase(),
  };
}

const rows = runs.flatMap((run) =>
  run.completions.groups.flatMap((group) => {
    group.found = group.rows.map((row) => rowOf(run, group, row));
    return group.found;
  }),
);

/** What tells that a run learns: of reinforcement learning, of demonstrations, of preference pairs. */
const LEARNING = ["eval/accuracy", "reward/mean", "policy/loss/nll", "policy/loss/preference", "policy/accuracy"];

const metricNames = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))];

/** Unit and meaning of a metric, as a tooltip. */
function explained(name) {
  const [unit, meaning] = report.meanings[name] ?? ["", "A metric of your own."];
  return [h("b", {}, name), unit ? h("i", {}, ` ${unit}`) : null, h("p", {}, ...prose(meaning))].filter(Boolean);
}
