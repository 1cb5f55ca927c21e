//! Settings of social sign-in (`[social]`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postern_core::Secret;
use postern_core::config::{Env, secret};
use postern_core::decode::{Field, Object};
use postern_core::network::is_https_or_loopback;
use url::Url;

use super::read_key_ring;
use crate::crypto::KeyRing;

/// Social sign-in with OpenID Connect providers; Google by default.
#[derive(Debug)]
pub struct SocialConfig {
    /// The providers; names and issuers are unique. The first one is used if a sign-in names none: that of
    /// `SOCIAL_OAUTH2_CLIENT_ID`, if it is set.
    pub providers: Vec<Arc<SocialProviderConfig>>,
    /// The page of the UI that receives the temporary token. Required; requests cannot change it.
    pub ui: Url,
    /// The delivery of the token to the page. Default [`TokenDelivery::Fragment`].
    pub delivery: TokenDelivery,
    /// Whether a sign-in must start with a `code_challenge`, which binds the temporary token to the
    /// browser that started it. Without it, a victim who opens the callback URL of an attacker's
    /// sign-in is signed in as the attacker (login CSRF). Default `false`, because the specified
    /// interface has no parameter. Enable it if every UI sends one.
    pub require_code_challenge: bool,
    /// Timeout of one call to a provider. Default 5 s.
    pub deadline: Duration,
    /// Keys that seal the providers' refresh tokens: `SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY`, newest
    /// first, separated by commas.
    pub(crate) key_ring: KeyRing,
}

/// A provider: that of `[social]` and the two variables, or one of `[[social.provider]]`.
#[derive(Debug)]
pub struct SocialProviderConfig {
    /// The name in requests and responses. Default `google`.
    pub name: String,
    /// The issuer of accepted ID tokens, compared byte by byte. Default
    /// `https://accounts.google.com`.
    pub issuer: String,
    /// The client id at the provider: `SOCIAL_OAUTH2_CLIENT_ID`, or `client_id`.
    pub client_id: String,
    /// The client secret: `SOCIAL_OAUTH2_CLIENT_SECRET`, or the variable that `client_secret_env`
    /// names.
    pub client_secret: Secret,
    /// The settings with defaults.
    pub settings: SocialProviderSettings,
}

/// The settings of a provider that have defaults.
#[derive(Debug)]
pub struct SocialProviderSettings {
    /// The authorization endpoint. Default by discovery.
    pub authorization_endpoint: Option<Url>,
    /// The token endpoint. Default by discovery.
    pub token_endpoint: Option<Url>,
    /// The URL of the provider's keys. Default by discovery.
    pub jwks_url: Option<Url>,
    /// How the client proves its secret. Default by discovery, where
    /// [`ClientAuthentication::Basic`] has precedence.
    pub client_authentication: Option<ClientAuthentication>,
    /// Whether an ID token must have the nonce of its request. Default `true`. A wrong one is always
    /// rejected.
    pub nonce: bool,
    /// Whether requests have a PKCE challenge. Default `true`.
    pub pkce: bool,
    /// The redirect URI that is registered at the provider: `/auth/social/login/callback` of the
    /// gateway. Default that of `[social]`, there `http://127.0.0.1:8500/auth/social/login/callback`.
    pub redirect_uri: Url,
    /// The requested scopes. Default `openid email profile`.
    pub scopes: Vec<String>,
    /// Additional parameters of the authorization request. Default for Google:
    /// `access_type=offline` and `prompt=consent`, without which it issues no refresh token.
    pub parameters: BTreeMap<String, String>,
    /// Domains whose addresses the provider itself assigns: it is authoritative for them. Default
    /// for Google: `gmail.com` and `googlemail.com`; for other issuers none.
    pub authoritative_domains: Vec<String>,
}

/// The authentication of the client at the token endpoint (RFC 6749 section 2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuthentication {
    /// `client_secret_basic`: the field `Authorization`.
    Basic,
    /// `client_secret_post`: the body.
    Post,
}

/// The delivery of the temporary token to the UI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenDelivery {
    /// A redirect (`302`) to the page with `#temporaryToken=…`. Browsers send fragments neither to
    /// servers nor in `Referer`.
    #[default]
    Fragment,
    /// A page (`200`) with a form that a script submits to the UI.
    FormPost,
}

