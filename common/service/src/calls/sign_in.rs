//! Sign-in to the service pool: `InitiateAuth` of Cognito's API (JSON 1.1), which is not signed. One
//! request needs no SDK, so that no program but the authentication service links one.

use http::header::CONTENT_TYPE;
use postern_core::Secret;
use postern_core::identity::{IdentityConfig, Pool, ServiceAccount, partition_domain};
use postern_core::network::read_body;
use reqwest::{Client, Response};
use serde_json::{Value, json};
use url::Url;

use super::{ServiceTokenError, http_client, token};

/// The operation, in the header `X-Amz-Target`.
const TARGET: &str = "AWSCognitoIdentityProviderService.InitiateAuth";
const MAX_ANSWER: usize = 64 << 10;

/// Errors of a pool that end by themselves.
const TEMPORARY: [&str; 3] = [
    "TooManyRequestsException",
    "InternalErrorException",
    "LimitExceededException",
];

/// A client that signs in with the service account.
pub(super) struct SignInClient {
    http: Client,
    endpoint: Result<Url, url::ParseError>,
    pool: Pool,
    account: ServiceAccount,
}

impl SignInClient {
    /// Returns `None` if no service account is configured.
    pub(super) fn new(identity: &IdentityConfig) -> Option<Self> {
        let region = &identity.region;
        let of_region = || format!("https://cognito-idp.{region}.{}", partition_domain(region));
        let endpoint = identity.endpoint.clone();
        Some(Self {
            http: http_client(),
            endpoint: endpoint.map_or_else(|| Url::parse(&of_region()), Ok),
            pool: identity.service.clone(),
            account: identity.service_account.clone()?,
        })
    }

    pub(super) fn username(&self) -> &str {
        &self.account.username
    }

    /// Signs in and returns the token that contains `custom:service_id`: the ID token, where Cognito
    /// writes custom attributes, or the access token if a trigger of the pool adds them.
    pub(super) async fn sign_in(&self) -> Result<Secret, ServiceTokenError> {
        let endpoint = self.endpoint.clone();
        let endpoint = endpoint.map_err(|error| ServiceTokenError::Refused(error.to_string()))?;
        let mut parameters = json!({
            "USERNAME": self.account.username,
            "PASSWORD": self.account.password.expose(),
        });
        if let Some(hash) = self.pool.secret_hash(&self.account.username) {
            parameters["SECRET_HASH"] = hash.into();
        }
        let body = json!({
            "AuthFlow": "USER_PASSWORD_AUTH",
            "ClientId": self.pool.client_id,
            "AuthParameters": parameters,
        });
        let request = self.http.post(endpoint).body(body.to_string());
        let request = request.header(CONTENT_TYPE, "application/x-amz-json-1.1");
        let request = request.header("x-amz-target", TARGET);
        let unavailable = |error: reqwest::Error| {
            let kind = match () {
                () if error.is_timeout() => "no answer in time",
                () if error.is_connect() => "cannot connect",
                () => "its response cannot be read",
            };
            ServiceTokenError::Unavailable(kind.to_owned())
        };
        let response = request.send().await.map_err(unavailable)?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let answer = limited_json(response).await.map_err(unavailable)?;
        token_of(&answer)
    }
}

/// Reads a body of JSON; null if it is none, or longer than every answer of a pool.
async fn limited_json(response: Response) -> reqwest::Result<Value> {
    let body = read_body(response, MAX_ANSWER).await?.unwrap_or_default();
    Ok(serde_json::from_slice(&body).unwrap_or_default())
}

fn token_of(answer: &Value) -> Result<Secret, ServiceTokenError> {
    let refused = |reason| Err(ServiceTokenError::Refused(reason));
    if let Some(challenge) = answer["ChallengeName"].as_str() {
        return refused(format!("it requires the challenge {challenge}"));
    }
    let tokens = ["IdToken", "AccessToken"].map(|name| &answer["AuthenticationResult"][name]);
    let mut tokens = tokens.into_iter().filter_map(Value::as_str);
    match tokens.find(|token| token::has_service_id(token)) {
        Some(token) => Ok(Secret::from(token)),
        None => refused(
            "its tokens lack custom:service_id; the account must have the attribute, and the client must \
             be able to read it (ReadAttributes)"
                .to_owned(),
        ),
    }
}

/// Classifies an error: failures of the pool are temporary, all others need an operator.
async fn refusal(response: Response) -> ServiceTokenError {
    let status = response.status();
    let body = limited_json(response).await.unwrap_or_default();
    // A server may write a namespace before the name: `com.amazonaws…#NotAuthorizedException`.
    let unnamed = format!("status {}", status.as_u16());
    let name = body["__type"].as_str().unwrap_or(&unnamed);
    let name = name.rsplit('#').next().unwrap_or(name);
    let name: String = name.chars().take(100).collect();
    match status.is_server_error() || TEMPORARY.contains(&&*name) {
        true => ServiceTokenError::Unavailable(name),
        false => ServiceTokenError::Refused(name),
    }
}
