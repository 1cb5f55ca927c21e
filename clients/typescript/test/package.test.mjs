import { readFileSync, readdirSync } from 'node:fs';
import openapi, { astToString } from 'openapi-typescript';
import { expect, test } from 'vitest';

const folder = new URL('../', import.meta.url);
const read = (name) => readFileSync(new URL(name, folder), 'utf8');

test('types are generated from the document (npm run generate)', async () => {
  const types = astToString(await openapi(new URL('../../conf/openapi.json', folder)));
  const committed = read('src/openapi.ts');
  expect(committed.slice(committed.indexOf('export interface paths')).trim()).toBe(types.trim());
}, 60_000);

test('the package is small and has no dependencies', () => {
  const sources = readdirSync(new URL('src', folder)).filter((name) => name !== 'openapi.ts');
  const lines = sources.map((name) => read(`src/${name}`).split('\n').length);
  expect(lines.reduce((sum, count) => sum + count)).toBeLessThanOrEqual(700);
  expect(JSON.parse(read('package.json')).dependencies).toBeUndefined();
});
