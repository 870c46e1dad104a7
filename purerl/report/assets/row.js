// One completion, opened: its numbers, its tokens, and the rows of the same prompt.

function facts(row) {
  const entries = [
    ["reward", told(row.score)],
    ["advantage", told(row.advantage)],
    ["tokens", row.counted < row.length ? `${told(row.length)}, ${told(row.counted)} counted` : told(row.length)],
    ["mean log-prob.", told(row.logp)],
    ["ended by", row.finish ?? "–"],
    ["temperature", told(row.temperature)],
    ...Object.entries(row.more).map(([name, value]) => [name, told(value)]),
  ];
  return h(
    "dl",
    { class: "facts" },
    entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, visible(String(value))))),
  );
}

/** The whole row as text: what was given in gray, what the policy said in colors. */
function transcript(row) {
  const given = h("span", { class: "given" }, row.group.prompt_at.text.map((piece) => visible(piece)).join(""));
  const spans = tokenSpans(row);
  spans.forEach((span, t) => withTip(span, () => tokenTip(row.at, t)));
  return h("div", { class: "transcript", tabindex: 0, "aria-label": "Prompt and completion" }, given, spans);
}

/** Cards for `found`, rows of one prompt beside each other. */
function siblings(title, found, selected, open) {
  const cards = found.map((row) => {
    const card = h(
      "button",
      { class: "sibling", type: "button", "aria-current": row === selected ? "true" : null },
      h(
        "span",
        { class: "split" },
        h("span", {}, "reward ", h("b", {}, told(row.score))),
        h("span", { class: "soft" }, `adv. ${told(row.advantage)}`),
      ),
      tokenLine(row, 60),
    );
    card.addEventListener("click", () => open(row));
    return card;
  });
  return [h("h4", {}, title), h("div", { class: "siblings" }, cards)];
}

const average = (group) => `mean reward ${told(group.mean)}`;

/** The rows that other runs have of the same prompt at the same step. */
function elsewhere(row) {
  const same = (group) => group.step === row.step && group.prompt === row.group.prompt && group !== row.group;
  return runs
    .filter((run) => run !== row.run && shown(run))
    .flatMap((run) =>
      run.completions.groups
        .filter(same)
        .slice(0, 1)
        .map((group) => [run, group]),
    );
}

/** The opened completion; `open` opens another, `close` closes it, `recolor` is called when the colors change. */
function detail(row, { open, close, recolor }) {
  const { group } = row;
  const choices = Object.entries(COLORS).map(([name, { label }]) => {
    const input = h("input", { type: "radio", name: "color", value: name, checked: view.color === name });
    input.addEventListener("change", () => {
      view.color = name;
      recolor();
    });
    return h("label", {}, input, h("span", {}, label));
  });
  const shownOf = group.found.length < group.size ? `${group.found.length} of the ${group.size}` : `The ${group.size}`;
  return [
    h(
      "header",
      {},
      h(
        "h3",
        {},
        swatch(row.run),
        " ",
        h("bdi", {}, visible(row.run.name)),
        h("span", { class: "soft" }, ` step ${row.step} · group ${group.group} · row ${row.row}`),
      ),
      h(
        "button",
        { class: "quiet close", type: "button", title: "Close (Esc)", "aria-label": "Close", onclick: close },
        "✕",
      ),
    ),
    facts(row),
    choices.length
      ? h("div", { class: "colors" }, h("fieldset", { class: "segments" }, h("legend", {}, "Color"), choices), ramp())
      : "",
    choices.length ? h("p", { class: "soft hint" }, COLORS[view.color].help) : "",
    transcript(row),
    ...siblings(`${shownOf} completions of this prompt, ${average(group)}`, group.found, row, open),
    ...elsewhere(row).flatMap(([run, other]) =>
      siblings(`The same prompt in ${visible(run.name)}, ${average(other)}`, other.found, row, open),
    ),
  ].flat();
}
