// Triggers of the Cognito user pool in which people sign in. They let postern-auth sign social users in without a password
// (CUSTOM_AUTH) and create them (SignUp). Both prove by SOCIAL_PROOF_KEY, 32 bytes in Base64, that postern-auth asks.
//
// One handler serves the four triggers DefineAuthChallenge, CreateAuthChallenge, VerifyAuthChallengeResponse and PreSignUp.
import { createCipheriv, createHash, createHmac, hkdfSync, randomBytes, timingSafeEqual } from 'node:crypto';

const MAX_AGE_S = 60; // also the tolerance for clocks
const KEY = Buffer.from(process.env.SOCIAL_PROOF_KEY ?? '', 'base64');
if (KEY.length !== 32) throw new Error('SOCIAL_PROOF_KEY must be 32 bytes in Base64');

// Returns whether a proof states this of the user, for the app client, within a minute of now.
function holds(proof, statement, user, client, nonce) {
  const [time, tag, ...rest] = String(proof).split('.');
  if (rest.length > 0 || !/^[0-9]{1,12}$/.test(time) || tag === undefined) return false;
  const lines = ['postern social proof v1', statement, user, client, nonce, time].join('\n');
  const expected = createHmac('sha256', KEY).update(lines).digest();
  const sent = Buffer.from(tag, 'base64url');
  return sent.length === expected.length && timingSafeEqual(sent, expected)
    && Math.abs(Math.floor(Date.now() / 1000) - Number(time)) <= MAX_AGE_S;
}

// Seals the account for postern-auth. The text has one length, also if there is no account.
function sealAccount({ sub = '', email = '', email_verified: verified }, nonce) {
  const iv = randomBytes(12);
  const key = Buffer.from(hkdfSync('sha256', KEY, 'postern social account v1', nonce, 32));
  const cipher = createCipheriv('aes-256-gcm', key, iv);
  cipher.setAAD(Buffer.from(nonce));
  const digest = email && createHash('sha256').update(email.toLowerCase()).digest('base64url');
  const plain = (verified === 'true' ? '1' : '0') + sub.padEnd(36) + digest.padEnd(43);
  return Buffer.concat([iv, cipher.update(plain), cipher.final(), cipher.getAuthTag()]).toString('base64url');
}

// One challenge, one answer. A user who does not exist gets the same challenge and fails at the answer.
function defineAuthChallenge({ request, response }) {
  const session = request.session ?? [];
  const [first] = session;
  response.issueTokens = session.length === 1 && first.challengeName === 'CUSTOM_CHALLENGE'
    && first.challengeResult === true && !request.userNotFound;
  response.failAuthentication = !response.issueTokens && session.length > 0;
  if (session.length === 0) response.challengeName = 'CUSTOM_CHALLENGE';
}

function createAuthChallenge({ request, response }) {
  const nonce = randomBytes(16).toString('base64url');
  const account = sealAccount(request.userNotFound ? {} : request.userAttributes ?? {}, nonce);
  response.publicChallengeParameters = { nonce, account };
  response.privateChallengeParameters = { nonce };
}

function verifyAuthChallenge({ request, response, callerContext }) {
  const { sub } = request.userAttributes ?? {};
  const { nonce } = request.privateChallengeParameters ?? {};
  response.answerCorrect = !request.userNotFound && Boolean(sub) && Boolean(nonce)
    && holds(request.challengeAnswer, 'sign-in', sub, callerContext.clientId, nonce);
}

// A registration without a proof is Cognito's ordinary one: its address is confirmed by a code.
function preSignUp({ triggerSource, request, response, callerContext }) {
  const proof = request.clientMetadata?.social_proof;
  if (proof === undefined || triggerSource !== 'PreSignUp_SignUp') return;
  const email = (request.userAttributes.email ?? '').toLowerCase();
  if (!email || !holds(proof, 'sign-up', email, callerContext.clientId, '')) throw new Error('invalid social_proof');
  response.autoConfirmUser = true;
  response.autoVerifyEmail = true;
}

const TRIGGERS = {
  DefineAuthChallenge: defineAuthChallenge,
  CreateAuthChallenge: createAuthChallenge,
  VerifyAuthChallengeResponse: verifyAuthChallenge,
  PreSignUp: preSignUp,
};

export async function handler(event) {
  TRIGGERS[event.triggerSource.split('_')[0]](event);
  return event;
}
