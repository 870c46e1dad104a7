// The data of the page: runs, and the rows (prompt and completion) of all runs in one list.

const report = JSON.parse(byId("data").textContent);

const runs = report.runs.map((run, index) => ({
  ...run,
  index,
  color: `var(--run-${index % 6})`,
  dash: ["", "6 3", "2 3"][Math.floor(index / 6) % 3],
}));

/** The choices of the user. Code that changes them also redraws what depends on them. */
const view = {
  hiddenRuns: new Set(),
  xAxis: "step",
  smoothing: 0,
  logScale: false,
  colorMode: null,
  selectedRow: null,
  asTokens: false, // show the tokens of a conversation instead of its messages
  unfoldedRow: null, // the row whose conversation is shown as a whole
};

const isVisible = (run) => !view.hiddenRuns.has(run.index);

/** A short line in the color of `run`. */
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

/** The value of a field at token `t`. A field is an array, or a single value that all tokens have. */
const atToken = (field, t) => (Array.isArray(field) ? field[t] : field);

/** Log-probabilities of the generator; of the trainer if nothing was sampled. */
const logpOf = (fields) => fields.rollout_logp ?? fields.old_logp;

/** The turn of token `t`; 0 if the field is not stored. */
const turnAt = (fields, t) => atToken(fields.turn, t) ?? 0;

/** Whether two rows of a group belong to one episode. A row without the field is an episode itself. */
const isSameEpisode = (row, other) => (isNumber(row.episode) ? row.episode === other.episode : row === other);

/** What the text filter searches, beside the prompt. */
const searchedTexts = (row, conversation) =>
  conversation
    ? conversation.flatMap(({ content, calls }) => [content, ...(calls ?? []).map((call) => call.arguments)])
    : [row.completion ?? row.per_token.text.join("")];

function makeRow(run, group, row) {
  const fields = row.per_token;
  const actions = fields.text.map((_, t) => t).filter((t) => atToken(fields.action, t));
  const valuesAtActions = (field) =>
    field === undefined ? [] : actions.map((t) => atToken(field, t)).filter(isNumber);
  const advantages = valuesAtActions(fields.advantage);
  const messages = group.rows.find((other) => other.messages && isSameEpisode(row, other))?.messages;
  const conversation = messages ? [...group.messages, ...messages] : null;
  const length = row.num_tokens ?? actions.length; // an attempt of an evaluation has its text as one token
  return {
    ...row,
    run,
    group,
    conversation,
    // An episode of several rows is listed with its own reward.
    reward: row.episode_reward === undefined ? row.reward : row.episode_reward,
    rowReward: row.reward,
    turns: [...new Set(actions.map((t) => turnAt(fields, t)))],
    firstAction: actions[0] ?? fields.text.length,
    step: group.step,
    source: group.data_set === undefined ? "training" : `evaluation: ${group.data_set}`,
    length,
    lengthInLoss: fields.mask === undefined ? length : actions.filter((t) => atToken(fields.mask, t)).length,
    logp: mean(valuesAtActions(logpOf(fields))),
    advantage: mean(advantages),
    maxAbsAdvantage: advantages.reduce((max, value) => Math.max(max, Math.abs(value)), 0),
    searchText: [group.prompt ?? "", ...searchedTexts(row, conversation)].join("\n").toLowerCase(),
  };
}

/** The rows of the episode of `row`. */
const episodeRows = (row) => row.group.rows.filter((other) => isSameEpisode(row, other));

const rows = runs.flatMap((run) =>
  run.completions.groups.flatMap((group) => {
    group.rows = group.rows.map((row) => makeRow(run, group, row));
    // The list is sorted by it, so that the rows of an episode are next to each other.
    for (const row of group.rows.filter((each) => each.episode_reward !== undefined))
      row.maxAbsAdvantage = Math.max(...episodeRows(row).map((other) => other.maxAbsAdvantage));
    return group.rows;
  }),
);

/** The metrics that show whether a run learns: from rewards, from demonstrations, from preference pairs. */
const LEARNING_METRICS = [
  "eval/accuracy",
  "validation/loss",
  "validation/accuracy",
  "reward/mean",
  "policy/loss/nll",
  "policy/loss/preference",
  "policy/accuracy",
];

const metricNames = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))];

/** Tooltip with the unit and the meaning of a metric. */
function metricTooltip(name) {
  const [unit, meaning] = report.meanings[name] ?? ["", "A metric that is not documented."];
  return [h("b", {}, name), unit ? h("i", {}, ` ${unit}`) : null, h("p", {}, ...withCode(meaning))].filter(Boolean);
}
