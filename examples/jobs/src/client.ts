import { createClient } from '@postern/client';

export const client = createClient({ url: import.meta.env.VITE_GATEWAY ?? 'http://127.0.0.1:8500' });
