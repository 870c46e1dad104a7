// Formats numbers, and computes ticks and statistics.

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** Format a number in few digits: 0.3812, 12.4, 8,123, 1.2e-5. Missing values become a dash, other types strings. */
function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  if (!isNumber(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7))
    return value.toExponential(1).replace(".0e", "e").replace("e+", "e").replaceAll("-", "−");
  const text = size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
  return text.replace("-", "−");
}

/** Format a number in two digits. */
const formatBrief = (value) => formatNumber(Number(value.toPrecision(2)));

/** Format a count: 950, 1.2k, 3.4M. */
function formatCount(value) {
  if (value < 1000) return formatNumber(value);
  const power = Math.min(Math.floor(Math.log10(value) / 3), 4);
  return `${Number((value / 1000 ** power).toPrecision(3))}${["", "k", "M", "G", "T"][power]}`;
}

/** Format seconds: 4.2 s, 3 min 05 s, 2 h 10 min. */
function formatDuration(seconds) {
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  const twoDigits = (value) => String(Math.floor(value)).padStart(2, "0");
  return minutes < 60
    ? `${minutes} min ${twoDigits(seconds % 60)} s`
    : `${Math.floor(minutes / 60)} h ${twoDigits(minutes % 60)} min`;
}

/** About `count` round numbers within [low, high]. */
function linearTicks(low, high, count) {
  const minStep = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(minStep));
  const step = power * [1, 2, 5, 10].find((factor) => power * factor >= minStep);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++)
    ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

/** Powers of ten within [low, high]; linear ticks if there are fewer than two powers. */
function logTicks(low, high) {
  const powers = [];
  for (let k = Math.ceil(Math.log10(low)); 10 ** k <= high; k++) powers.push(10 ** k);
  const stride = Math.ceil(powers.length / 5);
  return powers.length > 1
    ? powers.filter((_, k) => k % stride === 0)
    : linearTicks(low, high, 4).filter((value) => value > 0);
}

/** The quantile of `values` at `fraction`; 0 if there are no values. */
function quantile(values, fraction) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? sorted[Math.round((sorted.length - 1) * fraction)] : 0;
}

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
