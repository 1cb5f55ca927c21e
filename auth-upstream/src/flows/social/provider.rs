//! The client of a social provider: discovery, code exchange and verification of the ID token.
//!
//! Providers differ in all that a sign-in does not need, so that only what it needs is read.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::ACCEPT;
use postern_common::dependency::{Dependency, root_cause};
use postern_common::network::is_https_or_loopback;
use postern_common::token::oidc::{IdToken, OidcVerifier};
use postern_common::{Clock, Code, trace};
use serde_json::Value;
use sha2::{Digest, Sha256};
use url::{Url, form_urlencoded};

use super::provider_cache::ProviderCache;
use super::{AuthorizationState, SocialError};
use crate::config::{ClientAuthentication, SocialProviderConfig};
use crate::telemetry::log_limited;

/// Maximum size of a response of the provider.
const MAX_PROVIDER_RESPONSE_BYTES: usize = 256 << 10;

/// Error codes of a token endpoint (RFC 6749 section 5.2). Other codes are text of the provider, which
/// is not logged.
const TOKEN_ERRORS: [&str; 6] = [
    "invalid_request",
    "invalid_client",
    "invalid_grant",
    "unauthorized_client",
    "unsupported_grant_type",
    "invalid_scope",
];

/// A provider and the client of it.
#[derive(Debug)]
pub(super) struct ProviderClient {
    pub(super) config: Arc<SocialProviderConfig>,
    pub(super) http: reqwest::Client,
    /// Timeout of one call.
    pub(super) deadline: Duration,
    pub(super) clock: Clock,
    pub(super) availability: Dependency,
    pub(super) cache: ProviderCache,
}

/// The endpoints of a provider and the verifier of its ID tokens.
#[derive(Debug)]
pub(super) struct Provider {
    endpoints: ProviderEndpoints,
    id_tokens: Arc<OidcVerifier>,
}

/// The endpoints of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProviderEndpoints {
    authorization: Url,
    token: Url,
    jwks: Url,
    authentication: ClientAuthentication,
    /// Whether callbacks contain the issuer (RFC 9207 section 3).
    sends_issuer: bool,
}

/// A user who has signed in at the provider.
#[derive(Debug)]
pub(super) struct AuthorizedUser {
    pub(super) id_token: IdToken,
    pub(super) refresh_token: Option<String>,
}

/// The reason for which a call to the provider failed.
#[derive(Debug, thiserror::Error)]
enum ProviderCallError {
    #[error("no response: {}", root_cause(.0))]
    Unavailable(#[from] reqwest::Error),
    #[error("response too large")]
    TooLarge,
}

// === impl ProviderClient ===

impl ProviderClient {
    /// Returns the provider. Its endpoints are discovered unless they are configured or cached.
    pub(super) async fn provider(&self) -> Result<Arc<Provider>, SocialError> {
        let discover = |clock| async move {
            let endpoints = self.discover().await?;
            let (issuer, client) = (&*self.config.issuer, self.config.client_id.clone());
            let id_tokens = OidcVerifier::new(issuer, client, endpoints.jwks.clone(), clock);
            Ok(Provider {
                endpoints,
                id_tokens,
            })
        };
        self.cache.get_or_discover(&self.clock, discover).await
    }

