//! Second factors, tested against an independent pool that requires them (moto,
//! `tests/peers/boto3`): the challenge is sealed, and its answer reaches the pool under Cognito's
//! parameter names.

use std::collections::BTreeMap;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use aws_lc_rs::hmac;
use aws_sdk_cognitoidentityprovider::Client as Admin;
use aws_sdk_cognitoidentityprovider::config::Credentials;
use aws_sdk_cognitoidentityprovider::types::{
    AuthFlowType, ExplicitAuthFlowsType, SoftwareTokenMfaSettingsType,
};
use postern_auth::{AwsCredentials, pool_client};
use postern_core::Clock;
use postern_core::config::{Env, parse};
use postern_core::identity::{IdentityConfig, secret_hash};
use postern_harness::json;
use postern_harness::peer::Peer;
use postern_harness::public_api::{PASSWORD, text};
use postern_harness::{Answer, Client};
use serde_json::Value;
use tempfile::TempDir;

use crate::auth_upstream;

const ADA: &str = "ada@example.com";
/// The TOTP secret of every user in moto, in base32: `asdfasdfasdf`.
const TOTP_SECRET: [u8; 7] = [0x04, 0x86, 0x50, 0x48, 0x65, 0x04, 0x86];

/// The authentication upstream with moto as its pool.
struct Foreign {
    client: Client,
    admin: Admin,
    identity: IdentityConfig,
    _shutdown: CancellationToken,
    _folder: TempDir,
    _moto: Peer,
}

impl Foreign {
    async fn start() -> Self {
        let (moto, endpoint) = Peer::moto().await;
        let mut env = variables(&endpoint);
        let identity = identity_of(&env);
        // moto loads modules at its first call.
        let patience = Duration::from_secs(60);
        let admin = Box::pin(pool_client(&identity, Some(keys()), patience)).await;
        create_pool(&admin, &mut env).await;
        let identity = identity_of(&env);

        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = format!(
            "database = 'sqlite://{}'",
            folder.path().join("auth.db").display()
        );
        let (listener, base) = auth_upstream::bind().await;
        let shutdown = auth_upstream::start(listener, &config, &env_of(&env)).await;
        let client = Client::new(&base);
        let foreign = Self {
            client,
            admin,
            identity,
            _shutdown: shutdown,
            _folder: folder,
            _moto: moto,
        };
        foreign.add_ada().await;
        foreign
    }

    async fn add_ada(&self) {
        let pool = &self.identity.actor.pool_id;
        let create = self.admin.admin_create_user().user_pool_id(pool);
        let created = Box::pin(create.username(ADA).send()).await;
        created.expect("a user");
        let set = self.admin.admin_set_user_password().user_pool_id(pool);
        let set = set.username(ADA).password(PASSWORD).permanent(true);
        Box::pin(set.send()).await.expect("a password");
    }

    /// Registers a software token for Ada, so that the pool requires it from then on.
    async fn add_software_token(&self) {
        let actor = &self.identity.actor;
        let secret = actor.client_secret.as_ref().expect("a secret").expose();
        let hash = secret_hash(ADA, &actor.client_id, secret);
        let flow = AuthFlowType::UserPasswordAuth;
        let initiate = self.admin.initiate_auth().auth_flow(flow);
        let initiate = initiate.client_id(&actor.client_id);
        let initiate = initiate.auth_parameters("USERNAME", ADA);
        let initiate = initiate.auth_parameters("PASSWORD", PASSWORD);
        let initiate = initiate.auth_parameters("SECRET_HASH", hash);
        let signed_in = Box::pin(initiate.send()).await;
        let tokens = signed_in.expect("the user signs in").authentication_result;
        let token = tokens.and_then(|tokens| tokens.access_token);
        let token = token.expect("a token");
        let associate = self.admin.associate_software_token().access_token(&token);
        let secret = Box::pin(associate.send()).await.expect("a secret");
        assert_eq!(secret.secret_code(), Some("asdfasdfasdf"));
        let verify = async |code: String| {
            let verify = self.admin.verify_software_token().access_token(&token);
            Box::pin(verify.user_code(code).send()).await
        };
        // The time step may end between creating and verifying the code.
        if verify(totp()).await.is_err() {
            verify(totp()).await.expect("verified");
        }
        let preference = SoftwareTokenMfaSettingsType::builder()
            .enabled(true)
            .preferred_mfa(true)
            .build();
        let set = self.admin.admin_set_user_mfa_preference();
        let set = set.user_pool_id(&actor.pool_id).username(ADA);
        let set = set.software_token_mfa_settings(preference);
        Box::pin(set.send()).await.expect("the factor is set");
    }

