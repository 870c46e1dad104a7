// A line chart of one metric, with one curve per run.

const CHART_HEIGHT = 168;
const LARGE_CHART_HEIGHT = 340;
const MARGIN = { left: 46, right: 12, top: 10, bottom: 22 };

const FORMAT_X = { step: formatNumber, seconds: formatDuration, tokens: formatCount };

/** The points [x, y, index of the record] of a curve. Values that cannot be drawn are skipped. */
function curvePoints(run, metric) {
  const xs = run.axes[view.xAxis];
  const values = run.metrics[metric] ?? [];
  const points = [];
  values.forEach((value, k) => {
    if (isNumber(value) && (!view.logScale || value > 0)) points.push([xs[k], value, k]);
  });
  return points;
}

/** Exponential moving average: a point that is n records older has a weight of `decay` ** n. */
function smooth(points, decay) {
  let sum = 0,
    total = 0,
    last = 0;
  return points.map(([x, y, k]) => {
    const factor = decay ** (k - last);
    [sum, total, last] = [sum * factor + y, total * factor + 1, k];
    return [x, sum / total];
  });
}

/** A function that maps [low, high] to the pixels [from, to]; `invert` maps pixels back on a linear scale. */
function makeScale(low, high, from, to, isLog) {
  const transform = isLog ? Math.log10 : (value) => value;
  const [a, b] = [transform(low), transform(high)];
  const scale = (value) => from + ((transform(value) - a) / (b - a || 1)) * (to - from);
  scale.invert = (pixel) => low + ((pixel - from) / (to - from)) * (high - low);
  return scale;
}

/** The range of the vertical axis. */
function valueRange(values) {
  const low = values.reduce((min, value) => Math.min(min, value), Infinity);
  const high = values.reduce((max, value) => Math.max(max, value), -Infinity);
  if (view.logScale) return low === high ? [low / 2, high * 2] : [low, high];
  const padding = low === high ? Math.abs(low) / 2 || 1 : (high - low) * 0.05;
  // The axis starts at 0 if no value is negative and the smallest one is close to 0.
  const start = low >= 0 && low < (high - low) * 0.5 ? 0 : low - padding;
  return [start, high + padding];
}

const linePath = (points, xScale, yScale) =>
  points.map(([x, y], k) => `${k ? "L" : "M"}${xScale(x).toFixed(1)} ${yScale(y).toFixed(1)}`).join("");

/**
 * Create the chart of `metric`. `draw` draws it with the current settings of `view`, `drawCursor` marks the points
 * nearest to x. `onHover(chart, x, event)` is called when the pointer moves over the chart, and `onHover(null)` when it
 * leaves.
 */
function makeChart(metric, onHover) {
  const caption = withTooltip(h("figcaption", { tabindex: 0 }, metric), () => metricTooltip(metric));
  const resizeButton = h(
    "button",
    { class: "quiet", type: "button", title: "Larger or smaller", "aria-label": `${metric}, larger or smaller` },
    "⤢",
  );
  const plot = h("div", { class: "plot" });
  const card = h("figure", { class: "card chart", "data-metric": metric }, caption, resizeButton, plot);
  const chart = {
    metric,
    card,
    plot,
    curves: [],
    draw: () => drawChart(chart),
    drawCursor: (x) => drawCursor(chart, x),
  };
  resizeButton.addEventListener("click", () => {
    card.classList.toggle("large");
    chart.draw();
  });
  plot.addEventListener("pointermove", (event) => {
    const pixel = event.clientX - plot.getBoundingClientRect().left;
    if (chart.curves.length) onHover(chart, chart.xScale.invert(pixel), event);
  });
  plot.addEventListener("pointerleave", () => onHover(null));
  return chart;
}

