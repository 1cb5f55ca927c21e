// Tests of conf/cognito/triggers with events as the Amazon Cognito developer guide documents them ("Custom authentication
// challenge Lambda triggers", "Pre sign-up Lambda trigger"). The proofs are those of common/core/src/identity/social_proof.rs.
import assert from 'node:assert/strict';
import { createDecipheriv, createHash, createHmac, hkdfSync } from 'node:crypto';
import { mock, test } from 'node:test';

const KEY = Buffer.alloc(32, 1);
process.env.SOCIAL_PROOF_KEY = KEY.toString('base64');
const { handler } = await import('../../../conf/cognito/triggers/index.mjs');

const SUB = '8a4f5c1e-2b6d-4c57-9a0f-3f1d7be6c002';
const NOW_S = 1795159800;
const SIGN_IN = '1795159800.L15P3VYV_vVdrKWmYdvmHQEg_SGonYMcIbWLwcmk77k';
const SIGN_UP = '1795159800.ONF9Y5XQHEZ7DairSqbIX3OHKSKXDNvYcZKWPx31934';
const ADA = { sub: SUB, email: 'Ada@example.com', email_verified: 'true', 'cognito:user_status': 'CONFIRMED' };

mock.timers.enable({ apis: ['Date'], now: NOW_S * 1000 });

// Sends an event of a trigger, with the common members, and returns the response.
async function send(triggerSource, request, response, clientId = 'client') {
  const event = {
    version: '1',
    region: 'us-west-2',
    userPoolId: 'us-west-2_EXAMPLE',
    userName: SUB,
    callerContext: { awsSdkVersion: 'aws-sdk-unknown-unknown', clientId },
    triggerSource,
    request,
    response,
  };
  return (await handler(event)).response;
}

const define = (session, more = {}) => send(
  'DefineAuthChallenge_Authentication',
  { userAttributes: ADA, session, ...more },
  { challengeName: null, issueTokens: null, failAuthentication: null },
);
const create = (more = {}) => send(
  'CreateAuthChallenge_Authentication',
  { userAttributes: ADA, challengeName: 'CUSTOM_CHALLENGE', session: [], ...more },
  { publicChallengeParameters: null, privateChallengeParameters: null, challengeMetadata: null },
);
const verify = async (challengeAnswer, more = {}, clientId = 'client') => (await send(
  'VerifyAuthChallengeResponse_Authentication',
  { userAttributes: ADA, privateChallengeParameters: { nonce: 'n-1' }, challengeAnswer, ...more },
  { answerCorrect: null },
  clientId,
)).answerCorrect;
const signUp = (clientMetadata, more = {}, source = 'PreSignUp_SignUp', clientId = 'client') => send(
  source,
  { userAttributes: { email: 'ada@example.com' }, validationData: null, clientMetadata, ...more },
  { autoConfirmUser: false, autoVerifyEmail: false, autoVerifyPhone: false },
  clientId,
);

test('a sign-in has one challenge with one answer', async () => {
  const answered = (challengeResult, challengeName = 'CUSTOM_CHALLENGE') => ({ challengeName, challengeResult, challengeMetadata: null });
  assert.deepEqual(await define([]), { challengeName: 'CUSTOM_CHALLENGE', issueTokens: false, failAuthentication: false });
  const [tokens, failure] = [true, false].map((issueTokens) => ({ challengeName: null, issueTokens, failAuthentication: !issueTokens }));
  assert.deepEqual(await define([answered(true)]), tokens);
  assert.deepEqual(await define([answered(false)]), failure);
  assert.deepEqual(await define([answered(false), answered(true)]), failure);
  assert.deepEqual(await define([answered(true, 'SRP_A')]), failure);
  assert.deepEqual(await define([answered(true)], { userNotFound: true }), failure);
});

