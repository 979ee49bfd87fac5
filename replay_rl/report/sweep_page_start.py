"""What the page of a sweep does when something is clicked, in JavaScript."""

SCRIPT = r"""
/** Colours the baseline and the cheapest of the arms that pass. */
function colorCheapest() {
  const cheapest =
    order(drawn(), (i) => now.rows[i].median, false)
      .filter((i) => i !== now.baseline);
  const first = drawn().includes(now.baseline) ? [now.baseline] : [];
  state.colored = [...first, ...cheapest].slice(0, MAX_COLORED);
}

function drawLegend() {
  get('legend').replaceChildren(...state.colored.map((i) => {
    const swatch = shape('svg', {
      width: 26, height: 12, viewBox: '0 0 26 12', 'aria-hidden': true,
    }, shape('path', {class: `line ${look(i)}`, d: 'M1 6L25 6'}));
    const isHere = inColor().includes(i);
    const button = element('button', {
      type: 'button', 'aria-label': `Take the colour from ${shortName(i)}`,
      class: isHere ? '' : 'absent',
    }, swatch, shortName(i) + (i === now.baseline ? ' (baseline)' : ''),
    ' ×');
    button.addEventListener('click', () => color(i, false));
    return button;
  }));
}

function color(i, isOn) {
  state.colored = state.colored.filter((other) => other !== i);
  if (isOn) state.colored = [...state.colored, i].slice(0, MAX_COLORED);
  draw();
}

const valueOf = {
  seeds: (i) => arms[i].seeds.length,
  censored: (i) => now.rows[i].numCensored,
  median: (i) => now.rows[i].median,
  saving: (i) => now.rows[i].comparison?.saving ?? null,
  p: (i) => now.rows[i].adjusted,
};

function sortValue(i) {
  const {name} = state.sort;
  if (valueOf[name]) return valueOf[name](i);
  const value = arms[i].fields[name];
  const number = Number(value);
  return value === '' ? null : Number.isNaN(number) ? value : number;
}

function rowOf(i, high) {
  const row = now.rows[i];
  const box = (name, isOn, isOff, change) => {
    const made = element('input', {
      type: 'checkbox', 'aria-label': `${name} ${shortName(i)}`,
    });
    [made.checked, made.disabled] = [isOn, isOff];
    made.addEventListener('change', () => change(made.checked));
    return element('td', {}, made);
  };
  const isColored = state.colored.includes(i);
  const swatch = box(
    'Colour', isColored,
    !isColored && state.colored.length >= MAX_COLORED,
    (isOn) => color(i, isOn));
  if (isColored) swatch.classList.add('swatch', look(i));
  const one = row.comparison;
  const interval = one?.interval
    ? `${percent(one.interval[0])} to ${percent(one.interval[1])}` : '';
  const number = (text) => element('td', {class: 'number'}, text);
  return element('tr', {},
    box('Draw', !state.hidden.has(i), false, (isOn) => {
      if (isOn) state.hidden.delete(i);
      else state.hidden.add(i);
      draw();
    }),
    swatch,
    ...columns.map((field) =>
      element('td', {}, arms[i].fields[field] || '–')),
    number(arms[i].seeds.length), number(row.numCensored),
    number(amount(row.median)),
    element('td', {}, strip(row, high, now.budget)),
    number(i === now.baseline ? 'baseline' : percent(one.saving)),
    number(interval),
    number(probability(row.adjusted)));
}

function drawTable() {
  const places = order(shown(), sortValue, state.sort.isDescending);
  const finite = now.rows.flatMap(({costs}) => costs)
    .filter((cost) => cost < Infinity);
  const budget = now.budget < Infinity ? [now.budget] : [];
  const high = Math.max(1, ...finite, ...budget);
  get('rows').replaceChildren(...places.map((i) => rowOf(i, high)));
  for (const header of document.querySelectorAll('th[data-name]')) {
    const direction = state.sort.isDescending ? 'descending' : 'ascending';
    header.setAttribute('aria-sort',
      header.dataset.name === state.sort.name ? direction : 'none');
  }
  const within = now.budget < Infinity
    ? ` Costs above ${amount(now.budget)}, the least that a seed that did ` +
      'not get there has spent, count as not reached.' : '';
  get('place').textContent =
    `${places.length} of ${arms.length} arms pass the filters, ` +
    `${drawn().length} are drawn, ${inColor().length} in colour ` +
    `(at most ${MAX_COLORED}).${within}`;
}

function draw() {
  drawLegend();
  drawCurves();
  drawSavings();
  drawTable();
}

// One drawing for all moves of a slider within a frame of the screen.
let waiting = false;
function refresh() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    now = compareAll(arms, state.level, state.mu, choice);
    draw();
  });
}

/** The sliders, the fields beside them, and the baseline. */
function listenToNumbers() {
  for (const name of ['level', 'mu']) {
    const inputs = [get(name), get(`${name}-number`)];
    for (const input of inputs) {
      input.value = state[name];
      input.addEventListener('input', () => {
        if (input.value === '' || !input.checkValidity()) return;
        state[name] = Number(input.value);
        inputs.find((other) => other !== input).value = input.value;
        refresh();
      });
    }
  }
  get('baseline').addEventListener('change', ({target}) => {
    const named = JSON.parse(target.value);
    Object.assign(choice, named);
    refresh();
  });
  get('baseline').value = get('baseline').options[0].value;
}

/** The search and the values of the fields. */
function listenToFilters() {
  get('words').value = '';
  get('words').addEventListener('input', ({target}) => {
    state.words = target.value.toLowerCase().trim();
    refresh();
  });
  for (const chip of document.querySelectorAll('button[data-field]')) {
    chip.addEventListener('click', () => {
      const {field, value} = chip.dataset;
      const values = state.allowed[field] ?? [];
      const isOn = !values.includes(value);
      state.allowed[field] = isOn ? [...values, value]
        : values.filter((other) => other !== value);
      chip.setAttribute('aria-pressed', isOn);
      refresh();
    });
  }
}

/** The buttons above the figures, and the headings. */
function listenToButtons() {
  const buttons = {
    all: () => state.hidden.clear(),
    colored: () => arms.forEach((arm, i) => state.colored.includes(i)
      ? state.hidden.delete(i) : state.hidden.add(i)),
    none: () => shown().forEach((i) => state.hidden.add(i)),
    cheapest: colorCheapest,
    clear: () => {
      state.allowed = {};
      [state.words, get('words').value] = ['', ''];
      document.querySelectorAll('button[data-field]').forEach((chip) =>
        chip.setAttribute('aria-pressed', false));
    },
  };
  for (const name in buttons) {
    get(name).addEventListener('click', () => {
      buttons[name]();
      draw();
    });
  }
  for (const header of document.querySelectorAll('th[data-name]')) {
    header.querySelector('button').addEventListener('click', () => {
      const {name} = header.dataset;
      state.sort = {
        name,
        isDescending: state.sort.name === name && !state.sort.isDescending,
      };
      drawTable();
    });
  }
}

function start() {
  ({arms, columns, settings, mus, markedMus} =
    JSON.parse(get('sweep').textContent));
  state = {
    level: settings.level, mu: settings.mu, words: '', allowed: {},
    hidden: new Set(), colored: [],
    sort: {name: 'median', isDescending: false},
  };
  choice = {...settings};
  now = compareAll(arms, state.level, state.mu, choice);
  listenToNumbers();
  listenToFilters();
  listenToButtons();
  let width = 0;
  new ResizeObserver(() => {
    if (get('curves').clientWidth === width) return;
    width = get('curves').clientWidth;
    drawCurves();
    drawSavings();
  }).observe(get('curves'));
  colorCheapest();
  draw();
}

if (typeof document !== 'undefined') start();
"""
