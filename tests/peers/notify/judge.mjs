// Checks requests with the official clients: see ./run.
import { createECDH } from "node:crypto";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { EventEmitter } from "node:events";
import { Readable } from "node:stream";
import https from "node:https";
import ece from "http_ece";
import { EventWebhook } from "@sendgrid/eventwebhook";
import { importJWK, importSPKI, jwtVerify } from "jose";
import { Webhook } from "standardwebhooks";

const require = createRequire(import.meta.url);
const twilio = require("twilio");
const MessageValidator = require("sns-validator");

// The SNS validator fetches the certificate itself; here it receives the certificate of the case, for a URL that it has
// accepted.
let certificate = "";
https.get = (_url, answered) => {
  const answer = Readable.from([Buffer.from(certificate)]);
  answer.statusCode = 200;
  answered(answer);
  return new EventEmitter();
};

const plain = (value) => Buffer.from(value, "base64url");

const cases = {
  "twilio-sign": ({ token, url, params }) => twilio.getExpectedTwilioSignature(token, url, params),
  "twilio-verify": ({ token, signature, url, params }) => twilio.validateRequest(token, signature, url, params),
  "standard-sign": ({ secret, id, seconds, body }) => new Webhook(secret).sign(id, new Date(seconds * 1000), body),
  // The library uses the system clock; only its result for the signature is used here.
  "standard-verify": ({ secret, headers, body }) => {
    const now = Date.now;
    Date.now = () => Number(headers["webhook-timestamp"]) * 1000;
    try {
      new Webhook(secret).verify(body, headers);
      return true;
    } catch {
      return false;
    } finally {
      Date.now = now;
    }
  },
  "sendgrid-verify": ({ key, signature, timestamp, body }) => {
    try {
      const judge = new EventWebhook();
      return judge.verifySignature(judge.convertPublicKeyToECDSA(key), body, signature, timestamp);
    } catch {
      return false;
    }
  },
  "sns-verify": ({ pem, message }) => {
    certificate = pem;
    return new Promise((resolve) => new MessageValidator().validate(message, (error) => resolve(!error)));
  },
  "web-push-open": async ({ body, privateKey, publicKey, auth, authorization }) => {
    const browser = createECDH("prime256v1");
    browser.setPrivateKey(plain(privateKey));
    if (!browser.getPublicKey().equals(plain(publicKey))) throw new Error("the keys do not belong together");
    const text = ece.decrypt(plain(body), { version: "aes128gcm", privateKey: browser, authSecret: auth });
    const [, token, key] = /^vapid t=([^,]+), k=(.+)$/.exec(authorization);
    const point = plain(key);
    const jwk = {
      kty: "EC",
      crv: "P-256",
      x: point.subarray(1, 33).toString("base64url"),
      y: point.subarray(33).toString("base64url"),
    };
    const verified = await jwtVerify(token, await importJWK(jwk, "ES256"), { currentDate: new Date(0) });
    return { text: text.toString(), claims: verified.payload };
  },
  "fcm-assertion": async ({ assertion, key, audience }) => {
    const options = { audience, currentDate: new Date(0) };
    const verified = await jwtVerify(assertion, await importSPKI(key, "RS256"), options);
    return verified.payload;
  },
};

const asked = JSON.parse(readFileSync(0, "utf8"));
const answers = [];
for (const [name, about] of asked) {
  answers.push(await cases[name](about));
}
console.log(JSON.stringify(answers));
