"""What the page of a sweep draws, in JavaScript; it needs no library.

A library of figures would add megabytes to each page, and would not know of
costs, levels or censored seeds, which the page computes when a slider moves.
"""

SCRIPT = r"""
const MAX_COLORED = 6;  // As many as have a colour that can be told apart.
// The sweep, filled by `start`; see `sweep_page`.
let arms, columns, settings, mus, markedMus;
// What is chosen: `state` what is shown, `choice` the settings with another
// baseline; `now` is what `compareAll` says of it.
let state, choice, now;
const get = (id) => document.getElementById(id);

// Texts go into the page as text nodes only, so that none is read as HTML.
function fill(made, attributes, children) {
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  made.append(...children);
  return made;
}

function element(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function shape(tag, attributes, ...children) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  return fill(made, attributes, children);
}

/** Returns the name of a field without its sections. */
function label(field) {
  return field.slice(field.lastIndexOf('.') + 1);
}

/** Returns a path through points; a point that is null leaves a gap. */
function pathOf(points) {
  let isOn = false;
  return points.map((point) => {
    if (point === null) {
      isOn = false;
      return '';
    }
    const command = isOn ? 'L' : 'M';
    isOn = true;
    return `${command}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
  }).join('');
}

/** Returns a band, in pieces where one of its ends is null. */
function bandOf(points) {
  const pieces = [[]];
  for (const point of points) {
    if (point === null) pieces.push([]);
    else pieces.at(-1).push(point);
  }
  return pieces.filter((piece) => piece.length > 1).map((piece) => {
    const there = piece.map(([x, low]) => [x, low]);
    const back = piece.map(([x, , high]) => [x, high]).reverse();
    return `${pathOf([...there, ...back])}Z`;
  }).join('');
}

/** An empty figure with axes, and the functions of its scales. */
function frame(box, {x, y, xLabel, yLabel, xText, yText}) {
  const width = Math.max(280, box.clientWidth);
  const height = width < 500 ? 260 : 360;
  const left = 52;
  const [right, top, bottom] = [14, 26, 40];
  const scale = ([low, high], from, to) => (value) =>
    from + (value - low) / (high - low || 1) * (to - from);
  const toX = scale(x, left, width - right);
  const toY = scale(y, height - bottom, top);
  const svg = shape('svg', {
    viewBox: `0 0 ${width} ${height}`, width, height, role: 'img',
    'aria-label': `${yLabel} against ${xLabel}`,
  });
  for (const value of ticks(...y, height / 50)) {
    svg.append(
      shape('line', {
        class: 'grid', x1: left, x2: width - right, y1: toY(value),
        y2: toY(value),
      }),
      shape('text', {
        x: left - 6, y: toY(value) + 4, 'text-anchor': 'end',
      }, yText(value)));
  }
  for (const value of ticks(...x, width / 90)) {
    svg.append(
      shape('line', {
        class: 'grid', x1: toX(value), x2: toX(value), y1: top,
        y2: height - bottom,
      }),
      shape('text', {
        x: toX(value), y: height - bottom + 16, 'text-anchor': 'middle',
      }, xText(value)));
  }
  svg.append(shape('text', {
    x: (left + width - right) / 2, y: height - 6, 'text-anchor': 'middle',
  }, xLabel));
  svg.append(shape('text', {x: 4, y: 12}, yLabel));
  const clip = `clip-${box.id}`;
  svg.append(shape('clipPath', {id: clip}, shape('rect', {
    x: left, y: top - 4, width: width - left - right,
    height: height - bottom - top + 8,
  })));
  const inside = shape('g', {'clip-path': `url(#${clip})`});
  svg.append(inside);
  box.replaceChildren(svg);
  return {svg, inside, toX, toY, top, bottom: height - bottom, left,
    right: width - right};
}

/** A triangle that points right: a seed that did not get there. */
function censored(x, y, look) {
  return shape('path', {
    class: `censored ${look}`,
    d: `M${x - 3} ${y - 4}L${x + 5} ${y}L${x - 3} ${y + 4}Z`,
  });
}

/** The costs of the seeds of an arm as dots, on a scale that all arms share. */
function strip(row, high, budget) {
  const [width, height] = [150, 18];
  const toX = (cost) => 4 + cost / high * (width - 26);
  const reached = row.costs.filter((cost) => cost < Infinity);
  const words = [
    reached.map((cost) => amount(cost)).join(', '),
    row.numCensored ? `${row.numCensored} not within ${amount(budget)}` : '',
  ].filter((text) => text).join('; ');
  const svg = shape('svg', {
    width, height, viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': words,
  }, shape('title', {}, words));
  svg.append(shape('line', {
    class: 'grid', x1: 4, x2: width - 22, y1: height / 2, y2: height / 2,
  }));
  for (const cost of reached) {
    svg.append(shape('circle', {cx: toX(cost), cy: height / 2, r: 3}));
  }
  if (row.numCensored) {
    const x = Math.min(toX(budget), width - 22);
    svg.append(censored(x, height / 2, ''));
    svg.append(shape('text', {x: x + 7, y: height / 2 + 4}, row.numCensored));
  }
  return svg;
}

/** The places of the arms that pass the filters; that are drawn; in colour. */
function shown() {
  return arms.map((arm, i) => i).filter((i) => passes(arms[i], state));
}

function drawn() {
  return shown().filter((i) => !state.hidden.has(i));
}

function inColor() {
  const places = new Set(drawn());
  return state.colored.filter((i) => places.has(i));
}

/** The name of an arm: the values of the columns, if no other has the same. */
function shortName(i) {
  const valuesOf = (arm) => columns.map((field) => arm.fields[field] || '–');
  const key = valuesOf(arms[i]).join(' · ');
  const isAlone = arms.every((arm, j) =>
    i === j || valuesOf(arm).join(' · ') !== key);
  return columns.length && isAlone ? key : arms[i].name;
}

function look(i) {
  return `c${state.colored.indexOf(i)}`;
}

function drawCurves() {
  const box = get('curves');
  const colored = inColor();
  const curves = drawn().map((i) => ({i, curve: curveOf(arms[i], state.mu)}))
    .filter(({curve}) => curve.length);
  const ends = curves.map(({curve}) => curve.at(-1).cost);
  const lastScores = colored.flatMap((i) => arms[i].seeds.map(
    ({scores}) => scores.at(-1)).filter((score) => score !== undefined));
  const values = curves.flatMap(({curve}) =>
    curve.flatMap(({low, high}) => [low, high])).concat(lastScores);
  const {inside, svg, toX, toY, left, right} = frame(box, {
    x: [0, Math.max(1, ...ends)],
    y: [Math.min(state.level, ...values), Math.max(state.level, ...values)],
    xLabel: `cost units per seed, μ = ${state.mu}`, yLabel: settings.score,
    xText: amount, yText: String,
  });
  const line = (curve) =>
    curve.map(({cost, middle}) => [toX(cost), toY(middle)]);
  inside.append(shape('line', {
    class: 'level', x1: left, x2: right, y1: toY(state.level),
    y2: toY(state.level),
  }));
  const front = [];
  for (const {i, curve} of curves) {
    const d = pathOf(line(curve));
    if (!colored.includes(i)) {
      inside.append(shape('path', {class: 'line grey', d}));
      continue;
    }
    const band = curve.map(({cost, low, high}) =>
      [toX(cost), toY(low), toY(high)]);
    inside.append(shape('path', {class: `band ${look(i)}`, d: bandOf(band)}));
    front.push(shape('path', {class: `line ${look(i)}`, d}));
    arms[i].seeds.forEach((seed, s) => {
      const cost = now.rows[i].costs[s];
      if (cost < Infinity) {
        front.push(shape('circle', {
          class: `dot ${look(i)}`, cx: toX(cost), cy: toY(state.level), r: 3,
        }));
      } else if (seed.scores.length) {
        front.push(censored(
          Math.min(toX(costsOf(seed, state.mu).at(-1)), right - 6),
          toY(seed.scores.at(-1)), look(i)));
      }
    });
  }
  inside.append(...front);
  point(svg, get('at-curves'), curves.map(({i, curve}) =>
    ({place: i, points: line(curve)})));
}

/** Names the curve next to the pointer. */
function point(svg, output, lines) {
  const mark = shape('path', {class: 'line pointed'});
  svg.append(mark);
  output.textContent = '';
  svg.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect();
    const i = nearest(
      lines, event.clientX - box.left, event.clientY - box.top, 16);
    const line = lines.find(({place}) => place === i);
    mark.setAttribute('d', line ? pathOf(line.points) : '');
    output.textContent = line ? shortName(i) : '';
  });
}

function drawSavings() {
  const box = get('savings');
  const colored = inColor().filter((i) => i !== now.baseline);
  const grey = drawn().filter((i) =>
    i !== now.baseline && !colored.includes(i));
  const within = mus.includes(state.mu) || state.mu < mus[0] ||
    state.mu > mus.at(-1) ? mus : [...mus, state.mu].sort((a, b) => a - b);
  const [front, back] = [[colored, true], [grey, false]].map(
    ([places, hasBands]) => savingsByMu(
      arms, places, state.level, within, choice, hasBands));
  const finite = front.flat().flatMap(({saving, interval}) =>
    [saving, ...(interval ?? [])])
    .filter(Number.isFinite).map((value) => Math.max(-1, value));
  const {inside, svg, toX, toY, top, bottom, left, right} = frame(box, {
    x: [within[0], within.at(-1)],
    y: [Math.min(-0.05, ...finite), Math.max(0.1, ...finite)],
    xLabel: 'μ, cost of generating a rollout over training on it',
    yLabel: `saving of cost to ${state.level}`,
    xText: String, yText: percent,
  });
  const line = (points) => points.map(({mu, saving}) =>
    Number.isFinite(saving) ? [toX(mu), toY(saving)] : null);
  if (finite.length === 0) {
    inside.append(shape('text', {
      x: (left + right) / 2, y: top + 20, 'text-anchor': 'middle',
    }, 'no saving is known'));
  }
  inside.append(shape('line', {
    class: 'zero', x1: left, x2: right, y1: toY(0), y2: toY(0),
  }));
  for (const mu of [...markedMus, state.mu]) {
    inside.append(shape('line', {
      class: mu === state.mu ? 'level' : 'zero', x1: toX(mu), x2: toX(mu),
      y1: top, y2: bottom,
    }));
  }
  for (const points of back) {
    const d = pathOf(line(points));
    inside.append(shape('path', {class: 'line grey', d}));
  }
  const lineOf = [];
  front.forEach((points, k) => {
    const band = points.map(({mu, interval}) => interval === null ? null
      : [toX(mu), toY(Math.max(-9, interval[0])),
        toY(Math.max(-9, interval[1]))]);
    const [d, ofArm] = [pathOf(line(points)), look(colored[k])];
    inside.append(shape('path', {class: `band ${ofArm}`, d: bandOf(band)}));
    lineOf.push(shape('path', {class: `line ${ofArm}`, d}));
  });
  inside.append(...lineOf);
  const lines = [...front, ...back].map((points, k) => ({
    place: [...colored, ...grey][k],
    points: line(points).filter((one) => one !== null),
  }));
  point(svg, get('at-savings'), lines);
}
"""