/// Timeout of one call to a provider.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// The issuer of Google.
const GOOGLE_ISSUER: &str = "https://accounts.google.com";
/// Domains whose addresses Google assigns.
const GOOGLE_DOMAINS: [&str; 2] = ["gmail.com", "googlemail.com"];

// === impl SocialConfig ===

impl SocialConfig {
    /// Reads `[social]`. Returns `Some(None)` if social sign-in is disabled, and `None` if it is
    /// enabled and invalid.
    pub(super) fn read(root: &Object<'_>, env: &Env) -> Option<Option<Self>> {
        let table = root.section("social", |table| Some(SocialTable::read(table, env)));
        let table = table.unwrap_or_default();
        let client_id = env.get("SOCIAL_OAUTH2_CLIENT_ID");
        if client_id.is_none() && table.further.is_empty() {
            return Some(None);
        }
        let client_secret = env.optional_secret(root, "SOCIAL_OAUTH2_CLIENT_SECRET")?;
        let key = env.optional_secret(root, "SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY")?;
        for (setting, is_set) in [
            (
                "SOCIAL_OAUTH2_CLIENT_SECRET",
                client_secret.is_some() || client_id.is_none(),
            ),
            ("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", key.is_some()),
            ("social.ui", table.ui.is_some()),
        ] {
            if !is_set {
                let detail = format!("{setting} is required for social sign-in");
                root.fail("missing_field", detail);
            }
        }
        let key_ring =
            key.and_then(|key| read_key_ring(root, "SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", &key));
        let mut providers = Vec::new();
        if let Some(client_id) = client_id {
            let default = table.default?;
            providers.push(Arc::new(SocialProviderConfig {
                name: table.name.unwrap_or_else(|| "google".to_owned()),
                issuer: default.0,
                client_id: client_id.to_owned(),
                client_secret: client_secret?,
                settings: default.1,
            }));
        }
        for provider in table.further.into_iter().map(Arc::new) {
            let is_same = |other: &&Arc<SocialProviderConfig>| {
                other.name == provider.name || other.issuer == provider.issuer
            };
            if let Some(other) = providers.iter().find(is_same) {
                let detail = format!(
                    "{} has the name or the issuer of {}",
                    provider.name, other.name
                );
                root.fail_at("social.provider", "duplicate_provider", detail);
            }
            providers.push(provider);
        }
        Some(Some(Self {
            providers,
            ui: table.ui?,
            delivery: table.delivery,
            require_code_challenge: table.require_code_challenge,
            deadline: CALL_DEADLINE,
            key_ring: key_ring?,
        }))
    }

    /// Returns the provider of an issuer.
    pub(crate) fn by_issuer(&self, issuer: &str) -> Option<&Arc<SocialProviderConfig>> {
        self.providers.iter().find(|it| it.issuer == issuer)
    }

    /// Returns warnings about unusual settings of providers.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.providers.iter().flat_map(|it| it.warnings()).collect()
    }
}

// === impl SocialProviderConfig ===

impl SocialProviderConfig {
    /// Reads an item of `[[social.provider]]`.
    fn read(table: &Object<'_>, env: &Env, redirect_uri: &Url) -> Option<Self> {
        let name = table.required("name", |field| field.text(1..=64));
        let issuer = table.required("issuer", issuer);
        let client_id = table.required("client_id", |field| field.text(1..=1024));
        let client_secret = secret(table, env, "client_secret_env");
        let settings = SocialProviderSettings::read(table, issuer.as_deref(), redirect_uri);
        Some(Self {
            name: name?,
            issuer: issuer?,
            client_id: client_id?,
            client_secret: client_secret?,
            settings,
        })
    }

    /// Returns whether this is Google, which alone defines the claim `hd` as a domain that it hosts.
    pub(crate) fn is_google(&self) -> bool {
        self.issuer == GOOGLE_ISSUER
    }

    fn warnings(&self) -> Vec<String> {
        let (mut warnings, settings) = (Vec::new(), &self.settings);
        if !settings.nonce && !settings.pkce {
            warnings.push(format!(
                "provider {} has neither nonce nor pkce: who obtains a code of another person can use it (RFC 9700 section 4.5)",
                self.name
            ));
        }
        if self.is_google() {
            return warnings;
        }
        // A sign-in with an authoritative address deletes an account whose address was never
        // verified.
        for domain in &settings.authoritative_domains {
            if GOOGLE_DOMAINS
                .iter()
                .any(|google| google.eq_ignore_ascii_case(domain))
            {
                warnings.push(format!(
                    "social.authoritative_domains contains {domain}, whose addresses are assigned by Google, not by {}",
                    self.issuer
                ));
            }
        }
        warnings
    }
}

