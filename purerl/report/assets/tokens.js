// Tokens as text, colored by a value per token.

const POSITIVE = "var(--positive)";
const NEGATIVE = "var(--negative)";
const UNLIKELY = "var(--unlikely)";

// The advantage with full color: the 95th percentile over rows, so that outliers do not make all other tokens pale.
const advantageScale =
  quantile(
    rows.map((row) => row.maxAbsAdvantage),
    0.95,
  ) || 1;

/**
 * Ways to color tokens. `value` is the value of a token, `color` maps it to a color and a strength within [0, 1], and
 * `ends` and `legend` describe the legend. Scales are the same for all rows, so colors of different rows are
 * comparable.
 */
const COLOR_MODES = {
  advantage: {
    label: "Advantage",
    help: "The update increases the probability of blue tokens and decreases the probability of orange tokens.",
    value: (fields, t) => atToken(fields.advantage, t),
    color: (value) => [value < 0 ? NEGATIVE : POSITIVE, Math.sqrt(Math.abs(value) / advantageScale)],
    ends: [`${formatBrief(-advantageScale)} or less`, `${formatBrief(advantageScale)} or more`],
    legend: [-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1].map((x) => x * advantageScale),
  },
  logp: {
    label: "Log-probability",
    help: "A stronger color means a lower log-probability when the token was sampled.",
    value: (fields, t) => atToken(logpOf(fields), t),
    color: (value) => [UNLIKELY, Math.sqrt(Math.min(-value, 5) / 5)],
    ends: ["−5 nats or less", "0, certain"],
    legend: [-5, -4, -3, -2, -1, -0.5, -0.2, 0],
  },
  mismatch: {
    label: "Trainer − generator",
    help: "The log-probability in the trainer is higher (blue) or lower (orange) than in the generator.",
    value: (fields, t) => atToken(fields.old_logp, t) - atToken(fields.rollout_logp, t),
    color: (value) => [value < 0 ? NEGATIVE : POSITIVE, Math.abs(value) / 0.1],
    ends: ["−0.1 nats or less", "0.1 nats or more"],
    legend: [-0.1, -0.075, -0.05, -0.025, 0, 0.025, 0.05, 0.075, 0.1],
  },
};

const hasField = (name) => rows.some((row) => row.per_token[name] !== undefined);
if (!hasField("advantage")) delete COLOR_MODES.advantage;
if (!hasField("rollout_logp") && !hasField("old_logp")) delete COLOR_MODES.logp;
if (!hasField("rollout_logp") || !hasField("old_logp")) delete COLOR_MODES.mismatch;
view.colorMode = Object.keys(COLOR_MODES)[0] ?? null;

/** One element per token of `row` in [start, end). Only action tokens have a color: not those of observations. */
function tokenSpans(row, format = escapeInvisible, start = 0, end = Infinity) {
  return row.per_token.text
    .slice(start, end)
    .map((text, k) => colorToken(h("span", { class: "token" }, format(text)), row, start + k));
}

/** The first `limit` tokens of `row` in one line, from the first action token on. */
function tokenPreview(row, limit) {
  const numTokens = row.per_token.text.length;
  const start = row.firstAction < numTokens ? row.firstAction : 0;
  const ellipsis = numTokens > start + limit ? "…" : null;
  return h("span", { class: "line" }, tokenSpans(row, toSingleLine, start, start + limit), ellipsis);
}

function colorToken(element, { per_token: fields, firstAction }, t) {
  if (!atToken(fields.action, t)) element.classList.add("context", ...(t > firstAction ? ["observation"] : []));
  else if (fields.mask !== undefined && !atToken(fields.mask, t)) element.classList.add("masked");
  const mode = COLOR_MODES[view.colorMode];
  const value = mode?.value(fields, t);
  if (!atToken(fields.action, t) || !isNumber(value)) return element;
  const [color, strength] = mode.color(value);
  element.style.setProperty("--color", color);
  element.style.setProperty("--strength", `${Math.round(Math.min(strength, 1) * 100)}%`);
  return element;
}

const TOKEN_LABELS = {
  tokens: "id",
  advantage: "advantage",
  rollout_logp: "rollout log-prob.",
  old_logp: "old log-prob.",
  ref_logp: "reference log-prob.",
  reward: "reward",
  mask: "in loss",
  action: "action token",
  version: "weight version",
  turn: "turn",
  anchor: "state",
};

/** Tooltip with all values of token `t`. */
function tokenTooltip(fields, t) {
  const labels = Object.entries(TOKEN_LABELS).filter(([name]) => fields[name] !== undefined);
  const values = labels.map(([name, label]) => [label, formatTokenValue(name, atToken(fields[name], t))]);
  return [h("code", { class: "token-text" }, JSON.stringify(escapeInvisible(fields.text[t]))), definitionList(values)];
}

function formatTokenValue(name, value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  return ["tokens", "version", "turn", "anchor"].includes(name) ? String(value) : formatNumber(value);
}

function colorLegend() {
  const mode = COLOR_MODES[view.colorMode];
  const cells = mode.legend.map((value) => {
    const [color, strength] = mode.color(value);
    return h("span", { class: "token", "--color": color, "--strength": `${Math.min(strength, 1) * 100}%` });
  });
  return h(
    "span",
    { class: "color-legend" },
    h("small", {}, mode.ends[0]),
    h("span", { class: "cells" }, cells),
    h("small", {}, mode.ends[1]),
  );
}
