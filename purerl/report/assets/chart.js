// One metric of all runs, as lines.

const HEIGHT = 168,
  LEFT = 46,
  RIGHT = 12,
  TOP = 10,
  BOTTOM = 22;

const X_TOLD = { step: told, seconds: duration, tokens: counted };

/** The points of a curve: place, value and number of each line of the metrics where there is something to draw. */
function pointsOf(run, metric) {
  const places = run.axes[view.x];
  const values = run.metrics[metric] ?? [];
  const points = [];
  values.forEach((value, k) => {
    if (isNumber(value) && (!view.log || value > 0)) points.push([places[k], value, k]);
  });
  return points;
}

/** A moving average: a point weighs `weight` times less for each line that it lies back. */
function smoothed(points, weight) {
  let sum = 0,
    total = 0,
    last = 0;
  return points.map(([x, y, k]) => {
    const decay = weight ** (k - last);
    [sum, total, last] = [sum * decay + y, total * decay + 1, k];
    return [x, sum / total];
  });
}

/** From [low, high] to pixels, and back. */
function scale(low, high, from, to, log) {
  const bend = log ? Math.log10 : (value) => value;
  const [a, b] = [bend(low), bend(high)];
  const place = (value) => from + ((bend(value) - a) / (b - a || 1)) * (to - from);
  place.back = (pixel) => low + ((pixel - from) / (to - from)) * (high - low);
  return place;
}

function domain(values) {
  const low = values.reduce((least, value) => Math.min(least, value), Infinity);
  const high = values.reduce((most, value) => Math.max(most, value), -Infinity);
  if (view.log) return low === high ? [low / 2, high * 2] : [low, high];
  const margin = low === high ? Math.abs(low) / 2 || 1 : (high - low) * 0.05;
  // A curve that comes near 0 from one side stands on it.
  const bottom = low >= 0 && low < (high - low) * 0.5 ? 0 : low - margin;
  return [bottom, high + margin];
}

const path = (points, x, y) =>
  points.map(([a, b], k) => `${k ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");

/** A card for `metric`: `draw` draws it as the view says, `cross` shows what stands at a place. */
function chart(metric, hover) {
  const caption = withTip(h("figcaption", { tabindex: 0 }, metric), () => explained(metric));
  const larger = h(
    "button",
    { class: "quiet", type: "button", title: "Larger or smaller", "aria-label": `${metric}, larger or smaller` },
    "⤢",
  );
  const place = h("div", { class: "plot" });
  const card = h("figure", { class: "card chart", "data-metric": metric }, caption, larger, place);
  const self = { metric, card, curves: [], draw: () => drawChart(self, place), cross: (at) => cross(self, at) };
  larger.addEventListener("click", () => {
    card.classList.toggle("large");
    self.draw();
  });
  place.addEventListener("pointermove", (event) => {
    if (self.curves.length) hover(self, self.x.back(event.clientX - place.getBoundingClientRect().left), event);
  });
  place.addEventListener("pointerleave", () => hover(null));
  return self;
}

function drawChart(self, place) {
  const width = place.clientWidth || 360;
  const height = self.card.classList.contains("large") ? 340 : HEIGHT;
  self.curves = runs
    .filter(shown)
    .map((run) => ({ run, points: pointsOf(run, self.metric) }))
    .filter(({ points }) => points.length);
  for (const curve of self.curves) curve.line = view.smoothing ? smoothed(curve.points, view.smoothing) : curve.points;
  if (!self.curves.length) {
    place.replaceChildren(
      h("p", { class: "soft empty" }, view.log ? "nothing above 0 to show" : "not in the runs shown"),
    );
    return;
  }
  const every = self.curves.flatMap(({ points }) => points);
  // The same for all charts, so that one place is the same place in each.
  const all = runs.filter(shown).map(({ axes }) => axes[view.x]);
  const left = Math.min(...all.map((places) => places[0]));
  const right = Math.max(...all.map((places) => places.at(-1)));
  const [low, high] = domain(every.map(([, value]) => value));
  self.x = scale(left, left === right ? left + 1 : right, LEFT, width - RIGHT, false);
  self.y = scale(low, high, height - BOTTOM, TOP, view.log);
  self.cursor = svg("g", { class: "cursor" });
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${self.metric} by ${view.x}` },
    axes(self, width, height, [left, right], [low, high]),
    self.curves.map((curve) => lines(curve, self.x, self.y)),
    self.cursor,
  );
  place.replaceChildren(drawing);
}

function axes(self, width, height, [left, right], [low, high]) {
  const ys = view.log ? powers(low, high) : ticks(low, high, height > 200 ? 8 : 5);
  const xs = left === right ? [left] : ticks(left, right, Math.max(2, Math.floor(width / 90)));
  const horizontal = ys.map((value) => [
    svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: self.y(value), y2: self.y(value) }),
    svg("text", { x: LEFT - 7, y: self.y(value) + 3.5, "text-anchor": "end" }, told(value)),
  ]);
  const vertical = xs.map((value) =>
    svg(
      "text",
      { x: self.x(value), y: height - 5, "text-anchor": self.x(value) > width - 40 ? "end" : "middle" },
      X_TOLD[view.x](value),
    ),
  );
  return svg("g", { class: "axes" }, horizontal, vertical);
}

function lines({ run, points, line }, x, y) {
  const style = { stroke: run.color, "stroke-dasharray": run.dash };
  const dots =
    points.length > 40
      ? []
      : line.map(([a, b]) => svg("circle", { cx: x(a), cy: y(b), r: points.length > 20 ? 2 : 3, fill: run.color }));
  const raw = view.smoothing ? svg("path", { ...style, class: "line raw", d: path(points, x, y) }) : null;
  return svg("g", { "data-run": run.index }, raw, svg("path", { ...style, class: "line", d: path(line, x, y) }), dots);
}

/** The point of each curve that is nearest to `place`; a line and dots there, or nothing for null. */
function cross(self, place) {
  if (!self.curves.length) return [];
  self.cursor.replaceChildren();
  if (place === null) return [];
  const found = self.curves.map(({ run, points, line }) => {
    const k = nearest(points, place);
    return { run, x: points[k][0], y: line[k][1], raw: points[k][1] };
  });
  const height = Number(self.cursor.ownerSVGElement.getAttribute("height"));
  const places = found.map(({ x }) => x);
  const at = self.x(Math.min(Math.max(place, Math.min(...places)), Math.max(...places)));
  self.cursor.append(
    svg("line", { x1: at, x2: at, y1: TOP, y2: height - BOTTOM }),
    ...found.map(({ run, x, y }) => svg("circle", { cx: self.x(x), cy: self.y(y), r: 3.5, fill: run.color })),
  );
  return found;
}

/** Index of the point nearest to `place`, by halving. */
function nearest(points, place) {
  let low = 0,
    high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < place) low = middle;
    else high = middle;
  }
  return place - points[low][0] <= points[high][0] - place ? low : high;
}