    /// Returns the authorization URL with the sealed state, PKCE challenge (S256) and nonce.
    pub(super) fn authorization_url(
        &self,
        provider: &Provider,
        sealed_state: &str,
        state: &AuthorizationState,
    ) -> Url {
        let (config, settings) = (&self.config, &self.config.settings);
        let mut url = provider.endpoints.authorization.clone();
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&state.pkce_verifier));
        let scopes = settings.scopes.join(" ");
        let pkce = [
            ("code_challenge", &*challenge),
            ("code_challenge_method", "S256"),
        ];
        url.query_pairs_mut()
            .extend_pairs([
                ("response_type", "code"),
                ("client_id", &*config.client_id),
                ("redirect_uri", settings.redirect_uri.as_str()),
                ("scope", &*scopes),
                ("state", sealed_state),
                ("nonce", &*state.nonce),
            ])
            .extend_pairs(pkce.iter().filter(|_| settings.pkce))
            .extend_pairs(&settings.parameters);
        url
    }

    /// Exchanges an authorization code and verifies the ID token.
    pub(super) async fn exchange_code(
        &self,
        provider: &Provider,
        code: &str,
        state: &AuthorizationState,
    ) -> Result<AuthorizedUser, SocialError> {
        let (status, answer) = self.request_tokens(provider, code, state).await?;
        let text = |name: &str| answer[name].as_str();
        let Some(id_token) = text("id_token").filter(|_| status.is_success()) else {
            let (error, outcome) = match text("error") {
                Some(code) if TOKEN_ERRORS.contains(&code) => (code, SocialError::ProviderError),
                None if status.is_success() && answer.is_object() && answer["error"].is_null() => {
                    ("no ID token", SocialError::InvalidIdToken)
                }
                None if !answer.is_object() => ("malformed response", SocialError::ProviderError),
                Some(_) | None => ("unknown error code", SocialError::ProviderError),
            };
            let (provider, status) = (&*self.config.name, status.as_u16());
            log_limited!(
                warn,
                provider,
                error,
                status,
                "code exchange at the provider failed"
            );
            return Err(outcome);
        };
        let verified = provider
            .id_tokens
            .verify(id_token, &state.nonce, self.config.settings.nonce)
            .await
            .map_err(|error| {
                let provider = &*self.config.name;
                log_limited!(warn, provider, %error, "ID token of the provider rejected");
                if error.code() == Code::KeysUnavailable {
                    SocialError::ProviderUnavailable
                } else {
                    SocialError::InvalidIdToken
                }
            })?;
        Ok(AuthorizedUser {
            id_token: verified,
            refresh_token: text("refresh_token").map(str::to_owned),
        })
    }

    /// Sends the token request (RFC 6749 section 4.1.3). Returns the status and the answer, which is
    /// null if it is not JSON; its content type does not matter. A server error is an outage.
    async fn request_tokens(
        &self,
        provider: &Provider,
        code: &str,
        state: &AuthorizationState,
    ) -> Result<(http::StatusCode, Value), SocialError> {
        let (config, settings) = (&self.config, &self.config.settings);
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", settings.redirect_uri.as_str()),
        ];
        if settings.pkce {
            form.push(("code_verifier", &*state.pkce_verifier));
        }
        let (id, secret) = (&*config.client_id, config.client_secret.expose());
        let mut request = self.http.post(provider.endpoints.token.clone());
        match provider.endpoints.authentication {
            ClientAuthentication::Basic => {
                // RFC 6749 section 2.3.1: both are encoded as in a form.
                let encode = |text: &str| -> String {
                    form_urlencoded::byte_serialize(text.as_bytes()).collect()
                };
                request = request.basic_auth(encode(id), Some(encode(secret)));
            }
            ClientAuthentication::Post => {
                form.extend([("client_id", id), ("client_secret", secret)]);
            }
        }
        let request = request.header(ACCEPT, "application/json").form(&form);
        let answered = self.send(request).await;
        let (status, body) = answered.map_err(|error| self.unavailable("code exchange", &error))?;
        if status.is_server_error() {
            let reason = format_args!("code exchange: status {}", status.as_u16());
            self.availability.record_failure(reason);
            return Err(SocialError::ProviderError);
        }
        self.availability.record_success();
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    /// Returns the configured endpoints, and for missing ones those of the discovery document, which
    /// are held to the same rule.
    async fn discover(&self) -> Result<ProviderEndpoints, SocialError> {
        let settings = &self.config.settings;
        let configured = [
            (&settings.authorization_endpoint, "authorization_endpoint"),
            (&settings.token_endpoint, "token_endpoint"),
            (&settings.jwks_url, "jwks_uri"),
        ];
        let is_complete = configured.iter().all(|(url, _)| url.is_some());
        let found = match is_complete {
            true => Value::Null,
            false => self.discovery_document().await?,
        };
        let endpoint = |(configured, name): (&Option<Url>, &str)| {
            let found = || found[name].as_str().and_then(|text| Url::parse(text).ok());
            let url = configured.clone().or_else(found);
            url.filter(is_https_or_loopback).ok_or_else(|| {
                let rule = "missing, or neither https nor on a loopback host";
                self.availability
                    .record_failure(format_args!("discovery document: {name} is {rule}"));
                SocialError::ProviderError
            })
        };
        let [authorization, token, jwks] = configured.map(endpoint);
        let methods = found["token_endpoint_auth_methods_supported"].as_array();
        let has = |method: &str| methods.is_some_and(|all| all.iter().any(|it| it == method));
        // RFC 8414 section 2: the default is Basic.
        let discovered = match has("client_secret_post") && !has("client_secret_basic") {
            true => ClientAuthentication::Post,
            false => ClientAuthentication::Basic,
        };
        Ok(ProviderEndpoints {
            authorization: authorization?,
            token: token?,
            jwks: jwks?,
            authentication: settings.client_authentication.unwrap_or(discovered),
            sends_issuer: found["authorization_response_iss_parameter_supported"] == true,
        })
    }

    /// Fetches the discovery document, whose issuer must be the configured one (OpenID Connect
    /// Discovery 1.0 section 4.3).
    async fn discovery_document(&self) -> Result<Value, SocialError> {
        let issuer = &*self.config.issuer;
        let url = format!(
            "{}/.well-known/openid-configuration",
            issuer.trim_end_matches('/')
        );
        let answered = self.send(self.http.get(url)).await;
        let (status, body) =
            answered.map_err(|error| self.unavailable("discovery document", &error))?;
        let failed = |reason: std::fmt::Arguments<'_>, outcome| {
            self.availability
                .record_failure(format_args!("discovery document: {reason}"));
            Err(outcome)
        };
        if !status.is_success() {
            let status = status.as_u16();
            return failed(
                format_args!("status {status}"),
                SocialError::ProviderUnavailable,
            );
        }
        let found: Value = serde_json::from_slice(&body).unwrap_or_default();
        if found["issuer"] != issuer {
            let reason = format_args!("its issuer is not the configured one");
            return failed(reason, SocialError::ProviderError);
        }
        Ok(found)
    }

    fn unavailable(&self, call: &str, error: &ProviderCallError) -> SocialError {
        self.availability
            .record_failure(format_args!("{call}: {error}"));
        SocialError::ProviderUnavailable
    }

    /// Sends a request and reads the response.
    async fn send(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<(http::StatusCode, Vec<u8>), ProviderCallError> {
        let mut response = trace::send(request.timeout(self.deadline))
            .await
            .map_err(reqwest::Error::without_url)?;
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > MAX_PROVIDER_RESPONSE_BYTES {
                return Err(ProviderCallError::TooLarge);
            }
            body.extend_from_slice(&chunk);
        }
        Ok((response.status(), body))
    }
}

// === impl Provider ===

impl Provider {
    /// Returns whether a callback with `issuer` may come from the provider `expected` (RFC 9207
    /// section 2.4). The issuer may be absent unless the provider's metadata says that it sends it.
    pub(super) fn is_issuer_valid(&self, issuer: Option<&str>, expected: &str) -> bool {
        issuer.map_or(!self.endpoints.sends_issuer, |issuer| issuer == expected)
    }

    pub(super) fn has_same_endpoints(&self, other: &Self) -> bool {
        self.endpoints == other.endpoints
    }
}
