"""The JavaScript of the page of samples; it needs no library.

The functions before `element` take plain values, and the tests run them outside
a browser. Those from `element` on build the page.
"""

SCRIPT = r"""
'use strict';

const TEXTS = ['prompt', 'response', 'reference'];

/** Returns one object per sample; equal texts are stored once in the page. */
function unpack({columns, interned, rows, texts}) {
  const isInterned = columns.map((name) => interned.includes(name));
  const value = (cell, i) => isInterned[i] ? texts[cell] : cell;
  return rows.map((row) => Object.fromEntries(
    row.map((cell, i) => [columns[i], value(cell, i)])));
}

/**
 * Tells whether a sample passes all filters.
 *   equal: name -> the only value allowed
 *   ranges: name -> [lowest, highest], both allowed; null is in no range
 *   words: text that one of the texts holds, in small letters; '' for any
 */
function matches(sample, {equal, ranges, words}) {
  for (const name in equal) {
    if (sample[name] !== equal[name]) return false;
  }
  for (const name in ranges) {
    const [low, high] = ranges[name];
    if (sample[name] === null) return false;
    if (sample[name] < low || sample[name] > high) return false;
  }
  return TEXTS.some((name) =>
    sample[name] !== null && sample[name].toLowerCase().includes(words));
}

/**
 * Returns the samples that pass, sorted by `order.name`. Equal ones keep
 * the order of the file in both directions; null comes last in both.
 */
function select(samples, filters, order) {
  const passing = samples.filter((sample) => matches(sample, filters));
  if (order.name === null) return passing;
  const sign = order.isDescending ? -1 : 1;
  return passing.sort((one, two) => {
    const [a, b] = [one[order.name], two[order.name]];
    if (a === b) return 0;
    if (a === null || b === null) return a === null ? 1 : -1;
    return a < b ? -sign : sign;
  });
}

// Characters that cannot be seen, or that would reorder the text around them.
// A surrogate (Cs) is matched only where it has lost its other half.
const ODD =
  /[\p{Cs}\p{Bidi_Control}\u200b\u2028\u2029\ufeff]|(?![\n\t])\p{Cc}/gu;

/** Names an odd character by its code point, as fonts lack its picture. */
function nameOf(character) {
  const code = character.codePointAt(0).toString(16).toUpperCase();
  return `U+${code.padStart(4, '0')}`;
}

/** Splits a text into pieces {text, isOdd}; odd characters become names. */
function pieces(text) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(ODD)) {
    if (match.index > end) {
      parts.push({text: text.slice(end, match.index), isOdd: false});
    }
    parts.push({text: nameOf(match[0]), isOdd: true});
    end = match.index + match[0].length;
  }
  if (end < text.length) parts.push({text: text.slice(end), isOdd: false});
  return parts;
}

/** Returns the start of a text as one line, never half a character. */
function preview(text, length) {
  const characters = Array.from(text.slice(0, 2 * length));
  const start = characters.slice(0, length).join('');
  const rest = start.length < text.length ? '…' : '';
  return start.replaceAll('\n', '↵') + rest;
}

/** Writes a number with four figures, a truth value as a word, null as –. */
function shown(value) {
  if (value === null) return '–';
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (Number.isInteger(value)) return String(value).replace('-', '−');
  return String(Number(value.toPrecision(4))).replace('-', '−');
}

/** Says of a sample whether its answer is right; – where the file does not. */
function verdict(isCorrect) {
  return isCorrect === null ? '–' : isCorrect ? 'right' : 'wrong';
}

/** Tells whether two samples are of one group. */
function isSameGroup(one, other) {
  return ['arm', 'iteration', 'seed', 'group_id'].every(
    (name) => one[name] === other[name]);
}

/** Reads the form: empty fields filter nothing. */
function readFilters(fields) {
  const filters = {equal: {}, ranges: {}, words: ''};
  for (const {name, kind, value} of fields) {
    if (value === '') continue;
    if (kind === 'equal') filters.equal[name] = JSON.parse(value);
    if (kind === 'words') filters.words = value.toLowerCase();
    if (kind === 'low' || kind === 'high') {
      filters.ranges[name] ??= [-Infinity, Infinity];
      filters.ranges[name][kind === 'low' ? 0 : 1] = Number(value);
    }
  }
  return filters;
}

// Texts go into the page as text nodes only, so that none is read as HTML.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  made.append(...children);
  return made;
}

function marked(text) {
  return pieces(text).map((piece) =>
    piece.isOdd ? element('span', {class: 'odd'}, piece.text) : piece.text);
}

function cell(sample, name) {
  const value = sample[name];
  if (TEXTS.includes(name)) {
    const text = value === null ? ['–'] : marked(preview(value, 160));
    const lines = element('div', {}, ...text);
    return element('td', {class: `text ${name}`}, lines);
  }
  if (name === 'is_correct') return element('td', {}, verdict(value));
  if (name === 'arm') return element('td', {class: 'arm'}, value);
  const side = typeof value === 'number' ? {class: 'number'} : {};
  return element('td', {...side, title: String(value)}, shown(value));
}

function block(sample, name) {
  const value = sample[name];
  const count = value === null ? 'none'
    : `${Array.from(value).length.toLocaleString('en')} characters`;
  const text = value === null ? [] : marked(value);
  return [
    element('h3', {}, `${name} `, element('small', {}, count)),
    ...(value === null ? [] : [element('pre', {tabindex: '0'}, ...text)]),
  ];
}

function start() {
  const get = (id) => document.getElementById(id);
  const packed = JSON.parse(get('samples').textContent);
  const samples = unpack(packed);
  const form = get('filters');
  const headers = [...document.querySelectorAll('th')];
  const order = {name: null, isDescending: false};
  let selected = samples;
  let first = 0;

  // The full texts are put into the page only when they are asked for.
  function rowsOf(sample, number, isFirst) {
    const id = `texts-${number}`;
    const button = element('button', {
      type: 'button', 'aria-controls': id,
      'aria-label': `Full texts of sample ${number}`,
    });
    const content =
      element('td', {colspan: String(packed.columns.length + 1)});
    const texts = element('tr', {id, class: 'texts'}, content);
    const open = (isOpen) => {
      button.textContent = isOpen ? '▾' : '▸';
      button.setAttribute('aria-expanded', String(isOpen));
      texts.hidden = !isOpen;
      content.replaceChildren(...(
        isOpen ? TEXTS.flatMap((name) => block(sample, name)) : []));
    };
    open(get('open').checked);
    button.addEventListener('click', () => open(texts.hidden));
    const cells = packed.columns.map((name) => cell(sample, name));
    const start = isFirst ? {class: 'first'} : {};
    return [element('tr', start, element('td', {}, button), ...cells), texts];
  }

  function draw() {
    const size = Number(get('size').value);
    const last = Math.min(first + size, selected.length);
    const isFirst = (i) => order.name === null &&
      (i === first || !isSameGroup(selected[i - 1], selected[i]));
    get('rows').replaceChildren(...selected.slice(first, last).flatMap(
      (sample, i) => rowsOf(sample, first + i + 1, isFirst(first + i))));
    const count = (number) => number.toLocaleString('en');
    get('place').textContent = selected.length === 0
      ? `none of ${count(samples.length)} samples`
      : `${count(first + 1)} to ${count(last)} of ${count(selected.length)} ` +
        `samples (${count(samples.length)} without filters)`;
    get('previous').disabled = first === 0;
    get('next').disabled = last === selected.length;
  }

  function turn(direction) {
    const size = Number(get('size').value);
    const place = first + direction * size;
    if (place < 0 && first === 0 || place >= selected.length) return;
    first = Math.max(0, place);
    draw();
  }

  function refresh() {
    const fields = [...form.querySelectorAll('[data-kind]')].map((field) => (
      {name: field.name, kind: field.dataset.kind, value: field.value}));
    selected = select(samples, readFilters(fields), order);
    first = 0;
    draw();
  }

  for (const header of headers) {
    header.querySelector('button').addEventListener('click', () => {
      order.isDescending =
        order.name === header.dataset.name && !order.isDescending;
      order.name = header.dataset.name;
      const direction = order.isDescending ? 'descending' : 'ascending';
      headers.forEach((other) => other.setAttribute(
        'aria-sort', other === header ? direction : 'none'));
      refresh();
    });
  }

  // A pause in typing, so that a long search is not done for every letter.
  let timer;
  form.addEventListener('input', () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, 150);
  });
  form.addEventListener('submit', (event) => event.preventDefault());
  // The fields are emptied only after this event.
  form.addEventListener('reset', () => setTimeout(refresh));
  get('previous').addEventListener('click', () => turn(-1));
  get('next').addEventListener('click', () => turn(1));
  get('open').addEventListener('change', draw);
  get('size').addEventListener('change', refresh);
  document.addEventListener('keydown', (event) => {
    const isTyping = event.target.closest('input:not([type=checkbox]), select');
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === 'n') turn(1);
    if (event.key === 'p') turn(-1);
    if (event.key === '/') {
      event.preventDefault();
      get('words').focus();
    }
  });
  refresh();  // A browser may have kept the filters of the last visit.
}

if (typeof document !== 'undefined') start();
"""
