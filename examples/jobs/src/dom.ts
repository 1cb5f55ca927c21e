type Child = Node | string | null | undefined | false;
type Properties = Record<string, string | number | boolean | ((event: Event) => void) | undefined>;

/** Creates an element. Functions are listeners; texts never become HTML. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Properties = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (typeof value === 'function') element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, '');
    else if (value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function date(instant: string): string {
  return new Date(instant).toLocaleString('en', { dateStyle: 'medium', timeStyle: 'short' });
}