    /// Signs in with the password and returns the challenge.
    async fn challenge(&self) -> Value {
        let body = json!({"email": ADA, "password": PASSWORD});
        let asked = self.client.post_json("/auth/login", &body).await;
        asked.problem(401, "challenge_required").body["challenge"].clone()
    }

    async fn answer(&self, challenge: &Value, code: &str) -> Answer {
        let body = json!({"session": text(challenge, "session"), "code": code});
        self.client.post_json("/auth/challenge", &body).await
    }
}

/// Creates a pool with one client, and sets their variables.
async fn create_pool(admin: &Admin, env: &mut BTreeMap<&'static str, String>) {
    let pool = Box::pin(admin.create_user_pool().pool_name("actors").send()).await;
    let pool = pool.expect("a pool").user_pool.and_then(|pool| pool.id);
    let pool = pool.expect("an id");
    let made = admin.create_user_pool_client().user_pool_id(&pool);
    let made = made.client_name("c").generate_secret(true);
    let made = made.explicit_auth_flows(ExplicitAuthFlowsType::AllowUserPasswordAuth);
    let made = Box::pin(made.send()).await.expect("a client");
    let made = made.user_pool_client.expect("a client");
    env.insert("IDP_ACTOR_POOL_ID", pool);
    env.insert("IDP_ACTOR_CLIENT_ID", made.client_id.expect("an id"));
    let secret = made.client_secret.expect("a secret");
    env.insert("IDP_ACTOR_CLIENT_SECRET", secret);
}

fn keys() -> AwsCredentials {
    AwsCredentials::Static(Credentials::new("testing", "testing", None, None, "tests"))
}

fn variables(endpoint: &str) -> BTreeMap<&'static str, String> {
    let pairs = [
        ("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER", endpoint),
        ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
        ("IDP_ACTOR_CLIENT_ID", "actor"),
        ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
        ("IDP_SERVICE_CLIENT_ID", "service"),
        ("IDP_SERVICE_ACCOUNT_USERNAME", "auth"),
        ("IDP_SERVICE_ACCOUNT_PASSWORD", "none"),
    ];
    let pairs = pairs.into_iter();
    pairs
        .map(|(name, value)| (name, value.to_owned()))
        .collect()
}

fn env_of(env: &BTreeMap<&'static str, String>) -> Env {
    env.iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect()
}

fn identity_of(env: &BTreeMap<&'static str, String>) -> IdentityConfig {
    let identity = parse("test", "", |root| IdentityConfig::read(root, &env_of(env)));
    identity.expect("valid identity variables")
}

/// Returns a code of RFC 6238 with HMAC-SHA-1, six digits and steps of 30 s, as authenticator apps
/// do.
fn totp() -> String {
    let step = u64::try_from(Clock::system().now().unix_seconds() / 30).expect("after 1970");
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, &TOTP_SECRET);
    let tag = hmac::sign(&key, &step.to_be_bytes());
    let at = usize::from(tag.as_ref()[19] & 15);
    let word = tag.as_ref()[at..at + 4].try_into().expect("four bytes");
    let code = (u32::from_be_bytes(word) & 0x7fff_ffff) % 1_000_000;
    format!("{code:06}")
}

#[tokio::test]
async fn software_token_challenge_is_answered_with_a_code() {
    let foreign = Foreign::start().await;
    foreign.add_software_token().await;
    let challenge = foreign.challenge().await;
    assert_eq!(challenge["name"], "SOFTWARE_TOKEN_MFA");
    // Seven digits are never a valid code.
    let refused = foreign.answer(&challenge, "0000000").await;
    let _ = refused.problem(401, "invalid_challenge");
    let mut answer = foreign.answer(&challenge, &totp()).await;
    if answer.status == 401 {
        // The time step may end between creating and verifying the code.
        answer = foreign.answer(&challenge, &totp()).await;
    }
    let tokens = answer.expect(200).json();
    assert!(!text(&tokens, "accessToken").is_empty() && !text(&tokens, "refreshToken").is_empty());
    let again = foreign.answer(&challenge, &totp()).await;
    assert_ne!(again.status, 200, "once");
}
