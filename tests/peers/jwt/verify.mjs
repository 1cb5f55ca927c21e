// Verifies a corpus of tokens with jose and aws-jwt-verify; see ./run.
import { readFileSync } from "node:fs";
import { CognitoJwtVerifier } from "aws-jwt-verify";
import { createLocalJWKSet, jwtVerify } from "jose";

const corpus = JSON.parse(readFileSync(process.argv[2], "utf8"));
const version = (name) =>
  JSON.parse(readFileSync(new URL(`./node_modules/${name}/package.json`, import.meta.url), "utf8")).version;
const report = (peer, verdicts) =>
  console.log(JSON.stringify({ peer, version: version(peer), verdicts: verdicts.join("") }));

const keys = createLocalJWKSet(corpus.jwks);
const jose = [];
for (const token of corpus.tokens) {
  try {
    const { payload } = await jwtVerify(token, keys, {
      issuer: corpus.issuer,
      algorithms: ["RS256", "ES256", "EdDSA"],
      clockTolerance: corpus.leewaySeconds,
      requiredClaims: ["exp", "sub"],
    });
    jose.push(payload.token_use === "access" && payload.client_id === corpus.clientId ? 1 : 0);
  } catch {
    jose.push(0);
  }
}
report("jose", jose);

const verifier = CognitoJwtVerifier.create({
  userPoolId: corpus.poolId,
  tokenUse: "access",
  clientId: corpus.clientId,
  graceSeconds: corpus.leewaySeconds,
});
verifier.cacheJwks(corpus.jwks);
report(
  "aws-jwt-verify",
  corpus.tokens.map((token) => {
    try {
      verifier.verifySync(token);
      return 1;
    } catch {
      return 0;
    }
  }),
);
