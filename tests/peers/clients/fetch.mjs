// fetch of Node, and undici's own request.
import { request } from "undici";

const url = process.argv[2];
for (const method of ["GET", "POST", "HEAD"]) {
  const body = method === "POST" ? "hello" : undefined;
  console.log(`fetch ${method} ${(await fetch(url, { method, body })).status}`);
  const response = await request(url, { method, body });
  await response.body.dump();
  console.log(`undici ${method} ${response.statusCode}`);
}