test('the challenge shows the account to holders of the key only', async () => {
  const open = ({ publicChallengeParameters: { nonce, account }, privateChallengeParameters }) => {
    assert.deepEqual(privateChallengeParameters, { nonce });
    const sealed = Buffer.from(account, 'base64url');
    const key = Buffer.from(hkdfSync('sha256', KEY, 'postern social account v1', nonce, 32));
    const cipher = createDecipheriv('aes-256-gcm', key, sealed.subarray(0, 12));
    cipher.setAAD(Buffer.from(nonce));
    cipher.setAuthTag(sealed.subarray(-16));
    return cipher.update(sealed.subarray(12, -16), undefined, 'utf8') + cipher.final('utf8');
  };
  const digest = createHash('sha256').update('ada@example.com').digest('base64url');
  const [first, second] = [await create(), await create()];
  assert.equal(open(first), `1${SUB}${digest}`);
  assert.notEqual(first.publicChallengeParameters.nonce, second.publicChallengeParameters.nonce);
  const unverified = { userAttributes: { ...ADA, email_verified: 'false' } };
  assert.equal(open(await create(unverified)), `0${SUB}${digest}`);
  for (const nobody of [{ userNotFound: true }, { userAttributes: {}, userNotFound: true }]) {
    const response = await create(nobody);
    assert.equal(open(response), '0'.padEnd(80));
    assert.equal(response.publicChallengeParameters.account.length, first.publicChallengeParameters.account.length);
  }
});

test('a proof holds for its user, nonce, client, key and minute', async () => {
  assert.equal(await verify(SIGN_IN), true);
  assert.equal(await verify(SIGN_IN, { privateChallengeParameters: { nonce: 'n-2' } }), false, 'replayed');
  assert.equal(await verify(SIGN_IN, { privateChallengeParameters: {} }), false);
  assert.equal(await verify(SIGN_IN, { userAttributes: { ...ADA, sub: SUB.replace('8', '9') } }), false);
  assert.equal(await verify(SIGN_IN, { userAttributes: {}, userNotFound: true }), false);
  assert.equal(await verify(SIGN_IN, {}, 'other'), false);
  const lines = ['postern social proof v1', 'sign-in', SUB, 'client', 'n-1', String(NOW_S)].join('\n');
  const tag = createHmac('sha256', Buffer.alloc(32, 2)).update(lines).digest('base64url');
  assert.equal(await verify(`${NOW_S}.${tag}`), false, 'another key');
  for (const broken of ['', '.', `${NOW_S}`, `${NOW_S}.`, `${SIGN_IN}.x`, SIGN_UP, SIGN_IN.replace('1795', '1796')]) {
    assert.equal(await verify(broken), false, broken);
  }
  for (const [seconds, holds] of [[60, true], [-60, true], [61, false], [-61, false]]) {
    mock.timers.setTime((NOW_S + seconds) * 1000);
    assert.equal(await verify(SIGN_IN), holds, `${seconds}`);
  }
  mock.timers.setTime(NOW_S * 1000);
});

test('a new user is confirmed by a proof of the address', async () => {
  const confirmed = { autoConfirmUser: true, autoVerifyEmail: true, autoVerifyPhone: false };
  const plain = { autoConfirmUser: false, autoVerifyEmail: false, autoVerifyPhone: false };
  const proof = { social_proof: SIGN_UP };
  assert.deepEqual(await signUp(proof), confirmed);
  assert.deepEqual(await signUp(proof, { userAttributes: { email: 'ADA@example.com' } }), confirmed);
  assert.deepEqual(await signUp(undefined), plain);
  assert.deepEqual(await signUp({ other: 'x' }), plain);
  assert.deepEqual(await signUp(proof, {}, 'PreSignUp_AdminCreateUser'), plain);
  const refused = { message: 'invalid social_proof' };
  await assert.rejects(signUp(proof, { userAttributes: { email: 'eda@example.com' } }), refused);
  await assert.rejects(signUp(proof, { userAttributes: {} }), refused);
  await assert.rejects(signUp(proof, {}, 'PreSignUp_SignUp', 'other'), refused);
  await assert.rejects(signUp({ social_proof: SIGN_IN }), refused);
  mock.timers.setTime((NOW_S + 61) * 1000);
  await assert.rejects(signUp(proof), refused);
  mock.timers.setTime(NOW_S * 1000);
});
