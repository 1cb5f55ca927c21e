//! The provider's side of the flow: its endpoints, the code exchange, the ID token.

use std::sync::Arc;
use std::time::Duration;

use oauth2::basic::{
    BasicErrorResponse, BasicRevocationErrorResponse, BasicTokenIntrospectionResponse,
    BasicTokenType,
};
use oauth2::{
    AuthUrl, AuthorizationCode, Client, ClientId, ClientSecret, CsrfToken, EndpointNotSet,
    EndpointSet, ExtraTokenFields, HttpRequest, HttpResponse, PkceCodeChallenge, PkceCodeVerifier,
    RedirectUrl, RequestTokenError, Scope, StandardRevocableToken, StandardTokenResponse,
    TokenResponse, TokenUrl,
};
use postern_common::Clock;
use postern_common::token::oidc::{IdToken, OidcVerifier};
use serde::{Deserialize, Serialize};
use url::Url;

use super::{Social, SocialFault};
use crate::config::SocialConfig;
use crate::log_limit::log_limited;

/// What a provider may send at most.
const MOST_BYTES: usize = 256 << 10;

/// The provider, once its endpoints are known.
#[derive(Debug)]
pub(super) struct Provider {
    endpoints: Endpoints,
    oauth: OAuth,
    id_tokens: Arc<OidcVerifier>,
}

/// Where the provider is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoints {
    authorization: Url,
    token: Url,
    jwks: Url,
    /// Whether it says who it is when it sends the browser back (RFC 9207 section 3).
    names_itself: bool,
}

/// Somebody whom the provider has signed in.
#[derive(Debug)]
pub(super) struct Authorized {
    pub(super) id: IdToken,
    pub(super) refresh_token: Option<String>,
}

/// What OpenID Connect adds to the token answer.
#[derive(Debug, Serialize, Deserialize)]
struct WithIdToken {
    id_token: Option<String>,
}

impl ExtraTokenFields for WithIdToken {}

type OAuth = Client<
    BasicErrorResponse,
    StandardTokenResponse<WithIdToken, BasicTokenType>,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
>;

/// OpenID Connect Discovery 1.0 section 3, as far as we need it.
#[derive(Debug, Deserialize)]
struct Discovery {
    issuer: String,
    authorization_endpoint: Url,
    token_endpoint: Url,
    jwks_uri: Url,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// Why a call to the provider failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("no answer")]
    Away(#[from] reqwest::Error),
    #[error("an answer that is too large")]
    TooLarge,
    #[error("an answer that is no HTTP")]
    Malformed(#[from] http::Error),
}

// === impl Provider ===

impl Provider {
    /// From the config where every endpoint stands there, else by discovery.
    pub(super) async fn find(
        config: &SocialConfig,
        http: &reqwest::Client,
        clock: Clock,
    ) -> Result<Self, SocialFault> {
        let endpoints = Endpoints::find(config, http).await?;
        let oauth = Client::new(ClientId::new(config.client_id.clone()))
            .set_client_secret(ClientSecret::new(config.client_secret.expose().to_owned()))
            .set_auth_uri(AuthUrl::from_url(endpoints.authorization.clone()))
            .set_token_uri(TokenUrl::from_url(endpoints.token.clone()))
            .set_redirect_uri(RedirectUrl::from_url(config.redirect_uri.clone()));
        let (issuer, client) = (config.issuer.as_str(), config.client_id.clone());
        let id_tokens = OidcVerifier::new(issuer, client, endpoints.jwks.clone(), clock);
        Ok(Self {
            endpoints,
            oauth,
            id_tokens,
        })
    }

    /// Whether the browser comes from this provider, as far as it says so: RFC 9207 section 2.4.
    pub(super) fn has_sent(&self, issuer: Option<&str>, config: &SocialConfig) -> bool {
        issuer.map_or(!self.endpoints.names_itself, |issuer| {
            issuer == config.issuer
        })
    }

    pub(super) fn is_at_the_endpoints_of(&self, other: &Self) -> bool {
        self.endpoints == other.endpoints
    }

    /// Where the browser goes, with state, PKCE challenge (S256) and nonce.
    pub(super) fn authorization_url(
        &self,
        config: &SocialConfig,
        state: String,
        verifier: &str,
        nonce: &str,
    ) -> Url {
        let verifier = PkceCodeVerifier::new(verifier.to_owned());
        let mut request = self
            .oauth
            .authorize_url(|| CsrfToken::new(state))
            .add_scopes(config.scopes.iter().cloned().map(Scope::new))
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier))
            .add_extra_param("nonce", nonce.to_owned());
        for (name, value) in &config.parameters {
            request = request.add_extra_param(name.clone(), value.clone());
        }
        request.url().0
    }

