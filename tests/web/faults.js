// What is wrong with names, labels, ids, headings, tables, and the width of the page (WCAG 2.2, level AA).
() => {
  const found = [];
  const name = (element) => (
    element.getAttribute('aria-label')
    || (element.getAttribute('aria-labelledby') || '').split(' ').map((id) => document.getElementById(id)?.textContent || '').join(' ')
    || [...(element.labels || [])].map((label) => label.textContent).join(' ')
    || element.textContent || ''
  ).trim();
  const named = 'input, select, button, a[href], dialog, [role=listbox], [role=option], [role=meter], [role=region]';
  for (const element of document.querySelectorAll(named)) {
    const labels = [...(element.labels ?? [])].map((label) => label.textContent.trim()).join('');
    const own = ['INPUT', 'SELECT'].includes(element.tagName) ? labels : name(element);
    if (!own) found.push(`no name: ${element.outerHTML.slice(0, 90)}`);
  }
  for (const element of document.querySelectorAll('section')) if (!name(element)) found.push(`no name: section ${element.className}`);
  for (const element of document.querySelectorAll('[role=meter]')) {
    for (const each of ['aria-valuenow', 'aria-valuemin', 'aria-valuemax', 'aria-valuetext']) {
      if (!element.hasAttribute(each)) found.push(`meter lacks ${each}`);
    }
  }
  for (const attribute of ['aria-labelledby', 'aria-activedescendant', 'for']) {
    for (const element of document.querySelectorAll(`[${attribute}]`)) {
      for (const id of element.getAttribute(attribute).split(' ')) if (!document.getElementById(id)) found.push(`${attribute} names nobody: ${id}`);
    }
  }
  const ids = [...document.querySelectorAll('[id]')].map((element) => element.id);
  for (const id of new Set(ids)) if (ids.filter((each) => each === id).length > 1) found.push(`id twice: ${id}`);
  for (const element of document.querySelectorAll('[tabindex]')) if (element.tabIndex > 0) found.push(`tabindex above 0: ${element.id}`);
  for (const element of document.querySelectorAll('svg')) {
    if (element.getAttribute('aria-hidden') !== 'true' && !element.getAttribute('aria-label')) found.push('a picture without words');
  }
  for (const landmark of ['header', 'main']) if (document.querySelectorAll(`body > ${landmark}`).length !== 1) found.push(`${landmark}: not one`);
  let before = 0;
  for (const heading of document.querySelectorAll('h1, h2, h3, h4')) {
    if (!heading.checkVisibility()) continue;
    const level = Number(heading.tagName[1]);
    if (level > before + 1) found.push(`heading ${level} after ${before}: ${heading.textContent}`);
    before = level;
  }
  if (!document.documentElement.lang) found.push('no language');
  for (const table of document.querySelectorAll('table')) {
    for (const head of table.querySelectorAll('th')) if (!head.scope) found.push(`a table's head without scope: ${head.textContent}`);
  }
  const width = document.documentElement.scrollWidth - innerWidth;
  if (width > 0) found.push(`${width} pixels too wide`);
  return found;
}
