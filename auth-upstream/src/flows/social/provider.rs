//! The client of a social provider: discovery, code exchange and verification of the ID token.
//!
//! Providers differ in all that a sign-in does not need, so that only what it needs is read.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use oauth2::basic::BasicClient;
use oauth2::{
    AuthType, AuthUrl, AuthorizationCode, ClientId, ClientSecret, CsrfToken, EndpointNotSet,
    EndpointSet, HttpRequest, HttpResponse, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl,
    Scope, TokenUrl,
};
use postern_core::clock::Period;
use postern_core::dependency::{Dependency, root_cause};
use postern_core::network::{self, is_https_or_loopback};
use postern_core::token::oidc::{IdToken, OidcVerifier};
use postern_core::{Clock, Code, trace};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Mutex;
use url::Url;

use super::{AuthorizationState, SocialError};
use crate::config::{ClientAuthentication, SocialProviderConfig};
use crate::telemetry::log_limited;

const MAX_PROVIDER_RESPONSE_BYTES: usize = 256 << 10;

/// Maximum size of a refresh token that is kept. A challenge session carries it, sealed.
const MAX_REFRESH_TOKEN_BYTES: usize = 4096;

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

/// Validity of a discovery document: providers allow caching for an hour or a day.
const DISCOVERY_TTL: Duration = Duration::from_secs(3600);
/// The time until a failed discovery is repeated if endpoints are known.
const REDISCOVERY_DELAY: Duration = Duration::from_secs(60);
/// The time until a failed discovery is repeated if no endpoints are known.
const DISCOVERY_RETRY_DELAY: Duration = Duration::from_secs(1);

type OAuthClient =
    BasicClient<EndpointSet, EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointSet>;

#[derive(Debug)]
pub(super) struct ProviderClient {
    pub(super) config: Arc<SocialProviderConfig>,
    pub(super) http: reqwest::Client,
    pub(super) deadline: Duration,
    pub(super) clock: Clock,
    /// By how much `iat` and `nbf` of ID tokens may be ahead of the clock.
    pub(super) leeway: Duration,
    pub(super) availability: Dependency,
    /// The last discovery. The lock is held during one, so that concurrent callers share it.
    pub(super) cache: Mutex<Option<Discovery>>,
}

#[derive(Debug)]
pub(super) struct Discovery {
    result: Result<Arc<Provider>, SocialError>,
    period: Period,
}