function drawChart(chart) {
  const width = chart.plot.clientWidth || 360;
  const height = chart.card.classList.contains("large") ? LARGE_CHART_HEIGHT : CHART_HEIGHT;
  chart.curves = runs
    .filter(isVisible)
    .map((run) => ({ run, points: curvePoints(run, chart.metric) }))
    .filter(({ points }) => points.length);
  for (const curve of chart.curves) curve.line = view.smoothing ? smooth(curve.points, view.smoothing) : curve.points;
  if (!chart.curves.length) {
    const reason = view.logScale ? "no values above 0" : "not in the visible runs";
    chart.plot.replaceChildren(h("p", { class: "muted empty" }, reason));
    return;
  }
  // All charts have the same horizontal range, so that the cursor has the same position in each of them.
  const xs = runs.filter(isVisible).map(({ axes }) => axes[view.xAxis]);
  const xRange = [Math.min(...xs.map((values) => values[0])), Math.max(...xs.map((values) => values.at(-1)))];
  const yRange = valueRange(chart.curves.flatMap(({ points }) => points).map(([, value]) => value));
  const xEnd = xRange[0] === xRange[1] ? xRange[0] + 1 : xRange[1];
  chart.xScale = makeScale(xRange[0], xEnd, MARGIN.left, width - MARGIN.right, false);
  chart.yScale = makeScale(...yRange, height - MARGIN.bottom, MARGIN.top, view.logScale);
  chart.cursor = svg("g", { class: "cursor" });
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${chart.metric} by ${view.xAxis}` },
    drawAxes(chart, width, height, xRange, yRange),
    chart.curves.map(({ run }) => drawCodeChanges(run, chart.xScale, height)),
    chart.curves.map((curve) => drawCurve(curve, chart.xScale, chart.yScale)),
    chart.cursor,
  );
  chart.plot.replaceChildren(drawing);
}

function drawAxes({ xScale, yScale }, width, height, [left, right], [low, high]) {
  const yTicks = view.logScale ? logTicks(low, high) : linearTicks(low, high, height > 200 ? 8 : 5);
  const xTicks = left === right ? [left] : linearTicks(left, right, Math.max(2, Math.floor(width / 90)));
  const horizontal = yTicks.map((value) => {
    const y = yScale(value);
    return [
      svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
      svg("text", { x: MARGIN.left - 7, y: y + 3.5, "text-anchor": "end" }, formatNumber(value)),
    ];
  });
  const vertical = xTicks.map((value) => {
    const x = xScale(value);
    const anchor = x > width - 40 ? "end" : "middle";
    return svg("text", { x, y: height - 5, "text-anchor": anchor }, FORMAT_X[view.xAxis](value));
  });
  return svg("g", { class: "axes" }, horizontal, vertical);
}

/** A vertical line at each step after which the code of the user was changed. */
function drawCodeChanges(run, xScale, height) {
  return run.code_changes.map(({ step, text }) => {
    const x = xScale(run.axes[view.xAxis][nearestIndex(run.axes.step.map((each) => [each]), step)]);
    const line = { class: "code-change", stroke: run.color, x1: x, x2: x, y1: MARGIN.top, y2: height - MARGIN.bottom };
    return svg("line", line, svg("title", {}, `code changed after step ${step}: ${escapeInvisible(text)}`));
  });
}

function drawCurve({ run, points, line }, xScale, yScale) {
  const style = { stroke: run.color, "stroke-dasharray": run.dash };
  const radius = points.length > 20 ? 2 : 3;
  const dots =
    points.length > 40
      ? []
      : line.map(([x, y]) => svg("circle", { cx: xScale(x), cy: yScale(y), r: radius, fill: run.color }));
  const raw = view.smoothing ? svg("path", { ...style, class: "line raw", d: linePath(points, xScale, yScale) }) : null;
  const path = svg("path", { ...style, class: "line", d: linePath(line, xScale, yScale) });
  return svg("g", { "data-run": run.index }, raw, path, dots);
}

/** Mark the point of each curve that is nearest to `x`, and return these points. Null removes the marks. */
function drawCursor(chart, x) {
  if (!chart.curves.length) return [];
  chart.cursor.replaceChildren();
  if (x === null) return [];
  const nearest = chart.curves.map(({ run, points, line }) => {
    const k = nearestIndex(points, x);
    return { run, x: points[k][0], y: line[k][1], raw: points[k][1] };
  });
  const height = Number(chart.cursor.ownerSVGElement.getAttribute("height"));
  const xs = nearest.map((point) => point.x);
  const position = chart.xScale(Math.min(Math.max(x, Math.min(...xs)), Math.max(...xs)));
  chart.cursor.append(
    svg("line", { x1: position, x2: position, y1: MARGIN.top, y2: height - MARGIN.bottom }),
    ...nearest.map((point) =>
      svg("circle", { cx: chart.xScale(point.x), cy: chart.yScale(point.y), r: 3.5, fill: point.run.color }),
    ),
  );
  return nearest;
}

/** Index of the point nearest to `x`, by bisection. */
function nearestIndex(points, x) {
  let low = 0,
    high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle;
    else high = middle;
  }
  return x - points[low][0] <= points[high][0] - x ? low : high;
}
