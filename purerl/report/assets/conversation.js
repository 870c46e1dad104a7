// The conversation of an episode: its messages in order, with the tokens of the turns of the policy in colors.

const MAX_UNFOLDED_MESSAGES = 14;
const NUM_FIRST_MESSAGES = 4;
const NUM_LAST_MESSAGES = 6;

/** The row of the episode that has sampled `turn`, and the positions of the sampled tokens; null if none has. */
function sampledTurn(row, turn) {
  for (const other of episodeRows(row)) {
    const { action, text } = other.per_token;
    const isSampled = (t) => atToken(action, t) && turnAt(other.per_token, t) === turn;
    const positions = text.map((_, t) => t).filter(isSampled);
    if (positions.length) return { row: other, positions };
  }
  return null;
}

/** The tokens at `positions` of a row, with colors and tooltips. */
function turnTokens({ row, positions }) {
  const fields = row.per_token;
  return positions.map((t) => {
    const token = colorToken(h("span", { class: "token" }, escapeInvisible(fields.text[t])), row, t);
    return withTooltip(token, () => tokenTooltip(fields, t));
  });
}

/** The reward of a turn: that of the environment, or else the sum over its tokens, if it is not 0. */
function turnReward(message, sampled) {
  if (message.reward !== undefined) return message.reward;
  const values = sampled ? sampled.positions.map((t) => atToken(sampled.row.per_token.reward, t)) : [];
  return values.filter(isNumber).reduce((sum, value) => sum + value, 0) || null;
}

function messageHeader(message, sampled, row) {
  const reward = turnReward(message, sampled);
  const state = sampled ? atToken(sampled.row.per_token.anchor, sampled.positions[0]) : undefined;
  const facts = [
    message.player === undefined ? null : `player ${message.player}`,
    message.turn === undefined ? null : `turn ${message.turn}`,
    state === undefined ? null : `state ${state}`,
    sampled && sampled.row !== row ? `row ${sampled.row.row}` : null,
    reward === null ? null : `reward ${formatNumber(reward)}`,
  ];
  const name = message.name === undefined ? null : h("code", {}, ` ${escapeInvisible(message.name)}`);
  return h(
    "div",
    { class: "message-head" },
    h("b", {}, escapeInvisible(message.role)),
    name,
    h("span", { class: "muted" }, ` ${facts.filter(Boolean).join(" · ")}`),
  );
}

/** A tool call: the name of the tool, its arguments, and why it cannot be read. */
function toolCall({ name, arguments: text, error }) {
  const problem = error === undefined ? null : h("span", { class: "muted" }, ` (error: ${escapeInvisible(error)})`);
  return h("div", { class: "call" }, "call ", h("b", {}, escapeInvisible(name)), " ", escapeInvisible(text), problem);
}

/**
 * A message of the conversation of `row`. A turn of the policy is shown as its tokens. All other text is gray, because
 * the policy has not written it; in an evaluation, whose tokens are not stored, the text of the assistant is not.
 */
function messageElement(row, message) {
  const sampled = message.turn === undefined ? null : sampledTurn(row, message.turn);
  const isOwn = sampled !== null || (row.group.data_set !== undefined && message.role === "assistant");
  const content = sampled ? turnTokens(sampled) : escapeInvisible(message.content);
  return h(
    "div",
    { class: isOwn ? "message own" : "message", "data-role": message.role },
    messageHeader(message, sampled, row),
    message.images ? h("div", { class: "images" }, imageStrip(row.run, message.images)) : null,
    sampled || message.content ? h("div", { class: isOwn ? "body" : "body context" }, content) : null,
    (message.calls ?? []).map(toolCall),
  );
}

/** The conversation of `row`. The middle of a long one is folded, and drawn when it is unfolded. */
function conversation(row) {
  const messages = row.conversation;
  const draw = (part) => part.map((message) => messageElement(row, message));
  const attributes = { class: "conversation", tabindex: 0, "aria-label": "Conversation" };
  if (messages.length <= MAX_UNFOLDED_MESSAGES) return h("div", attributes, draw(messages));
  const middle = messages.slice(NUM_FIRST_MESSAGES, -NUM_LAST_MESSAGES);
  const fold = h(
    "details",
    { class: "messages", open: view.unfoldedRow === row },
    h("summary", {}, `${formatNumber(middle.length)} more messages`),
  );
  const unfold = () => fold.open && fold.children.length === 1 && fold.append(...draw(middle));
  fold.addEventListener("toggle", () => {
    view.unfoldedRow = fold.open ? row : null;
    unfold();
  });
  unfold();
  const [first, last] = [messages.slice(0, NUM_FIRST_MESSAGES), messages.slice(-NUM_LAST_MESSAGES)];
  return h("div", attributes, draw(first), fold, draw(last));
}

/** A control that chooses between the messages of a conversation and the tokens of the row. */
function messageControls(row, onChange) {
  if (!row.conversation || row.group.data_set !== undefined) return [];
  const options = [
    ["messages", "Messages", false],
    ["tokens", "Tokens of the row", true],
  ].map(([value, label, asTokens]) => {
    const input = h("input", { type: "radio", name: "messages", value, checked: view.asTokens === asTokens });
    input.addEventListener("change", () => {
      view.asTokens = asTokens;
      onChange();
    });
    return h("label", {}, input, h("span", {}, label));
  });
  return [h("fieldset", { class: "segments" }, h("legend", {}, "Show"), options)];
}
