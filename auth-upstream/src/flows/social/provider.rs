//! The client of the social provider: discovery, code exchange and verification of the ID token.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use oauth2::basic::{
    BasicErrorResponse, BasicErrorResponseType, BasicRevocationErrorResponse,
    BasicTokenIntrospectionResponse, BasicTokenType,
};
use oauth2::{
    AuthUrl, AuthorizationCode, Client, ClientId, ClientSecret, CsrfToken, EndpointNotSet,
    EndpointSet, ExtraTokenFields, HttpRequest, HttpResponse, PkceCodeChallenge, PkceCodeVerifier,
    RedirectUrl, RequestTokenError, Scope, StandardRevocableToken, StandardTokenResponse,
    TokenResponse, TokenUrl,
};
use postern_common::Clock;
use postern_common::dependency::{Dependency, root_cause};
use postern_common::token::oidc::{IdToken, OidcVerifier};
use postern_common::trace;
use serde::{Deserialize, Serialize};
use url::Url;

use super::{AuthorizationState, SocialError};
use crate::config::SocialConfig;
use crate::telemetry::log_limited;

/// Maximum size of a response of the provider.
const MAX_PROVIDER_RESPONSE_BYTES: usize = 256 << 10;

/// A provider with known endpoints.
#[derive(Debug)]
pub(super) struct Provider {
    endpoints: ProviderEndpoints,
    oauth: OAuthClient,
    id_tokens: Arc<OidcVerifier>,
}

/// The endpoints of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProviderEndpoints {
    authorization: Url,
    token: Url,
    jwks: Url,
    /// Whether callbacks contain the issuer (RFC 9207 section 3).
    sends_issuer: bool,
}

/// A user who has signed in at the provider.
#[derive(Debug)]
pub(super) struct AuthorizedUser {
    pub(super) id_token: IdToken,
    pub(super) refresh_token: Option<String>,
}

/// The fields that OpenID Connect adds to the token response.
#[derive(Debug, Serialize, Deserialize)]
struct OidcTokenFields {
    id_token: Option<String>,
}

impl ExtraTokenFields for OidcTokenFields {}

type OAuthClient = Client<
    BasicErrorResponse,
    StandardTokenResponse<OidcTokenFields, BasicTokenType>,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
>;

