// The detail view of one row: its values, its tokens, and the other rows of the same prompt.

function rowFacts(row) {
  const length = formatNumber(row.length);
  const isAttempt = row.group.data_set !== undefined;
  const entries = [
    ["reward", formatNumber(row.reward)],
    ...(row.episode_reward === undefined ? [] : [["reward of this row", formatNumber(row.rowReward)]]),
    ...(isAttempt ? attemptFacts(row) : [["advantage", formatNumber(row.advantage)]]),
    ["tokens", row.lengthInLoss < row.length ? `${length} (${formatNumber(row.lengthInLoss)} in loss)` : length],
    ...(isAttempt ? [] : [["mean log-prob.", formatNumber(row.logp)]]),
    ...(row.turns.length > 1 ? [["turns", formatNumber(row.turns.length)]] : []),
    ["finish reason", row.finish ?? "–"],
    ...(isAttempt ? [] : [["temperature", formatNumber(row.temperature)]]),
    ...Object.entries(row.extra).map(([name, value]) => [name, formatNumber(value)]),
  ];
  return h(
    "dl",
    { class: "facts" },
    entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, escapeInvisible(String(value))))),
  );
}

/** What is known only about an attempt of an evaluation. */
function attemptFacts(row) {
  return [
    ["correct", correctness(row) ?? "–"],
    ["answer", row.answer ?? "–"],
  ];
}

/** Whether an attempt is correct, in a word; null if this is not known. */
const correctness = (row) => (typeof row.correct === "boolean" ? (row.correct ? "correct" : "incorrect") : null);

/** The ground truth of the prompt, if it is stored. */
function groundTruth({ ground_truth: text }) {
  if (text === undefined || text === null) return [];
  const content = h("div", { class: "transcript ground-truth", tabindex: 0 }, escapeInvisible(text));
  return [h("h4", {}, "Ground truth"), content];
}

/** The images that the row reads, in order; those of the problem for an attempt of an evaluation. */
function rowImages(row) {
  const ids = row.images ?? row.group.images ?? [];
  return ids.length ? [h("div", { class: "images" }, imageStrip(row.run, ids))] : [];
}

/** The text of the row: the prompt in gray, action tokens in colors. Each of several turns has a heading. */
function transcript(row) {
  const prompt = row.group.prompt_tokens.text.map((text) => escapeInvisible(text)).join("");
  const spans = tokenSpans(row);
  spans.forEach((span, t) => withTooltip(span, () => tokenTooltip(row.per_token, t)));
  const turn = (t) => turnAt(row.per_token, t);
  const startsTurn = (t) => row.turns.length > 1 && (t === 0 || turn(t) !== turn(t - 1));
  return h(
    "div",
    { class: "transcript", tabindex: 0, "aria-label": "Prompt and completion" },
    h("span", { class: "context" }, prompt),
    spans.map((span, t) => (startsTurn(t) ? [h("span", { class: "turn-start" }, `turn ${turn(t)}`), span] : span)),
  );
}

/** A button that opens `row`. */
function rowCard(row, selected, open) {
  return h(
    "button",
    {
      class: "sibling",
      type: "button",
      "aria-current": row === selected ? "true" : null,
      onclick: () => open(row),
    },
    h(
      "span",
      { class: "split" },
      h("span", {}, "reward ", h("b", {}, formatNumber(row.rowReward))),
      h("span", { class: "muted" }, correctness(row) ?? `adv. ${formatNumber(row.advantage)}`),
    ),
    tokenPreview(row, 60),
  );
}

/** The cards of the rows of one episode; if there are several, in a frame with the reward of the episode. */
function episodeCards(episode, selected, open) {
  const cards = episode.map((row) => rowCard(row, selected, open));
  if (episode.length === 1) return cards;
  const reward = h("span", {}, "episode, reward ", h("b", {}, formatNumber(episode[0].reward)));
  return h("div", { class: "episode" }, reward, h("div", { class: "siblings" }, cards));
}

