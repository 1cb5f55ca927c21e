import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';

const client = fileURLToPath(new URL('../../clients/typescript/src/index.ts', import.meta.url));

export default defineConfig({
  // The client of this repository. Elsewhere: npm install @postern/client
  resolve: { alias: { '@postern/client': client } },
  server: { host: 'localhost', port: 5173, strictPort: true, fs: { allow: ['../..'] } },
  build: { target: 'es2022' },
});
