//! Settings of social sign-in (`[social]`).

use std::collections::BTreeMap;
use std::time::Duration;

use postern_common::Secret;
use postern_common::config::Env;
use postern_common::decode::{Field, Object};
use url::{Host, Url};

use super::read_key_ring;
use crate::crypto::KeyRing;

/// Social sign-in with one OpenID Connect provider; Google by default.
#[derive(Debug)]
pub struct SocialConfig {
    /// The name of the provider in responses. Default `google`.
    pub provider: String,
    /// The issuer of accepted ID tokens, compared byte by byte. Default
    /// `https://accounts.google.com`.
    pub issuer: String,
    /// The client id at the provider: `SOCIAL_OAUTH2_CLIENT_ID`.
    pub client_id: String,
    /// The client secret: `SOCIAL_OAUTH2_CLIENT_SECRET`.
    pub client_secret: Secret,
    /// The authorization endpoint. Default by discovery.
    pub authorization_endpoint: Option<Url>,
    /// The token endpoint. Default by discovery.
    pub token_endpoint: Option<Url>,
    /// The URL of the provider's keys. Default by discovery.
    pub jwks_url: Option<Url>,
    /// The redirect URI that is registered at the provider: `/auth/social/login/callback` of the
    /// gateway. Default
    /// `http://127.0.0.1:8500/auth/social/login/callback`.
    pub redirect_uri: Url,
    /// The requested scopes. Default `openid email profile`.
    pub scopes: Vec<String>,
    /// Additional parameters of the authorization request. Default for Google:
    /// `access_type=offline` and `prompt=consent`, without which it issues no refresh token.
    pub parameters: BTreeMap<String, String>,
    /// The page of the UI that receives the temporary token. Required; requests cannot change it.
    pub ui: Url,
    /// The delivery of the token to the page. Default [`TokenDelivery::Fragment`].
    pub delivery: TokenDelivery,
    /// Whether a sign-in must start with a `code_challenge`, which binds the temporary token to the
    /// browser that started it. Without it, a victim who opens the callback URL of an attacker's
    /// sign-in is signed in as the attacker (login CSRF). Default `false`, because the specified
    /// interface has no parameter. Enable it if every UI sends one.
    pub require_code_challenge: bool,
    /// Timeout of one call to the provider. Default 5 s.
    pub deadline: Duration,
    /// Domains whose addresses the provider itself assigns: it is authoritative for them. Default
    /// for Google: `gmail.com` and `googlemail.com`; for other issuers none.
    pub authoritative_domains: Vec<String>,
    /// Whether the provider is authoritative for the domain in the `hd` claim (Google Workspace).
    /// Default `true` for Google, which alone defines the claim, else `false`.
    pub trust_hosted_domain: bool,
    /// Keys that seal the provider's refresh tokens: `SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY`, newest
    /// first, separated by commas.
    pub(crate) key_ring: KeyRing,
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

/// The issuer of Google.
const GOOGLE_ISSUER: &str = "https://accounts.google.com";
/// Domains whose addresses Google assigns.
const GOOGLE_DOMAINS: [&str; 2] = ["gmail.com", "googlemail.com"];

// === impl SocialConfig ===

impl SocialConfig {
    /// Reads `[social]`. Returns `Some(None)` if social sign-in is disabled, and `None` if it is
    /// enabled and invalid.
    pub(super) fn read(root: &Object<'_>, env: &Env) -> Option<Option<Self>> {
        let Some(client_id) = env.get("SOCIAL_OAUTH2_CLIENT_ID") else {
            root.section("social", |table| Some(SocialTable::read(table)));
            return Some(None);
        };
        let client_secret = env.secret("SOCIAL_OAUTH2_CLIENT_SECRET");
        let key = env.get("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY");
        for (variable, is_set) in [
            ("SOCIAL_OAUTH2_CLIENT_SECRET", client_secret.is_some()),
            ("SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", key.is_some()),
        ] {
            if !is_set {
                let detail = format!("{variable} is required if SOCIAL_OAUTH2_CLIENT_ID is set");
                root.fail("missing_field", detail);
            }
        }
        let key_ring =
            key.and_then(|key| read_key_ring(root, "SOCIAL_REFRESH_TOKEN_ENCRYPTION_KEY", key));
        let table = root
            .section("social", |table| Some(SocialTable::read(table)))
            .unwrap_or_default();
        if table.ui.is_none() {
            root.fail(
                "missing_field",
                "social.ui is required if SOCIAL_OAUTH2_CLIENT_ID is set",
            );
        }
        let issuer = table.issuer.unwrap_or_else(|| GOOGLE_ISSUER.to_owned());
        Some(Some(Self {
            provider: table.provider.unwrap_or_else(|| "google".to_owned()),
            client_id: client_id.to_owned(),
            client_secret: client_secret?,
            authorization_endpoint: table.authorization_endpoint,
            token_endpoint: table.token_endpoint,
            jwks_url: table.jwks_url,
            redirect_uri: table.redirect_uri.unwrap_or_else(default_redirect),
            scopes: table
                .scopes
                .unwrap_or_else(|| ["openid", "email", "profile"].map(str::to_owned).into()),
            parameters: table
                .parameters
                .unwrap_or_else(|| default_parameters(&issuer)),
            ui: table.ui?,
            delivery: table.delivery,
            require_code_challenge: table.require_code_challenge,
            deadline: table.deadline.unwrap_or(Duration::from_secs(5)),
            authoritative_domains: table
                .authoritative_domains
                .unwrap_or_else(|| default_authoritative_domains(&issuer)),
            trust_hosted_domain: table.trust_hosted_domain.unwrap_or(issuer == GOOGLE_ISSUER),
            issuer,
            key_ring: key_ring?,
        }))
    }

