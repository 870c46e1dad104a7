// Elements. Nothing here or elsewhere parses HTML: what a completion says only ever becomes text.

/** An element with attributes, listeners (onclick, ...), `--custom` properties, and children: nodes or texts. */
function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same in SVG. */
function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function filled(element, properties, children) {
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

// Control characters, and those that hide or turn round what stands beside them; joiners of emoji are let through.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Text in which every character can be seen. */
function visible(text) {
  return text.replace(UNSEEN, (character) => {
    const code = character.codePointAt(0);
    return code < 32 ? String.fromCodePoint(0x2400 + code) : `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
  });
}

/** The same in one line. */
const inOneLine = (text) => visible(text).replace(/\n/g, "↵").replace(/\t/g, "⇥");

/** Nodes for prose in which code stands between backticks. */
function prose(text) {
  return text.split("`").map((part, k) => (k % 2 ? h("code", {}, part) : part));
}

// One tooltip for the whole page. It follows the pointer, or stands below what has the focus.

function showTip(content, x, y) {
  const tip = byId("tip");
  tip.replaceChildren(...content);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 14 + width > innerWidth ? x - width - 14 : x + 14;
  const top = y + 16 + height > innerHeight ? y - height - 12 : y + 16;
  tip.style.left = `${Math.max(left, 4)}px`;
  tip.style.top = `${Math.max(top, 4)}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

/** Let `element` tell what `content()` gives when it is pointed at or focused. */
function withTip(element, content) {
  element.addEventListener("pointermove", (event) => showTip(content(), event.clientX, event.clientY));
  element.addEventListener("pointerleave", hideTip);
  element.addEventListener("focus", () => {
    const box = element.getBoundingClientRect();
    showTip(content(), box.left, box.bottom);
  });
  element.addEventListener("blur", hideTip);
  return element;
}

/** Rows of a tooltip: names and values. */
function pairs(entries) {
  return h(
    "dl",
    {},
    entries.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}
