// Numbers for people, and round numbers for axes.

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** A number in few digits: 0.3812, 12.4, 8,123, 1.2e-5. What is no number is shown as it is; nothing, as a dash. */
function told(value) {
  if (value === null || value === undefined) return "–";
  if (!isNumber(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7))
    return value.toExponential(1).replace(".0e", "e").replace("e+", "e").replaceAll("-", "−");
  const text = size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
  return text.replace("-", "−");
}

/** In two digits. */
const brief = (value) => told(Number(value.toPrecision(2)));

/** Large counts: 950, 1.2k, 3.4M. */
function counted(value) {
  if (value < 1000) return told(value);
  const power = Math.min(Math.floor(Math.log10(value) / 3), 4);
  return `${Number((value / 1000 ** power).toPrecision(3))}${["", "k", "M", "G", "T"][power]}`;
}

/** Seconds: 4.2 s, 3 min 05 s, 2 h 10 min. */
function duration(seconds) {
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const minutes = Math.floor(seconds / 60);
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  return minutes < 60
    ? `${minutes} min ${two(seconds % 60)} s`
    : `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}

/** About `count` round numbers within [low, high]. */
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = power * [1, 2, 5, 10].find((factor) => power * factor >= rough);
  const found = [];
  for (let k = Math.ceil(low / unit - 1e-9); k * unit <= high + unit * 1e-9; k++)
    found.push(Number((k * unit).toPrecision(12)));
  return found;
}

/** Powers of ten within [low, high], or round numbers where there are not two of them. */
function powers(low, high) {
  const found = [];
  for (let k = Math.ceil(Math.log10(low)); 10 ** k <= high; k++) found.push(10 ** k);
  const every = Math.ceil(found.length / 5);
  return found.length > 1 ? found.filter((_, k) => k % every === 0) : ticks(low, high, 4).filter((value) => value > 0);
}

/** The value below which a `share` of `values` lies. */
function quantile(values, share) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? sorted[Math.round((sorted.length - 1) * share)] : 0;
}

const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