    /// Returns warnings about unusual authoritative domains. A sign-in with an authoritative
    /// address deletes an account whose address was never verified.
    pub(crate) fn authority_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.issuer == GOOGLE_ISSUER {
            return warnings;
        }
        for domain in &self.authoritative_domains {
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
        if self.trust_hosted_domain {
            warnings.push(format!(
                "social.trust_hosted_domain is enabled: {} can claim any domain with hd, which only Google defines",
                self.issuer
            ));
        }
        warnings
    }
}

/// The table `[social]`, with every key optional.
#[derive(Default)]
struct SocialTable {
    provider: Option<String>,
    issuer: Option<String>,
    authorization_endpoint: Option<Url>,
    token_endpoint: Option<Url>,
    jwks_url: Option<Url>,
    redirect_uri: Option<Url>,
    scopes: Option<Vec<String>>,
    parameters: Option<BTreeMap<String, String>>,
    ui: Option<Url>,
    delivery: TokenDelivery,
    require_code_challenge: bool,
    deadline: Option<Duration>,
    authoritative_domains: Option<Vec<String>>,
    trust_hosted_domain: Option<bool>,
}

// === impl SocialTable ===

impl SocialTable {
    fn read(table: &Object<'_>) -> Self {
        let texts = |name| table.optional(name, |field| field.array(|item| item.text(1..=255)));
        let parameters = table.section("parameters", |parameters| {
            Some(parameters.entries(|name, value| Some((name.to_owned(), value.text(0..=255)?))))
        });
        let deliveries = [
            ("fragment", TokenDelivery::Fragment),
            ("form_post", TokenDelivery::FormPost),
        ];
        Self {
            provider: table.optional("provider", |field| field.text(1..=64)),
            issuer: table.optional("issuer", |field| {
                secure_url(field).and_then(|_| field.text(1..=2048))
            }),
            authorization_endpoint: table.optional("authorization_endpoint", secure_url),
            token_endpoint: table.optional("token_endpoint", secure_url),
            jwks_url: table.optional("jwks_url", secure_url),
            redirect_uri: table.optional("redirect_uri", secure_url),
            scopes: texts("scopes"),
            parameters: parameters.map(|entries| entries.into_iter().collect()),
            ui: table.optional("ui", secure_url),
            delivery: table.or("delivery", TokenDelivery::Fragment, |field| {
                field.one_of(&deliveries)
            }),
            require_code_challenge: table
                .or("require_code_challenge", false, |field| field.boolean()),
            deadline: table.optional("deadline", |field| field.duration()),
            authoritative_domains: texts("authoritative_domains"),
            trust_hosted_domain: table.optional("trust_hosted_domain", |field| field.boolean()),
        }
    }
}

/// Reads an HTTPS URL, or an HTTP URL of a loopback address: it will receive codes and tokens.
fn secure_url(field: Field<'_>) -> Option<Url> {
    let url = field.url()?;
    let is_loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    if url.scheme() == "https" || is_loopback {
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

fn default_authoritative_domains(issuer: &str) -> Vec<String> {
    let domains = if issuer == GOOGLE_ISSUER {
        &GOOGLE_DOMAINS[..]
    } else {
        &[]
    };
    domains.iter().map(|domain| (*domain).to_owned()).collect()
}

fn default_parameters(issuer: &str) -> BTreeMap<String, String> {
    let google = [("access_type", "offline"), ("prompt", "consent")];
    let pairs = if issuer == GOOGLE_ISSUER {
        &google[..]
    } else {
        &[]
    };
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}