/// The table `[social]`.
#[derive(Default)]
struct SocialTable {
    /// Issuer and settings of the default provider.
    default: Option<(String, SocialProviderSettings)>,
    name: Option<String>,
    further: Vec<SocialProviderConfig>,
    ui: Option<Url>,
    delivery: TokenDelivery,
    require_code_challenge: bool,
}

// === impl SocialTable ===

impl SocialTable {
    fn read(table: &Object<'_>, env: &Env) -> Self {
        let issuer = table.or("issuer", GOOGLE_ISSUER.to_owned(), issuer);
        let settings = SocialProviderSettings::read(table, Some(&issuer), &default_redirect());
        let further = table.optional("provider", |field| {
            field.array(|item| {
                item.object(|table| SocialProviderConfig::read(table, env, &settings.redirect_uri))
            })
        });
        let deliveries = [
            ("fragment", TokenDelivery::Fragment),
            ("form_post", TokenDelivery::FormPost),
        ];
        Self {
            default: Some((issuer, settings)),
            name: table.optional("name", |field| field.text(1..=64)),
            further: further.unwrap_or_default(),
            ui: table.optional("ui", secure_url),
            delivery: table.or("delivery", TokenDelivery::Fragment, |field| {
                field.one_of(&deliveries)
            }),
            require_code_challenge: table
                .or("require_code_challenge", false, |field| field.boolean()),
        }
    }
}

// === impl SocialProviderSettings ===

impl SocialProviderSettings {
    fn read(table: &Object<'_>, issuer: Option<&str>, redirect_uri: &Url) -> Self {
        let texts = |name| table.optional(name, |field| field.array(|item| item.text(1..=255)));
        let parameters = table.section("parameters", |parameters| {
            Some(parameters.entries(|name, value| Some((name.to_owned(), value.text(0..=255)?))))
        });
        let methods = [
            ("client_secret_basic", ClientAuthentication::Basic),
            ("client_secret_post", ClientAuthentication::Post),
        ];
        let is_google = issuer == Some(GOOGLE_ISSUER);
        Self {
            authorization_endpoint: table.optional("authorization_endpoint", secure_url),
            token_endpoint: table.optional("token_endpoint", secure_url),
            jwks_url: table.optional("jwks_url", secure_url),
            client_authentication: table
                .optional("token_endpoint_auth_method", |field| field.one_of(&methods)),
            nonce: table.or("nonce", true, |field| field.boolean()),
            pkce: table.or("pkce", true, |field| field.boolean()),
            redirect_uri: table.or("redirect_uri", redirect_uri.clone(), secure_url),
            scopes: texts("scopes")
                .unwrap_or_else(|| ["openid", "email", "profile"].map(str::to_owned).into()),
            parameters: parameters.map_or_else(
                || default_parameters(is_google),
                |entries| entries.into_iter().collect(),
            ),
            authoritative_domains: texts("authoritative_domains")
                .unwrap_or_else(|| default_authoritative_domains(is_google)),
        }
    }
}

fn issuer(field: Field<'_>) -> Option<String> {
    secure_url(field).and_then(|_| field.text(1..=2048))
}

/// Reads an HTTPS URL, or an HTTP URL of a loopback address: it will receive codes and tokens.
fn secure_url(field: Field<'_>) -> Option<Url> {
    let url = field.url()?;
    if is_https_or_loopback(&url) {
        return Some(url);
    }
    field.reject(
        "insecure_url",
        "must be an https URL, unless its host is a loopback address",
    )
}

fn default_redirect() -> Url {
    Url::parse("http://127.0.0.1:8500/auth/social/login/callback").expect("the constant is a URL")
}

fn default_authoritative_domains(is_google: bool) -> Vec<String> {
    let domains = if is_google { &GOOGLE_DOMAINS[..] } else { &[] };
    domains.iter().map(|domain| (*domain).to_owned()).collect()
}

fn default_parameters(is_google: bool) -> BTreeMap<String, String> {
    let google = [("access_type", "offline"), ("prompt", "consent")];
    let pairs = if is_google { &google[..] } else { &[] };
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}
