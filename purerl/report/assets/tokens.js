// Tokens as colored text.

const blue = "var(--high)",
  orange = "var(--low)",
  violet = "var(--rare)";

// Where the color of an advantage is full: beyond most of those in the page, so that outliers do not pale the rest.
const fullAdvantage =
  quantile(
    rows.map((row) => row.advantageSize),
    0.95,
  ) || 1;

/**
 * What a token may be colored by: its value, the color of a value (tone, strength within [0, 1]), and the legend.
 * The scales are the same in the whole page, so that colors can be compared.
 */
const COLORS = {
  advantage: {
    label: "Advantage",
    help: "Blue tokens are made likelier by the update, orange ones less likely.",
    value: (tokens, t) => at(tokens.advantage, t),
    tone: (value) => [value < 0 ? orange : blue, Math.sqrt(Math.abs(value) / fullAdvantage)],
    ends: [`${brief(-fullAdvantage)} or less`, `${brief(fullAdvantage)} or more`],
    ramp: [-1, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1].map((x) => x * fullAdvantage),
  },
  logp: {
    label: "Log-probability",
    help: "The stronger the color, the less likely the sampler found the token.",
    value: (tokens, t) => at(logpOf(tokens), t),
    tone: (value) => [violet, Math.sqrt(Math.min(-value, 5) / 5)],
    ends: ["−5 nats or less", "0, certain"],
    ramp: [-5, -4, -3, -2, -1, -0.5, -0.2, 0],
  },
  gap: {
    label: "Trainer − sampler",
    help: "How far the trainer's log-probability is above (blue) or below (orange) the sampler's.",
    value: (tokens, t) => at(tokens.old_logp, t) - at(tokens.rollout_logp, t),
    tone: (value) => [value < 0 ? orange : blue, Math.abs(value) / 0.1],
    ends: ["−0.1 nats or less", "0.1 nats or more"],
    ramp: [-0.1, -0.075, -0.05, -0.025, 0, 0.025, 0.05, 0.075, 0.1],
  },
};

const has = (field) => rows.some((row) => row.at[field] !== undefined);
if (!has("advantage")) delete COLORS.advantage;
if (!has("rollout_logp") && !has("old_logp")) delete COLORS.logp;
if (!has("rollout_logp") || !has("old_logp")) delete COLORS.gap;
view.color = Object.keys(COLORS)[0] ?? null;

/** An element for each token of `row`, `limit` at most. Only the policy's own tokens have a color. */
function tokenSpans(row, said = visible, limit = Infinity) {
  return row.at.text.slice(0, limit).map((piece, t) => colored(h("span", { class: "token" }, said(piece)), row.at, t));
}

/** The beginning of `row` in one line. */
function tokenLine(row, limit) {
  return h("span", { class: "line" }, tokenSpans(row, inOneLine, limit), row.at.text.length > limit ? "…" : null);
}

function colored(element, tokens, t) {
  if (!at(tokens.action, t)) element.classList.add("given");
  else if (tokens.mask !== undefined && !at(tokens.mask, t)) element.classList.add("uncounted");
  const scale = COLORS[view.color];
  const value = scale?.value(tokens, t);
  if (!at(tokens.action, t) || !isNumber(value)) return element;
  const [tone, strength] = scale.tone(value);
  element.style.setProperty("--tone", tone);
  element.style.setProperty("--strength", `${Math.round(Math.min(strength, 1) * 100)}%`);
  return element;
}

const TOKEN_LABELS = {
  tokens: "id",
  advantage: "advantage",
  rollout_logp: "log-probability, sampler",
  old_logp: "log-probability, trainer",
  ref_logp: "log-probability, reference",
  reward: "reward",
  mask: "counted",
  action: "the policy's own",
  version: "weights' version",
};

/** All that is known of token `t`. */
function tokenTip(tokens, t) {
  const known = Object.entries(TOKEN_LABELS).filter(([field]) => tokens[field] !== undefined);
  const values = known.map(([field, label]) => [label, tell(field, at(tokens[field], t))]);
  return [h("code", { class: "piece" }, JSON.stringify(visible(tokens.text[t]))), pairs(values)];
}

function tell(field, value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  return field === "tokens" || field === "version" ? String(value) : told(value);
}

/** The colors' legend. */
function ramp() {
  const scale = COLORS[view.color];
  const cells = scale.ramp.map((value) => {
    const [tone, strength] = scale.tone(value);
    return h("span", { class: "token", "--tone": tone, "--strength": `${Math.min(strength, 1) * 100}%` });
  });
  return h(
    "span",
    { class: "ramp" },
    h("small", {}, scale.ends[0]),
    h("span", { class: "cells" }, cells),
    h("small", {}, scale.ends[1]),
  );
}