/// The fields of a discovery document that are used (OpenID Connect Discovery 1.0 section 3).
#[derive(Debug, Deserialize)]
struct DiscoveryDocument {
    issuer: String,
    authorization_endpoint: Url,
    token_endpoint: Url,
    jwks_uri: Url,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// The reason for which a call to the provider failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProviderCallError {
    #[error("no response: {}", root_cause(.0))]
    Unavailable(#[from] reqwest::Error),
    #[error("response too large")]
    TooLarge,
    #[error("malformed response")]
    Malformed(#[from] http::Error),
}

// === impl Provider ===

impl Provider {
    /// Creates a client with the configured endpoints; missing ones are discovered.
    pub(super) async fn discover(
        config: &SocialConfig,
        http: &reqwest::Client,
        clock: Clock,
        availability: &Dependency,
    ) -> Result<Self, SocialError> {
        let endpoints = ProviderEndpoints::discover(config, http, availability).await?;
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

    /// Returns whether the issuer of a callback is this provider (RFC 9207 section 2.4). The issuer
    /// may be absent unless the provider's metadata says that it sends it.
    pub(super) fn is_issuer_valid(&self, issuer: Option<&str>, config: &SocialConfig) -> bool {
        issuer.map_or(!self.endpoints.sends_issuer, |issuer| {
            issuer == config.issuer
        })
    }

    pub(super) fn has_same_endpoints(&self, other: &Self) -> bool {
        self.endpoints == other.endpoints
    }

    /// Returns the authorization URL with the sealed state, PKCE challenge (S256) and nonce.
    pub(super) fn authorization_url(
        &self,
        config: &SocialConfig,
        sealed_state: String,
        state: &AuthorizationState,
    ) -> Url {
        let verifier = PkceCodeVerifier::new(state.pkce_verifier.clone());
        let mut request = self
            .oauth
            .authorize_url(|| CsrfToken::new(sealed_state))
            .add_scopes(config.scopes.iter().cloned().map(Scope::new))
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier))
            .add_extra_param("nonce", state.nonce.clone());
        for (name, value) in &config.parameters {
            request = request.add_extra_param(name.clone(), value.clone());
        }
        request.url().0
    }

    /// Exchanges an authorization code and verifies the ID token.
    pub(super) async fn exchange_code(
        &self,
        http: &reqwest::Client,
        deadline: Duration,
        code: String,
        state: &AuthorizationState,
        availability: &Dependency,
    ) -> Result<AuthorizedUser, SocialError> {
        let status = Arc::new(AtomicU16::new(0));
        let call = |request: HttpRequest| {
            let (sent, status) = (send(http.clone(), deadline, request), Arc::clone(&status));
            async move {
                let response = sent.await?;
                status.store(response.status().as_u16(), Ordering::Relaxed);
                Ok(response)
            }
        };
        let response = self
            .oauth
            .exchange_code(AuthorizationCode::new(code))
            .set_pkce_verifier(PkceCodeVerifier::new(state.pkce_verifier.clone()))
            .request_async(&call)
            .await
            .map_err(|error| token_error(&error, status.load(Ordering::Relaxed), availability))?;
        availability.record_success();
        let id_token = response
            .extra_fields()
            .id_token
            .as_deref()
            .ok_or(SocialError::InvalidIdToken)?;
        let verified = self
            .id_tokens
            .verify(id_token, &state.nonce)
            .await
            .map_err(|error| {
                log_limited!(warn, %error, "ID token of the provider rejected");
                if error.code() == postern_common::Code::KeysUnavailable {
                    SocialError::ProviderUnavailable
                } else {
                    SocialError::InvalidIdToken
                }
            })?;
        let refresh_token = response.refresh_token().map(|token| token.secret().clone());
        Ok(AuthorizedUser {
            id_token: verified,
            refresh_token,
        })
    }
}

// === impl ProviderEndpoints ===

impl ProviderEndpoints {
    async fn discover(
        config: &SocialConfig,
        http: &reqwest::Client,
        availability: &Dependency,
    ) -> Result<Self, SocialError> {
        let configured = (
            &config.authorization_endpoint,
            &config.token_endpoint,
            &config.jwks_url,
        );
        if let (Some(authorization), Some(token), Some(jwks)) = configured {
            let (authorization, token, jwks) = (authorization.clone(), token.clone(), jwks.clone());
            return Ok(Self {
                authorization,
                token,
                jwks,
                sends_issuer: false,
            });
        }
        let found = fetch_discovery_document(config, http, availability).await?;
        let (authorization, token, jwks) = configured;
        Ok(Self {
            authorization: authorization
                .clone()
                .unwrap_or(found.authorization_endpoint),
            token: token.clone().unwrap_or(found.token_endpoint),
            jwks: jwks.clone().unwrap_or(found.jwks_uri),
            sends_issuer: found.authorization_response_iss_parameter_supported,
        })
    }
}

/// Fetches the discovery document, whose issuer must be the configured one (section 4.3).
async fn fetch_discovery_document(
    config: &SocialConfig,
    http: &reqwest::Client,
    availability: &Dependency,
) -> Result<DiscoveryDocument, SocialError> {
    let issuer = &config.issuer;
    let url = format!(
        "{}/.well-known/openid-configuration",
        issuer.trim_end_matches('/')
    );
    let unavailable = |error: ProviderCallError| {
        availability.record_failure(format_args!("discovery document: {error}"));
        SocialError::ProviderUnavailable
    };
    let response = trace::send(http.get(url).timeout(config.deadline))
        .await
        .map_err(|error| unavailable(error.without_url().into()))?;
    let response = response
        .error_for_status()
        .map_err(|error| unavailable(error.without_url().into()))?;
    let body = read_body(response).await.map_err(unavailable)?;
    let found: DiscoveryDocument =
        serde_json::from_slice(&body).map_err(|_| SocialError::ProviderError)?;
    if found.issuer == *issuer {
        Ok(found)
    } else {
        Err(SocialError::ProviderError)
    }
}

/// Sends a request of the `oauth2` crate.
async fn send(
    client: reqwest::Client,
    deadline: Duration,
    request: HttpRequest,
) -> Result<HttpResponse, ProviderCallError> {
    let mut request: reqwest::Request = request.try_into()?;
    *request.timeout_mut() = Some(deadline);
    let response = trace::execute(&client, request).await;
    let response = response.map_err(reqwest::Error::without_url)?;
    let mut builder = http::Response::builder().status(response.status());
    for (name, value) in response.headers() {
        builder = builder.header(name, value);
    }
    Ok(builder.body(read_body(response).await?)?)
}

async fn read_body(mut response: reqwest::Response) -> Result<Vec<u8>, ProviderCallError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > MAX_PROVIDER_RESPONSE_BYTES {
            return Err(ProviderCallError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Converts an error of the token endpoint, which answered with `status`. A server error is an outage
/// of the provider. The provider's message is neither logged nor returned.
fn token_error(
    error: &RequestTokenError<ProviderCallError, BasicErrorResponse>,
    status: u16,
    availability: &Dependency,
) -> SocialError {
    if let RequestTokenError::Request(cause) = error {
        availability.record_failure(format_args!("code exchange: {cause}"));
        return SocialError::ProviderUnavailable;
    }
    if status >= 500 {
        availability.record_failure(format_args!("code exchange: status {status}"));
        return SocialError::ProviderError;
    }
    availability.record_success();
    let error = match error {
        RequestTokenError::ServerResponse(response) => oauth_error(response.error()),
        RequestTokenError::Parse(..)
        | RequestTokenError::Request(_)
        | RequestTokenError::Other(_) => "malformed response",
    };
    log_limited!(warn, error, status, "code exchange at the provider failed");
    SocialError::ProviderError
}

/// Returns the error code of RFC 6749 section 5.2. Other codes are text of the provider, which is not
/// logged.
fn oauth_error(error: &BasicErrorResponseType) -> &str {
    match error {
        BasicErrorResponseType::Extension(_) => "unknown error code",
        BasicErrorResponseType::InvalidClient
        | BasicErrorResponseType::InvalidGrant
        | BasicErrorResponseType::InvalidRequest
        | BasicErrorResponseType::InvalidScope
        | BasicErrorResponseType::UnauthorizedClient
        | BasicErrorResponseType::UnsupportedGrantType => error.as_ref(),
    }
}