#[derive(Debug)]
pub(super) struct Provider {
    endpoints: ProviderEndpoints,
    id_tokens: Arc<OidcVerifier>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ProviderEndpoints {
    authorization: Url,
    token: Url,
    jwks: Url,
    authentication: ClientAuthentication,
    /// Whether callbacks contain the issuer (RFC 9207 section 3).
    sends_issuer: bool,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuthorizedUser {
    pub(crate) id_token: IdToken,
    pub(crate) refresh_token: Option<String>,
}

// === impl ProviderClient ===

impl ProviderClient {
    /// Returns the provider. Its endpoints are discovered unless they are configured or cached. A
    /// provider that is unavailable does not prevent a start. Changed endpoints are adopted when the
    /// entry expires; if the discovery fails then, the known ones remain in use.
    pub(super) async fn provider(&self) -> Result<Arc<Provider>, SocialError> {
        let mut entry = self.cache.lock().await;
        if let Some(Discovery { result, period }) = &*entry
            && period.contains(self.clock.now())
        {
            return result.clone();
        }
        let known = entry.as_ref().and_then(|entry| entry.result.clone().ok());
        let (result, ttl) = match (self.discover().await, known) {
            // The known provider has fetched the keys already.
            (Ok(found), Some(known)) if found == known.endpoints => (Ok(known), DISCOVERY_TTL),
            (Ok(found), _) => (Ok(Arc::new(self.open(found))), DISCOVERY_TTL),
            (Err(_), Some(known)) => (Ok(known), REDISCOVERY_DELAY),
            (Err(error), None) => (Err(error), DISCOVERY_RETRY_DELAY),
        };
        *entry = Some(Discovery {
            result: result.clone(),
            period: Period::new(self.clock.now(), ttl),
        });
        result
    }

    fn open(&self, endpoints: ProviderEndpoints) -> Provider {
        let (issuer, client) = (&*self.config.issuer, self.config.client_id.clone());
        let (jwks, clock) = (endpoints.jwks.clone(), self.clock.clone());
        Provider {
            id_tokens: OidcVerifier::new(issuer, client, jwks, clock, self.leeway),
            endpoints,
        }
    }

    pub(super) fn authorization_url(
        &self,
        provider: &Provider,
        sealed_state: &str,
        state: &AuthorizationState,
    ) -> Url {
        let settings = &self.config.settings;
        let oauth = self.oauth(provider);
        let mut request = oauth
            .authorize_url(|| CsrfToken::new(sealed_state.to_owned()))
            .add_scopes(settings.scopes.iter().cloned().map(Scope::new))
            .add_extra_param("nonce", state.nonce.clone());
        if settings.pkce {
            let verifier = PkceCodeVerifier::new(state.pkce_verifier.clone());
            let challenge = PkceCodeChallenge::from_code_verifier_sha256(&verifier);
            request = request.set_pkce_challenge(challenge);
        }
        for (name, value) in &settings.parameters {
            request = request.add_extra_param(name.clone(), value.clone());
        }
        request.url().0
    }

    fn oauth(&self, provider: &Provider) -> OAuthClient {
        let (config, endpoints) = (&self.config, &provider.endpoints);
        BasicClient::new(ClientId::new(config.client_id.clone()))
            .set_client_secret(ClientSecret::new(config.client_secret.expose().to_owned()))
            .set_auth_type(match endpoints.authentication {
                ClientAuthentication::Basic => AuthType::BasicAuth,
                ClientAuthentication::Post => AuthType::RequestBody,
            })
            .set_auth_uri(AuthUrl::from_url(endpoints.authorization.clone()))
            .set_token_uri(TokenUrl::from_url(endpoints.token.clone()))
            .set_redirect_uri(RedirectUrl::from_url(config.settings.redirect_uri.clone()))
    }

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
                // The failing refresh of the keys is logged.
                if error.code() == Code::KeysUnavailable {
                    return SocialError::ProviderUnavailable;
                }
                let provider = &*self.config.name;
                log_limited!(warn, provider, %error, "ID token of the provider rejected");
                SocialError::InvalidIdToken
            })?;
        Ok(AuthorizedUser {
            id_token: verified,
            refresh_token: text("refresh_token")
                .filter(|token| token.len() <= MAX_REFRESH_TOKEN_BYTES)
                .map(str::to_owned),
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
        let oauth = self.oauth(provider);
        let mut exchange = oauth.exchange_code(AuthorizationCode::new(code.to_owned()));
        if self.config.settings.pkce {
            let verifier = PkceCodeVerifier::new(state.pkce_verifier.clone());
            exchange = exchange.set_pkce_verifier(verifier);
        }
        // The crate builds the request. It is strict about parts of the answer that are not used, so
        // that the answer is read here.
        let built = parking_lot::Mutex::new(None);
        let keep = |request: HttpRequest| {
            *built.lock() = Some(request);
            Ok::<_, Infallible>(HttpResponse::default())
        };
        let _unread = exchange.request(&keep);
        let request = built.into_inner().map(reqwest::Request::try_from);
        let request = request.and_then(Result::ok).ok_or(SocialError::Internal)?;
        let request = reqwest::RequestBuilder::from_parts(self.http.clone(), request);
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

    fn unavailable(&self, call: &str, error: &str) -> SocialError {
        self.availability
            .record_failure(format_args!("{call}: {error}"));
        SocialError::ProviderUnavailable
    }

    async fn send(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<(http::StatusCode, Vec<u8>), String> {
        let failed = |error: reqwest::Error| {
            let cause = root_cause(&error.without_url());
            format!("no response: {cause}")
        };
        let sent = trace::send(request.timeout(self.deadline)).await;
        let response = sent.map_err(failed)?;
        let status = response.status();
        let body = network::read_body(response, MAX_PROVIDER_RESPONSE_BYTES).await;
        let body = body.map_err(failed)?.ok_or("response too large")?;
        Ok((status, body))
    }
}

// === impl Provider ===

impl Provider {
    /// Returns whether a callback with `issuer` may come from the provider `expected` (RFC 9207
    /// section 2.4). The issuer may be absent unless the provider's metadata says that it sends it.
    pub(super) fn is_issuer_valid(&self, issuer: Option<&str>, expected: &str) -> bool {
        issuer.map_or(!self.endpoints.sends_issuer, |issuer| issuer == expected)
    }
}