    /// Exchanges the code and verifies who it is.
    pub(super) async fn redeem(
        &self,
        social: &Social,
        code: String,
        verifier: &str,
        nonce: &str,
    ) -> Result<Authorized, SocialFault> {
        let call =
            |request: HttpRequest| send(social.http.clone(), social.config.deadline, request);
        let answer = self
            .oauth
            .exchange_code(AuthorizationCode::new(code))
            .set_pkce_verifier(PkceCodeVerifier::new(verifier.to_owned()))
            .request_async(&call)
            .await
            .map_err(|error| token_fault(&error))?;
        let id_token = answer
            .extra_fields()
            .id_token
            .as_deref()
            .ok_or(SocialFault::InvalidIdToken)?;
        let id = self
            .id_tokens
            .verify(id_token, nonce)
            .await
            .map_err(|refusal| {
                log_limited!(warn, ?refusal, "the provider's ID token is refused");
                if refusal.code() == postern_common::Code::KeysUnavailable {
                    SocialFault::ProviderUnavailable
                } else {
                    SocialFault::InvalidIdToken
                }
            })?;
        let refresh_token = answer.refresh_token().map(|token| token.secret().clone());
        Ok(Authorized { id, refresh_token })
    }
}

// === impl Endpoints ===

impl Endpoints {
    async fn find(config: &SocialConfig, http: &reqwest::Client) -> Result<Self, SocialFault> {
        let given = (
            &config.authorization_endpoint,
            &config.token_endpoint,
            &config.jwks_url,
        );
        if let (Some(authorization), Some(token), Some(jwks)) = given {
            let (authorization, token, jwks) = (authorization.clone(), token.clone(), jwks.clone());
            return Ok(Self {
                authorization,
                token,
                jwks,
                names_itself: false,
            });
        }
        let found = discover(config, http).await?;
        let (authorization, token, jwks) = given;
        Ok(Self {
            authorization: authorization
                .clone()
                .unwrap_or(found.authorization_endpoint),
            token: token.clone().unwrap_or(found.token_endpoint),
            jwks: jwks.clone().unwrap_or(found.jwks_uri),
            names_itself: found.authorization_response_iss_parameter_supported,
        })
    }
}

/// Reads the provider's own description; what it says its issuer is must be what we were told
/// (section 4.3).
async fn discover(config: &SocialConfig, http: &reqwest::Client) -> Result<Discovery, SocialFault> {
    let issuer = &config.issuer;
    let url = format!(
        "{}/.well-known/openid-configuration",
        issuer.trim_end_matches('/')
    );
    let away = |error: CallError| {
        log_limited!(warn, %error, "the provider's discovery document cannot be read");
        SocialFault::ProviderUnavailable
    };
    let answer = http
        .get(url)
        .timeout(config.deadline)
        .send()
        .await
        .map_err(|error| away(error.into()))?;
    let answer = answer
        .error_for_status()
        .map_err(|error| away(error.into()))?;
    let body = read(answer).await.map_err(away)?;
    let found: Discovery = serde_json::from_slice(&body).map_err(|_| SocialFault::ProviderError)?;
    if found.issuer == *issuer {
        Ok(found)
    } else {
        Err(SocialFault::ProviderError)
    }
}

/// One call for the `oauth2` crate over our own client.
async fn send(
    client: reqwest::Client,
    deadline: Duration,
    request: HttpRequest,
) -> Result<HttpResponse, CallError> {
    let mut request: reqwest::Request = request.try_into()?;
    *request.timeout_mut() = Some(deadline);
    let answer = client.execute(request).await?;
    let mut response = http::Response::builder().status(answer.status());
    for (name, value) in answer.headers() {
        response = response.header(name, value);
    }
    Ok(response.body(read(answer).await?)?)
}

async fn read(mut answer: reqwest::Response) -> Result<Vec<u8>, CallError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > MOST_BYTES {
            return Err(CallError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The provider's own words stay in the log's kind of fault; a code that was refused is the
/// person's to repeat.
fn token_fault(error: &RequestTokenError<CallError, BasicErrorResponse>) -> SocialFault {
    let fault = match error {
        RequestTokenError::ServerResponse(_) | RequestTokenError::Parse(..) => {
            SocialFault::ProviderError
        }
        RequestTokenError::Request(_) => SocialFault::ProviderUnavailable,
        RequestTokenError::Other(_) => SocialFault::ProviderError,
    };
    log_limited!(warn, %fault, "the provider did not exchange the code");
    fault
}
