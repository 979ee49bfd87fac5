"""The statistics of the page of a sweep, in JavaScript, without a browser.

They are those of `levels`, `level_table` and `curves`, so that a level or a mu
can be chosen in the page; the tests compare both. Only the bootstrap is another
one: medians of resamples have a distribution in closed form, and the page takes
that where `levels` draws from it.
"""

SCRIPT = r"""
'use strict';

/** Returns the costs of a seed at its evaluations. */
function costsOf(seed, mu) {
  return seed.trained.map((rows, i) => rows + mu * seed.generated[i]);
}

/** Returns the cost of a seed at its end. */
function endOf(seed, mu) {
  return seed.end.trained + mu * seed.end.generated;
}

/** The cost of the first of so many evaluations in a row at the level. */
function costToLevel(costs, scores, level, {numEvaluations, tolerance}) {
  let inARow = 0;
  for (let i = 0; i < scores.length; i += 1) {
    inARow = scores[i] >= level - tolerance ? inARow + 1 : 0;
    if (inARow === numEvaluations) return costs[i - numEvaluations + 1];
  }
  return Infinity;
}

/**
 * Returns the costs of all seeds of all arms, and the budget: what each seed
 * that did not get there has spent, at least. What is above it is infinite.
 */
function costsToLevel(arms, level, mu, settings) {
  let budget = Infinity;
  const reached = arms.map((arm) => arm.seeds.map((seed) => {
    const costs = costsOf(seed, mu);
    const cost = costToLevel(costs, seed.scores, level, settings);
    if (cost === Infinity) budget = Math.min(budget, endOf(seed, mu));
    return cost;
  }));
  const costs = reached.map((ofArm) =>
    ofArm.map((cost) => cost > budget ? Infinity : cost));
  return {costs, budget};
}

function sorted(values) {
  return [...values].sort((a, b) => a < b ? -1 : Number(a > b));
}

function median(values) {
  const ordered = sorted(values);
  const half = ordered.length >> 1;
  if (ordered.length % 2) return ordered[half];
  return (ordered[half - 1] + ordered[half]) / 2;
}

/** Returns a quantile, linear between the values. */
function quantile(ordered, share) {
  const place = share * (ordered.length - 1);
  const low = Math.floor(place);
  const high = Math.min(low + 1, ordered.length - 1);
  return ordered[low] + (place - low) * (ordered[high] - ordered[low]);
}

/** Returns 1 - arm / baseline; NaN where both are infinite. */
function saving(arm, baseline) {
  return 1 - arm / baseline;
}

/** Returns P(at least k of n draws are among the lowest i of n values). */
function atLeast(k, n, i) {
  const share = i / n;
  let total = 0;
  let ways = 1;  // n over j.
  for (let j = 0; j <= n; j += 1) {
    if (j >= k) total += ways * share ** j * (1 - share) ** (n - j);
    ways *= (n - j) / (j + 1);
  }
  return total;
}

function choose(n, k) {
  let ways = 1;
  for (let j = 0; j < k; j += 1) ways *= (n - j) / (j + 1);
  return ways;
}

/**
 * Returns the medians of all resamples of the values, rising, and how often
 * each occurs: [{value, share}].
 */
function medians(values) {
  const x = sorted(values);
  const n = x.length;
  const half = n >> 1;
  const points = [];
  if (n % 2) {
    for (let i = 1; i <= n; i += 1) {
      const share = atLeast(half + 1, n, i) - atLeast(half + 1, n, i - 1);
      points.push({value: x[i - 1], share});
    }
    return points;
  }
  const ways = choose(n, half);
  for (let i = 1; i <= n; i += 1) {
    // The lower half ends at i; the upper one begins at i, or at a later j.
    const lower = (i / n) ** half - ((i - 1) / n) ** half;
    let rest = atLeast(half, n, i) - atLeast(half, n, i - 1);
    for (let j = i + 1; j <= n; j += 1) {
      const upper = ((n - j + 1) / n) ** half - ((n - j) / n) ** half;
      const share = ways * lower * upper;
      rest -= share;
      points.push({value: (x[i - 1] + x[j - 1]) / 2, share});
    }
    points.push({value: x[i - 1], share: rest});
  }
  return points.sort((a, b) =>
    a.value < b.value ? -1 : Number(a.value > b.value));
}

/** Returns value -> share of the points that are finite and at most that. */
function cumulative(points) {
  const finite = points.filter(({value}) => value < Infinity);
  const totals = [0];
  finite.forEach(({share}, i) => totals.push(totals[i] + share));
  return (value) => {
    let low = 0;
    let high = finite.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (finite[middle].value <= value) low = middle + 1;
      else high = middle;
    }
    return totals[low];
  };
}

/**
 * Compares the costs of two arms, whose seeds are not paired: {saving,
 * interval, pValue}. The last two are null with too few seeds.
 */
function compare(arm, baseline, {minSeeds, tail}) {
  const saved = saving(median(arm), median(baseline));
  if (Number.isNaN(saved) || Math.min(arm.length, baseline.length) < minSeeds) {
    return {saving: saved, interval: null, pValue: null};
  }
  const ours = medians(arm);
  const theirs = cumulative(medians(baseline));
  const ofFinite = theirs(Infinity);
  const ourFinite = cumulative(ours)(Infinity);
  // Where both are infinite, nothing is known.
  const known = 1 - (1 - ourFinite) * (1 - ofFinite);
  const atMost = (limit) => {
    let total = 0;
    for (const {value, share} of ours) {
      total += share * (
        value === Infinity ? ofFinite : theirs(value / (1 - limit)));
    }
    return total / known;
  };
  const end = (share) => {
    if (atMost(LOWEST) >= share) return -Infinity;
    let low = LOWEST;
    let high = 1;
    for (let i = 0; i < 40; i += 1) {
      const middle = (low + high) / 2;
      if (atMost(middle) >= share) high = middle;
      else low = middle;
    }
    return high;
  };
  return {
    saving: saved, interval: [end(tail), end(1 - tail)], pValue: atMost(0),
  };
}
const LOWEST = -99;  // A lower end of a saving is drawn and written as none.

/** Holm's adjustment of p-values for the number of them; null stays. */
function holm(pValues) {
  const order = pValues.map((p, i) => i).filter((i) => pValues[i] !== null);
  order.sort((i, j) => pValues[i] - pValues[j]);
  const adjusted = pValues.map(() => null);
  let largest = 0;
  order.forEach((i, rank) => {
    largest = Math.max(
      largest, Math.min(1, (order.length - rank) * pValues[i]));
    adjusted[i] = largest;
  });
  return adjusted;
}

/** Returns the place of the baseline: one arm, or the cheapest of some. */
function baselineOf(arms, costs, {baseline, baselines}) {
  if (baseline !== null) return arms.findIndex(({name}) => name === baseline);
  let best = -1;
  arms.forEach(({name}, i) => {
    if (!name.startsWith(baselines)) return;
    if (best < 0 || median(costs[i]) < median(costs[best])) best = i;
  });
  return best;
}

/** Returns what the table says of each arm, at a level and a mu. */
function compareAll(arms, level, mu, settings) {
  const {costs, budget} = costsToLevel(arms, level, mu, settings);
  const baseline = baselineOf(arms, costs, settings);
  const comparisons = costs.map((ofArm, i) => i === baseline ? null
    : compare(ofArm, costs[baseline], settings));
  const adjusted = holm(
    comparisons.map((one) => one === null ? null : one.pValue));
  const rows = costs.map((ofArm, i) => ({
    costs: ofArm,
    median: median(ofArm),
    numCensored: ofArm.filter((cost) => cost === Infinity).length,
    comparison: comparisons[i],
    adjusted: adjusted[i],
  }));
  return {rows, baseline, budget};
}

/**
 * Returns the savings of some arms at each mu, against the best baseline of
 * that mu: for each arm [{mu, saving, interval}].
 *   places: of the arms
 *   hasBands: whether to compute intervals too
 */
function savingsByMu(arms, places, level, mus, settings, hasBands) {
  const lines = places.map(() => []);
  for (const mu of mus) {
    const {costs} = costsToLevel(arms, level, mu, settings);
    const baseline = costs[baselineOf(arms, costs, settings)];
    places.forEach((place, i) => {
      const one = hasBands ? compare(costs[place], baseline, settings)
        : {saving: saving(median(costs[place]), median(baseline))};
      lines[i].push({
        mu, saving: one.saving, interval: one.interval ?? null});
    });
  }
  return lines;
}

/** Interpolates linearly; xs rise, and x is between the first and the last. */
function interpolate(x, xs, ys) {
  let high = xs.findIndex((other) => other >= x);
  if (xs[high] === x) return ys[high];
  const low = high - 1;
  const share = (x - xs[low]) / (xs[high] - xs[low]);
  return ys[low] + share * (ys[high] - ys[low]);
}

/**
 * Returns the quartiles over seeds of the scores of an arm, where all seeds
 * have been: [{cost, low, middle, high}].
 */
function curveOf(arm, mu) {
  const seeds = arm.seeds.map((seed) => (
    {costs: costsOf(seed, mu), scores: seed.scores}));
  if (seeds.some(({costs}) => costs.length === 0)) return [];
  const start = Math.max(...seeds.map(({costs}) => costs[0]));
  const end = Math.min(...seeds.map(({costs}) => costs.at(-1)));
  const axis = [...new Set(seeds.flatMap(({costs}) => costs))]
    .filter((cost) => start <= cost && cost <= end);
  return sorted(axis).map((cost) => {
    const ordered = sorted(seeds.map(({costs, scores}) =>
      interpolate(cost, costs, scores)));
    const [low, middle, high] =
      [0.25, 0.5, 0.75].map((share) => quantile(ordered, share));
    return {cost, low, middle, high};
  });
}

/**
 * Tells whether an arm passes the filters.
 *   words: each must be in its name or in a value, in small letters
 *   allowed: field -> the values allowed; none allows all
 */
function passes(arm, {words, allowed}) {
  for (const field in allowed) {
    const values = allowed[field];
    if (values.length && !values.includes(arm.fields[field])) return false;
  }
  const text = [arm.name, ...Object.values(arm.fields)].join(' ').toLowerCase();
  return words.split(/\s+/).every((word) => text.includes(word));
}

/** Sorts places by a value of each; NaN and null come last in both ways. */
function order(places, valueOf, isDescending) {
  const sign = isDescending ? -1 : 1;
  const isUnknown = (value) => value === null || Number.isNaN(value);
  return [...places].sort((i, j) => {
    const [a, b] = [valueOf(i), valueOf(j)];
    if (isUnknown(a) || isUnknown(b)) return isUnknown(a) - isUnknown(b);
    if (a === b) return i - j;
    return a < b ? -sign : sign;
  });
}

/** Returns round numbers from low to high, about so many. */
function ticks(low, high, number) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, number);
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((factor) => factor * size >= rough);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step;
    i += 1) found.push(Number((i * step).toPrecision(12)));
  return found;
}

/** Returns the curve next to a point of the figure, or null if none is near. */
function nearest(lines, x, y, reach) {
  let best = null;
  let least = reach;
  for (const {place, points} of lines) {
    for (let i = 0; i < points.length; i += 1) {
      const [[x0, y0], [x1, y1]] = [points[i], points[i + 1] ?? points[i]];
      const length = (x1 - x0) ** 2 + (y1 - y0) ** 2;
      const along = length === 0 ? 0 : Math.min(1, Math.max(0,
        ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length));
      const distance = Math.hypot(
        x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0));
      if (distance < least) [best, least] = [place, distance];
    }
  }
  return best;
}

/** Writes three figures with a prefix: 24.1k; 'not reached' if infinite. */
function amount(value) {
  if (value === Infinity) return 'not reached';
  if (Number.isNaN(value)) return '–';
  const rounded = Number(value.toPrecision(3));
  const prefixes = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];
  for (const [size, prefix] of prefixes) {
    if (Math.abs(rounded) >= size) return `${rounded / size}${prefix}`;
  }
  return String(rounded);
}

/** Writes a p-value with four decimals; null as nothing. */
function probability(value) {
  if (value === null) return '';
  return value < 0.00005 ? '< 0.0001' : value.toFixed(4);
}

/** Writes a share in per cent with its sign; a dash where it is not known. */
function percent(share) {
  if (share === null || Number.isNaN(share)) return '–';
  if (share === -Infinity) return 'not reached';
  const rounded = Math.round(100 * share);
  const sign = rounded < 0 ? '−' : '+';
  return `${sign}${Math.abs(rounded)}\u00a0%`;
}
"""
