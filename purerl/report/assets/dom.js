// Helpers that create DOM elements. No script of this page parses HTML: data is only ever inserted as text nodes.

/** Create an HTML element. Properties are attributes, listeners (onclick, ...) or `--custom` CSS properties. */
function h(tag, properties = {}, ...children) {
  return configured(document.createElement(tag), properties, children);
}

/** Create an SVG element, with the same arguments as `h`. */
function svg(tag, properties = {}, ...children) {
  return configured(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function configured(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const byId = (id) => document.getElementById(id);

// Control, zero-width and bidirectional formatting characters. The joiners U+200C and U+200D, used in emoji, are kept.
const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Replace invisible characters by visible symbols, such as ␀ or [U+202E]. */
function escapeInvisible(text) {
  return text.replace(INVISIBLE, (character) => {
    const code = character.codePointAt(0);
    return code < 32 ? String.fromCodePoint(0x2400 + code) : `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
  });
}

/** The same, with symbols for line breaks and tabs. */
const toSingleLine = (text) => escapeInvisible(text).replace(/\n/g, "↵").replace(/\t/g, "⇥");

/** Nodes for text with `code` between backticks. */
function withCode(text) {
  return text.split("`").map((part, k) => (k % 2 ? h("code", {}, part) : part));
}

// The page has one tooltip. It is shown next to the pointer, or below the focused element.

function showTooltip(content, x, y) {
  const tooltip = byId("tooltip");
  tooltip.replaceChildren(...content);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = x + 14 + width > innerWidth ? x - width - 14 : x + 14;
  const top = y + 16 + height > innerHeight ? y - height - 12 : y + 16;
  tooltip.style.left = `${Math.max(left, 4)}px`;
  tooltip.style.top = `${Math.max(top, 4)}px`;
}

function hideTooltip() {
  byId("tooltip").hidden = true;
}

/** Show the nodes that `content()` returns while `element` is hovered or focused. */
function withTooltip(element, content) {
  element.addEventListener("pointermove", (event) => showTooltip(content(), event.clientX, event.clientY));
  element.addEventListener("pointerleave", hideTooltip);
  element.addEventListener("focus", () => {
    const box = element.getBoundingClientRect();
    showTooltip(content(), box.left, box.bottom);
  });
  element.addEventListener("blur", hideTooltip);
  return element;
}

/** The images with these content ids, in the size of the class `kind`. The page does not have all images of a run. */
function imageStrip(run, ids, kind = "image") {
  const missing = (id) => h("code", { class: "muted" }, `image ${escapeInvisible(id)} is not in this page`);
  return ids.map((id) => {
    const url = Object.hasOwn(run.completions.images, id) ? run.completions.images[id] : null;
    if (url === null) return kind === "image" ? missing(id) : null;
    return h("img", { class: kind, src: url, alt: `image ${id}`, title: `image ${id}` });
  });
}

/** A list of names and values. */
function definitionList(entries) {
  return h(
    "dl",
    {},
    entries.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}