/** Cards for the rows of one group, episode by episode. */
function groupCards(title, groupRows, selected, open) {
  const starts = groupRows.filter((row, k) => groupRows.findIndex((other) => isSameEpisode(row, other)) === k);
  const cards = starts.map((start) => episodeCards(episodeRows(start), selected, open));
  return [h("h4", {}, title), h("div", { class: "siblings" }, cards)];
}

const meanReward = (group) => `mean reward ${formatNumber(group.mean_reward)}`;

/** Pairs [run, group] for the groups of other visible runs with the same prompt at the same step. */
function groupsInOtherRuns(row) {
  const names = ["step", "data_set", "prompt"];
  const hasSameImages = (group) => String(group.images ?? "") === String(row.group.images ?? "");
  const isMatch = (group) =>
    group !== row.group && names.every((name) => group[name] === row.group[name]) && hasSameImages(group);
  return runs
    .filter((run) => run !== row.run && isVisible(run))
    .map((run) => [run, run.completions.groups.find(isMatch)])
    .filter(([, group]) => group);
}

/** The episode of a row, if there are several rows, and its player in games of several players. */
const episodeLabel = (row) =>
  (row.episode_reward === undefined ? "" : ` · episode ${row.episode}`) +
  (isNumber(row.role) ? ` · player ${row.role}` : "");

function detailHeader(row, close) {
  const { group } = row;
  const position =
    group.data_set === undefined
      ? `step ${row.step} · group ${group.group} · row ${row.row}${episodeLabel(row)}`
      : `step ${row.step} · evaluation ${group.data_set} · problem ${group.example} · attempt ${row.row}`;
  return h(
    "header",
    {},
    h(
      "h3",
      {},
      swatch(row.run),
      " ",
      h("bdi", {}, escapeInvisible(row.run.name)),
      h("span", { class: "muted" }, ` ${escapeInvisible(position)}`),
    ),
    h(
      "button",
      { class: "quiet close", type: "button", title: "Close (Esc)", "aria-label": "Close", onclick: close },
      "✕",
    ),
  );
}

/** Controls that choose the color mode, and its legend. */
function colorControls(onChange) {
  const options = Object.entries(COLOR_MODES).map(([name, { label }]) => {
    const input = h("input", { type: "radio", name: "color", value: name, checked: view.colorMode === name });
    input.addEventListener("change", () => {
      view.colorMode = name;
      onChange();
    });
    return h("label", {}, input, h("span", {}, label));
  });
  if (!options.length) return [];
  const fieldset = h("fieldset", { class: "segments" }, h("legend", {}, "Color"), options);
  return [
    h("div", { class: "colors" }, fieldset, colorLegend()),
    h("p", { class: "muted hint" }, COLOR_MODES[view.colorMode].help),
  ];
}

/** The detail view of `row`. `open(row)` opens another row, `close()` closes the view, `recolor()` redraws colors. */
function rowDetail(row, { open, close, recolor }) {
  const { group } = row;
  const count = group.rows.length < group.size ? `${group.rows.length} of ${group.size}` : `The ${group.size}`;
  const unit = group.num_episodes < group.size ? `rows of the ${group.num_episodes} episodes` : "completions";
  return [
    detailHeader(row, close),
    rowFacts(row),
    ...colorControls(recolor),
    ...messageControls(row, recolor),
    ...(row.conversation && !view.asTokens ? [conversation(row)] : [...rowImages(row), transcript(row)]),
    ...groundTruth(group),
    ...groupCards(`${count} ${unit} of this prompt, ${meanReward(group)}`, group.rows, row, open),
    ...groupsInOtherRuns(row).flatMap(([run, other]) =>
      groupCards(`The same prompt in ${escapeInvisible(run.name)}, ${meanReward(other)}`, other.rows, row, open),
    ),
  ];
}
